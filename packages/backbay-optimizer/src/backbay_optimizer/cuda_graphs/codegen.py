"""Inductor, with what it compiles handed over to be replayed as CUDA graphs where that is safe.

The code is that of Inductor's default mode, and comes from the same caches. Torch's own
``cudagraph_policy`` would hand over such code, too, compiled with other settings, and is only in
torch 2.13 and later.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from unittest import mock

import torch
from torch.fx import GraphModule

from backbay.kit.codegen import Codegen, Compiled
from backbay_optimizer.cuda_graphs.replaying import Inputs, Recordings, Replayed
from backbay_optimizer.cuda_graphs.safety import graph_refusal, refusal

TRAINING = "training has no CUDA graph: it is not recorded"


class Decision(Protocol):
    """Whether recordings of a graph are used."""

    @property
    def known(self) -> bool | None:
        """What was found before; None if nothing was."""

    def found_by(self, compiled: Compiled) -> Compiled:
        """Return compiled code that finds out when it is called."""


Decide = Callable[[GraphModule, Sequence[Any], Any, Recordings], Decision]
"""Takes a graph before Inductor has it, its inputs, settings, and what will be recorded of it."""


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
        mode: as torch.compile takes it; CUDA graphs that it asks for are these, if they are always
            used.
        options: Inductor's.
        plain: compiles what is not replayed: graphs of training, say.
        name: what the compile log calls the backend.
        share: the part of a device's memory that all recordings together may hold.
        decide: whether recordings are used. Default: always.
    """
    configured = torch._TorchCompileInductorWrapper(mode, dict(options), None)  # type: ignore[no-untyped-call] # noqa: SLF001 (torch.compile's own way)
    patches = {**configured.config, "triton.cudagraphs": False}
    if decide is not None and configured.config.get("triton.cudagraphs"):
        return plain  # torch's own are asked for

    def generate(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        held = _held(graph_module, example_inputs)
        if not _on_cuda(held):
            return plain(graph_module, example_inputs)
        recordings = Recordings(name=name, share=share)
        if torch.is_grad_enabled() and any(x.requires_grad for x in held):
            if decide is None:  # it was asked for
                recordings.say(TRAINING)
            return plain(graph_module, example_inputs)
        decision = None
        if decide is not None:
            settings = sorted((key, _known_by(x)) for key, x in patches.items())
            decision = decide(graph_module, example_inputs, settings, recordings)
        known = None if decision is None else decision.known
        if known is False:
            return plain(graph_module, example_inputs)
        handover = _Handover(recordings, is_known=known is not None)
        compiled = handover.compiled(graph_module, example_inputs, patches)
        if decision is None or known:
            return compiled
        return decision.found_by(compiled)

    return generate


def _held(graph_module: GraphModule, example_inputs: Sequence[Any]) -> list[torch.Tensor]:
    held = (*graph_module.parameters(), *graph_module.buffers(), *example_inputs)
    return [x for x in held if isinstance(x, torch.Tensor)]


def _on_cuda(held: Sequence[torch.Tensor]) -> bool:
    return any(x.device.type == "cuda" for x in held)


def _known_by(setting: Any) -> str:
    uuid = getattr(setting, "uuid", None)  # a pass in one of Inductor's hooks
    return str(uuid()) if callable(uuid) else repr(setting)


@dataclass
class _Handover:
    """Takes code that Inductor has compiled, and has it replayed."""

    recordings: Recordings
    is_known: bool
    """Whether this graph was seen before, and is safe."""
    unsafe: str | None = None
    """What the graph that is being compiled has that can't be captured."""

    def compiled(
        self,
        graph_module: GraphModule,
        example_inputs: Sequence[Any],
        patches: Mapping[str, Any],
    ) -> Compiled:
        """Compile one of Dynamo's graphs."""
        from torch._functorch import config  # noqa: PLC0415 (as late as Inductor)
        from torch._inductor.compile_fx import (  # noqa: PLC0415 (takes seconds)
            compile_fx,
            compile_fx_inner,
        )

        # Torch's cache of AOTAutograd's results has no graph that could be looked at.
        cached = config.patch(enable_autograd_cache=False)
        with contextlib.nullcontext() if self.is_known else cached, self._listening():
            made: Any = compile_fx(
                graph_module,
                example_inputs,
                inner_compile=compile_fx_inner if self.is_known else self._inner_compile,
                config_patches=dict(patches),
            )
        return made  # type: ignore[no-any-return]

    def _inner_compile(
        self, graph_module: GraphModule, example_inputs: Sequence[Any], **given: Any
    ) -> Any:
        """Compile one of AOTAutograd's graphs."""
        from torch._inductor.compile_fx import compile_fx_inner  # noqa: PLC0415 (as above)

        self.unsafe = graph_refusal(graph_module)
        return compile_fx_inner(graph_module, example_inputs, **given)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """See all code that is compiled meanwhile, or comes from a cache.

        Torch calls this method of the code in both cases. Only one thread compiles at a time:
        Dynamo has a lock.
        """
        from torch._inductor.output_code import CompiledFxGraph  # noqa: PLC0415 (as above)

        post_compile = CompiledFxGraph.post_compile

        def finish(code: CompiledFxGraph, *given: Any) -> None:
            post_compile(code, *given)
            self.take(code)

        with mock.patch.object(CompiledFxGraph, "post_compile", finish):
            yield

    def take(self, code: Any) -> None:
        """Have Inductor's code replayed, if it can be."""
        if "cuda" not in code.device_types:
            return
        if not code.fx_kwargs.get("is_inference"):
            self.recordings.say(TRAINING)
            return
        why = self.unsafe or refusal(code)
        if why is not None:
            self.recordings.refuse(why)
            return
        self.recordings.writes |= bool(code.mutated_input_idxs)
        inputs = Inputs(
            device=next(iter(code.device_idxs)),
            fixed=tuple(code.fx_kwargs.get("static_input_idxs") or ()),
        )
        code.current_callable = Replayed(code.current_callable, inputs, self.recordings)
