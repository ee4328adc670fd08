"""Inductor, with what it compiles handed over to be replayed as CUDA graphs where that is safe.

The code is that of Inductor's default mode, and comes from the same caches: what it was compiled
from need not be there, so the code itself is looked at. Torch's own ``cudagraph_policy`` would hand
over code that is compiled with other settings, and is only in torch 2.13 and later.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol
from unittest import mock

from torch.fx import GraphModule

from backbay.kit.codegen import Codegen, Compiled
from backbay_optimizer.cuda_graphs.recordings import Recordings
from backbay_optimizer.cuda_graphs.replayable import Inputs, Replayable
from backbay_optimizer.cuda_graphs.replaying import Replayed
from backbay_optimizer.cuda_graphs.safety import refusal
from backbay_optimizer.cuda_graphs.training import Backward, Forward
from backbay_optimizer.inductor.compiling import (
    compile_graph,
    explained,
    inductor_settings,
    on_cuda,
)


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
        plain: compiles what is not replayed: graphs of other devices, say.
        name: what the compile log calls the backend.
        share: the part of a device's memory that all recordings together may hold.
        decide: whether recordings are used. Default: always.
    """
    configured = inductor_settings(mode, options)
    patches = {**configured, "triton.cudagraphs": False}
    if decide is not None and configured.get("triton.cudagraphs", _asked_for_everywhere()):
        return plain  # torch's own are asked for

    def generate(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        if not on_cuda(graph_module, example_inputs):
            return plain(graph_module, example_inputs)
        Recordings.release_stale()  # of a model that is no more, say: nothing else happens to it
        recordings = Recordings(name=name, share=share)
        decision = None
        if decide is not None:
            known = sorted((key, known_by(x)) for key, x in patches.items())
            decision = decide(graph_module, example_inputs, known, recordings)
        if decision is not None and decision.known is False:
            return plain(graph_module, example_inputs)
        # A backward may be compiled when it first runs, by the inner compiler: it comes from no
        # cache then. What a cache has is finished meanwhile.
        with explained(plain), taking_over(recordings):
            code = compile_graph(
                graph_module, example_inputs, patches, lambda x: take_over(x, recordings)
            )
        if decision is None or decision.known:
            return code
        return decision.found_by(code)

    return generate


def _asked_for_everywhere() -> bool:
    from torch._inductor import config  # noqa: PLC0415 (as late as Inductor)

    return bool(config.triton.cudagraphs)


def known_by(setting: Any) -> str:
    """Return what tells a setting apart in every process."""
    uuid = getattr(setting, "uuid", None)  # a pass in one of Inductor's hooks
    known = uuid() if callable(uuid) else None  # it may also say that it can't be told apart
    return repr(setting) if known is None else str(known)


@contextlib.contextmanager
def taking_over(recordings: Recordings) -> Iterator[None]:
    """Have all code replayed that Inductor compiles meanwhile, or finds in a cache.

    Torch calls a method of the code in both cases. Only one thread compiles at a time, since Dynamo
    has a lock; but autograd's may compile the backward of another graph meanwhile.
    """
    from torch._inductor.output_code import CompiledFxGraph  # noqa: PLC0415 (takes seconds)

    post_compile, thread = CompiledFxGraph.post_compile, threading.get_ident()

    def finish(code: CompiledFxGraph, *given: Any) -> None:
        post_compile(code, *given)
        if threading.get_ident() == thread:
            take_over(code, recordings)

    with mock.patch.object(CompiledFxGraph, "post_compile", finish):
        yield


def take_over(code: Any, recordings: Recordings) -> None:
    """Have Inductor's code replayed, if it can be and is not yet."""
    if "cuda" not in getattr(code, "device_types", ()):
        return
    if isinstance(code.current_callable, Replayable):
        return
    known = code.fx_kwargs
    fixed = tuple(known.get("static_input_idxs") or ())
    kind: type[Replayable] = Forward
    if known.get("is_inference"):
        kind = Replayed
    elif known.get("is_backward"):
        kind = Backward
    why = refusal(code)
    if why is not None:
        recordings.refuse(f"{kind.kind} has no CUDA graph: {why}")
        return
    recordings.writes |= bool(code.mutated_input_idxs)
    recordings.trains |= kind is Forward
    if kind is Backward:
        # All but the gradients that it is given: as many as the forward's last results.
        recordings.saved = len(fixed)
    inputs = Inputs(device=next(iter(code.device_idxs)), fixed=fixed)
    code.current_callable = kind(code.current_callable, inputs, recordings)
