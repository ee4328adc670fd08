"""Inductor, with what it compiles handed over to be replayed as CUDA graphs where that is safe.

The code is that of Inductor's default mode, and comes from the same cache. Torch's cache of
AOTAutograd's results would hand over code that nothing here has seen, so it is not asked. Torch's
own ``cudagraph_policy`` sees such code too, and is only in torch 2.13 and later.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.fx import GraphModule

from backbay.graph.values import are_numbers
from backbay.kit.codegen import Codegen, Compiled
from backbay_optimizer.cuda_graphs.replaying import Inputs, Recordings, Replayed
from backbay_optimizer.cuda_graphs.safety import refusal, unsafe_operator

TRAINING = "training has no CUDA graph: it is not recorded"


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
    plain: Codegen,
    name: str,
    share: float,
    decide: Decide | None = None,
) -> Codegen:
    """Return Inductor as a code generator whose code is replayed.

    Args:
        mode: as torch.compile takes it; CUDA graphs that it asks for are these.
        options: Inductor's.
        plain: compiles graphs of training, which are not recorded.
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
        if _trains(graph_module, example_inputs):
            recordings.say(TRAINING)
            return plain(graph_module, example_inputs)
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


def _trains(graph_module: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether AOTAutograd makes a backward graph of it."""
    held = (*graph_module.parameters(), *graph_module.buffers(), *example_inputs)
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in held)


def _known_by(setting: Any) -> str:
    uuid = getattr(setting, "uuid", None)  # a pass in one of Inductor's hooks
    return str(uuid()) if callable(uuid) else repr(setting)


def _inner_compile(
    shared: Recordings, graph_module: GraphModule, example_inputs: Sequence[Any], **given: Any
) -> Any:
    """Compile one of AOTAutograd's graphs."""
    from torch._inductor.compile_fx import compile_fx_inner  # noqa: PLC0415 (as above)
    from torch._inductor.output_code import CompiledFxGraph  # noqa: PLC0415

    unsafe = unsafe_operator(graph_module)
    code = compile_fx_inner(graph_module, example_inputs, **given)
    if not isinstance(code, CompiledFxGraph) or "cuda" not in code.device_types:
        return code
    if not given.get("is_inference"):
        shared.say(TRAINING)
        return code
    why = refusal(code, graph_module, example_inputs, given)
    if unsafe is not None:
        why = f"{unsafe} is not safe in one"
    if why is not None:
        shared.say(f"inference graph has no CUDA graph: {why}")
        return code
    inputs = Inputs(
        device=next(iter(code.device_idxs)),
        integers=[i for i, x in enumerate(example_inputs) if not isinstance(x, torch.Tensor)],
        symbolic=[i for i, x in enumerate(example_inputs) if _is_symbolic(x)],
        fixed=list(given.get("static_input_idxs") or ()),
    )
    assert code.current_callable is not None
    code.current_callable = Replayed(code.current_callable, inputs, shared)
    return code


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not are_numbers((*value.shape, *value.stride()))
