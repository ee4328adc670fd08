"""Inductor, with what it compiles handed over to be replayed as CUDA graphs where that is safe.

The code is that of Inductor's default mode, and comes from the same cache. Torch's cache of
AOTAutograd's results would hand over code that nothing here has seen, so it is not asked. Torch's
own ``cudagraph_policy`` sees such code too, and is only in torch 2.13 and later.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.fx import GraphModule

from backbay.graph.values import are_numbers
from backbay.kit.codegen import Codegen, Compiled
from backbay_optimizer.cuda_graphs.replaying import Inputs, Kind, Recordings, Replayed
from backbay_optimizer.cuda_graphs.safety import refusal

ALL = sys.maxsize
KINDS: tuple[Kind, ...] = ("inference",)
"""The graphs that are recorded. Of training, not every case was shown to be safe on a GPU."""


class Decide(Protocol):
    """What decides whether recordings of a graph are used."""

    def __call__(
        self,
        graph_module: GraphModule,
        example_inputs: Sequence[Any],
        settings: Any,
        recordings: Recordings,
    ) -> Callable[[Compiled], Compiled]:
        """Return what makes, of compiled code, what is called in its place."""


def replaying(
    mode: str | None,
    options: Mapping[str, Any],
    *,
    name: str,
    share: float,
    decide: Decide | None = None,
) -> Codegen:
    """Return Inductor as a code generator whose code is replayed.

    Args:
        mode: as torch.compile takes it; CUDA graphs that it asks for are these.
        options: Inductor's.
        name: what the compile log calls the backend.
        share: the part of a device's memory that all recordings together may hold.
        decide: whether recordings are used. Default: always.
    """
    configured = torch._TorchCompileInductorWrapper(mode, dict(options), None)  # type: ignore[no-untyped-call] # noqa: SLF001 (torch.compile's own way)
    patches = {**configured.config, "triton.cudagraphs": False}

    def generate(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        from torch._functorch import config  # noqa: PLC0415 (as late as Inductor)
        from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415 (takes seconds)

        recordings = Recordings(name=name, share=share)
        settings = sorted((key, _known_by(x)) for key, x in patches.items())
        # Before Inductor has the graph: it changes it.
        finish = None
        if decide is not None:
            finish = decide(graph_module, example_inputs, settings, recordings)
        inner = functools.partial(_inner_compile, recordings)
        with config.patch(enable_autograd_cache=False):
            compiled: Any = compile_fx(
                graph_module, example_inputs, inner_compile=inner, config_patches=patches
            )
        return compiled if finish is None else finish(compiled)

    return generate


def _known_by(setting: Any) -> str:
    uuid = getattr(setting, "uuid", None)  # a pass in one of Inductor's hooks
    return str(uuid()) if callable(uuid) else repr(setting)


def _inner_compile(
    shared: Recordings, graph_module: GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Any:
    """Compile one of AOTAutograd's graphs."""
    from torch._inductor.compile_fx import compile_fx_inner  # noqa: PLC0415 (as above)
    from torch._inductor.output_code import CompiledFxGraph  # noqa: PLC0415
    from torch._inductor.utils import (  # noqa: PLC0415
        get_first_incompatible_cudagraph_node,
    )

    unsafe = get_first_incompatible_cudagraph_node(graph_module)
    kind: Kind = "backward" if given.get("is_backward") else "forward"
    if given.get("is_inference"):
        kind = "inference"
    returned = _returned() if kind == "forward" else ALL
    code = compile_fx_inner(graph_module, example_inputs, **given)
    if not isinstance(code, CompiledFxGraph) or "cuda" not in code.device_types:
        return code
    why = refusal(code, graph_module, example_inputs, given)
    if unsafe is not None:
        why = f"{unsafe.target} is not safe in one"
    if kind not in KINDS:
        why = "training is not recorded yet"
    if returned is None:
        why = why or "what it returns is not told from what it saves"
    if why is not None:
        shared.say(f"{kind} graph has no CUDA graph: {why}")
        return code
    assert returned is not None
    inputs = Inputs(
        device=next(iter(code.device_idxs)),
        integers=[i for i, x in enumerate(example_inputs) if not isinstance(x, torch.Tensor)],
        symbolic=[i for i, x in enumerate(example_inputs) if _is_symbolic(x)],
        fixed=list(given.get("static_input_idxs") or ()),
    )
    assert code.current_callable is not None
    code.current_callable = Replayed(code.current_callable, kind, inputs, shared, returned)
    return code


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not are_numbers((*value.shape, *value.stride()))


def _returned() -> int | None:
    """Return how many results of a forward graph leave compiled code; None if nobody says."""
    context = torch._guards.TracingContext.try_get()  # noqa: SLF001 (its only home)
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or metadata.tokens:
        return None
    kinds = metadata.subclass_fw_graph_out_meta
    if any(type(x).__name__ == "SubclassCreationMeta" for x in kinds):
        return None
    return int(metadata.num_forward_returns)
