"""Why a GPU's step takes longer than its kernels, in words, and which arm to try then."""

from collections.abc import Iterator

import msgspec

from backbay.decisions import Arm
from backbay.race.record import EAGER, Result
from backbay.registry import BackendSpec
from backbay.reporting import wording

WAITS = 0.2
"""Of a step that the GPU waits, from where on it is bound by the host."""
COPIES = 0.05
"""Of a step that copies between devices take, from where on they are a reason."""
MOVES = 0.1
"""Of a step that copies within the GPU take, likewise: some are part of any model."""
_GRAPHED_MODES = {"reduce-overhead", "max-autotune"}
_GRAPHED_OPTIONS = {"cuda_graphs", "triton.cudagraphs"}
_WITH_GRAPHS = {
    None: "reduce-overhead",
    "default": "reduce-overhead",
    "max-autotune-no-cudagraphs": "max-autotune",
}
"""Mode of torch.compile to the one that is the same with CUDA graphs."""


def with_waits(result: Result, spec: BackendSpec | None) -> Result:
    """Return a row that says whether the GPU waits for the host, or for copies.

    Args:
        result: the row.
        spec: the row's backend, with its options; none where they are not known.
    """
    return msgspec.structs.replace(result, waits=tuple(_waits(result, spec)))


def _waits(result: Result, spec: BackendSpec | None) -> Iterator[str]:
    work, step_ms = result.gpu_work, result.median_ms
    if work is None or not step_ms or result.status != "ok":
        return
    waits = 1.0 - work.busy_ms / step_ms
    if waits >= WAITS:
        launches = wording.counted(work.launches, "kernel")
        said = f"host-bound: the GPU waits {waits:.0%} of the step ({launches})"
        yield said + _remedy(result.as_arm, spec)
    if work.copied_ms >= COPIES * step_ms:
        copies = wording.counted(work.copies, "copy", "copies")
        yield f"{copies} between host and GPU take {work.copied_ms / step_ms:.0%} of the step"
    if work.moved_ms >= MOVES * step_ms:
        share = f"{work.moved_ms / step_ms:.0%}"
        kernels = wording.counted(work.moves, "kernel")
        yield (
            f"moving data and changing its layout or dtype takes {share} of the step ({kernels}): "
            "`backbay diagnose` shows for which lines"
        )


def _remedy(arm: Arm, spec: BackendSpec | None) -> str:
    """Word what to do about a step that is bound by the host; nothing where nothing is known."""
    if arm.mode in _GRAPHED_MODES or any(arm.options.get(x) for x in _GRAPHED_OPTIONS):
        return ", though CUDA graphs were asked for"
    other = _graphed(arm, spec)
    return f": CUDA graphs launch all of them at once, try {other}" if other is not None else ""


def _graphed(arm: Arm, spec: BackendSpec | None) -> Arm | None:
    """Return the arm that is this one with CUDA graphs."""
    if arm.backend == EAGER:
        return Arm(backend="inductor", mode=_WITH_GRAPHS[None])
    if spec is None:
        return None
    own = spec.options if isinstance(spec.options, tuple) else ()
    option = next((x for x in own if x.name == "cuda_graphs"), None)
    if option is not None and not arm.options.get(option.name, option.default):
        return msgspec.structs.replace(arm, options={**arm.options, "cuda_graphs": True})
    if "inductor" in {spec.options, spec.further_options} and arm.mode in _WITH_GRAPHS:
        return msgspec.structs.replace(arm, mode=_WITH_GRAPHS[arm.mode])
    return None
