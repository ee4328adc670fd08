"""Arms: a backend, and how it is asked for. Named ``BACKEND`` or ``BACKEND:MODE``.

``MODE`` is one of torch.compile's modes, or ``tuned``: coordinate descent and combo kernels, which
Inductor has and leaves off; or ``frozen``: parameters are constants, which it folds in inference,
and a change of theirs goes unseen. Of ``backbay`` it may be ``hoist``, its option
``parameter_hoist``, or ``hoist-graphs``, the same with CUDA graphs; ``graphs``, its option
``cuda_graphs`` everywhere, or ``no-graphs``, nowhere; ``with-NAME``, an option on, and
``without-NAME``, one of its passes off. ``eager`` compiles nothing.

Two arms are no backends: ``hand`` is Inductor on a model of transformers whose mask builders were
made to return nothing, ``alt`` is Inductor on the alternative that a pattern names.
``inductor:again`` is Inductor's default once more, compiled for itself: its ratio to ``inductor``
is how far the same code differs.
"""

import contextlib
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbay import compile_log

if TYPE_CHECKING:
    from backbay.kit.passes import PassReport

EAGER, INDUCTOR, OURS, HAND, ALT = "eager", "inductor", "backbay", "hand", "alt"
TUNED, FROZEN, AGAIN = "tuned", "frozen", "again"
HOIST, HOIST_GRAPHS = "hoist", "hoist-graphs"
GRAPHS, NO_GRAPHS = "graphs", "no-graphs"
WITH, WITHOUT = "with-", "without-"
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    TUNED: {"coordinate_descent_tuning": True, "combo_kernels": True},
    FROZEN: {"freezing": True},
    HOIST: {"parameter_hoist": True},
    HOIST_GRAPHS: {"parameter_hoist": True, "triton.cudagraphs": True},
    GRAPHS: {"cuda_graphs": True},
    NO_GRAPHS: {"cuda_graphs": False},
}
"""What is no mode of torch.compile's, to the options that it is."""
GRAPHED = ("reduce-overhead", "max-autotune", HOIST_GRAPHS, GRAPHS)
"""The modes that always replay CUDA graphs of their own."""

_NONE = "no CUDA graph"
_MASK_BUILDERS = ("create_causal_mask", "create_bidirectional_mask")
"""Of transformers. Windows are left alone: without a mask such a layer would see too much."""


def split(arm: str) -> tuple[str, str]:
    """Return an arm's backend and mode; ``hand`` and ``alt`` are Inductor's."""
    backend, _, mode = arm.partition(":")
    return (INDUCTOR if backend in {HAND, ALT} else backend), mode


def graphed(arm: str) -> bool:
    """Whether an arm always replays CUDA graphs of its own."""
    return split(arm)[1] in GRAPHED


def ours(arm: str) -> bool:
    """Whether an arm is Backbay's, as it is without asking for what may be stale."""
    backend, mode = split(arm)
    return backend == OURS and mode not in {HOIST, HOIST_GRAPHS}


def stock(arm: str) -> bool:
    """Whether an arm is eager, or Inductor's on the model as it is, whose weights may change."""
    backend, mode = split(arm)
    return backend != OURS and arm not in {HAND, ALT} and mode not in {FROZEN, AGAIN}


def compiled(function: Callable[..., Any], arm: str, **torch_options: Any) -> Callable[..., Any]:
    """Return a function or module as an arm runs it."""
    import torch  # noqa: PLC0415 (who only reads tables needs none)

    backend, mode = split(arm)
    if backend == EAGER:
        return function
    asked: dict[str, Any] = {"backend": _compiler(backend), **torch_options}
    if mode == AGAIN:
        asked["backend"] = _inductor_again
    elif mode in OPTIONS:
        asked["options"] = dict(OPTIONS[mode])
    elif mode.startswith(WITH):
        asked["options"] = {mode.removeprefix(WITH): True}
    elif mode.startswith(WITHOUT):
        asked["options"] = {mode.removeprefix(WITHOUT): False}
    elif mode:
        asked["mode"] = mode
    call: Callable[..., Any] = torch.compile(function, **asked)
    return call


def rewrites(arm: str, reports: Iterable["PassReport"]) -> tuple[str, ...]:
    """Return how often each rewrite of ours changed something."""
    if split(arm)[0] != OURS:
        return ()
    total: Counter[str] = Counter()
    for report in reports:
        total[report.name] += report.changes
    return tuple(f"{name} {count}x" for name, count in total.items() if count) or ("no rewrite",)


def replays(since: int) -> tuple[str, ...]:
    """Return what was decided about CUDA graphs of ours, as the compile log says.

    Args:
        since: how many of its records are older.
    """
    said = (x.why for x in compile_log.records()[since:])
    return tuple(dict.fromkeys(x for x in said if x.startswith("CUDA graphs") or _NONE in x))


def _compiler(backend: str) -> Any:
    if backend == INDUCTOR:
        return INDUCTOR
    if backend == OURS:  # also where Backbay is on the path and not installed
        from backbay_optimizer.backend import backbay  # noqa: PLC0415

        return backbay
    from backbay.registry import default_registry  # noqa: PLC0415

    return default_registry.resolve(backend)


def _inductor_again(graph_module: Any, inputs: Any) -> Any:
    """Compile as Inductor does: another function, so Dynamo does not take the other arm's code."""
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415

    return compile_fx(graph_module, inputs)


@functools.cache
def warm_up(backend: str, device: str, *, train: bool) -> None:
    """Pay once what a toolchain does once a process: no arm is charged for having been first.

    Unlike a race's warm-up it does not reset Dynamo, which would forget the arms that are ready. A
    failure says nothing of what is measured, and is not reported.
    """
    import torch  # noqa: PLC0415

    with contextlib.suppress(Exception):
        function = torch.compile(lambda x: x + 1, backend=_compiler(backend))
        result = function(torch.ones(8, device=device, requires_grad=train))
        if train:
            result.sum().backward()


@contextlib.contextmanager
def cached(arm: str, folder: str, *, shared: bool = False) -> Iterator[bool]:
    """Point the compilers at a folder of the arm's backend; return whether it was empty.

    The modes of a backend share it: only the first of them compiles cold, and is measured. Where
    all backends share one, a Triton kernel that two arms have in common keeps the configuration
    that was found for the first. Each finding its own, beside other work, they differ by percents.
    """
    from torch._inductor.utils import clear_caches  # noqa: PLC0415 (a second; eager needs none)

    name = "all" if shared else arm.partition(":")[0].replace("/", "_")
    path = Path(folder) / name
    cold = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    clear_caches()  # what is in memory would be hit as well
    names = {"TORCHINDUCTOR_CACHE_DIR": str(path), "TRITON_CACHE_DIR": str(path / "triton")}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield cold
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


@contextlib.contextmanager
def surrounded(arm: str) -> Iterator[None]:
    """Be in what an arm must be compiled, called and timed in."""
    if arm.partition(":")[0] != HAND:
        yield
        return
    found = [
        (module, name, getattr(module, name))
        for key, module in list(sys.modules.items())
        if key.startswith("transformers.models.") and ".modeling_" in key
        for name in _MASK_BUILDERS
        if name in vars(module)
    ]
    for module, name, _ in found:
        setattr(module, name, no_mask)
    try:
        yield
    finally:
        for module, name, builder in found:
            setattr(module, name, builder)


def no_mask(*_: Any, **__: Any) -> None:
    """Build no mask: attention is then told ``is_causal``, or that all is seen."""
