"""One arm's trial: compile in an empty cache, count its graphs, call it for a judge."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.fx import GraphModule

from backbay import compile_log
from backbay.decisions.place import place_on
from backbay.graph.region import captured_digest
from backbay.judge import process_state
from backbay.judge.runs import Ran, Runs
from backbay.proof import Workload
from backbay.proof.bank import Inputs
from backbay.proof.dispatched import counting
from backbay.proof.golden import proof_context
from backbay.proof.outcome import unchanged
from backbay.proof.shrink import shrunk
from backbay.race import ownership, slowness
from backbay.race.compiler import Compiler
from backbay.race.record import AS_IT_IS, LeftToTorch
from backbay.race.requests import Captured, Finished, Proving
from backbay.race.scopes import InPlace
from backbay.registry import CompilerFn

_MEASURED = 2
"""Calls of which more than the result is of interest: one compiles, one is warm."""


class Trial:
    """What is measured and seen of one backend before it is timed."""

    def __init__(
        self,
        workload: Workload,
        device: torch.device,
        compiler: Compiler,
        proving: Proving,
        before: process_state.State,
        *,
        train: bool,
        seed: int,
    ) -> None:
        self._before = before
        self._workload = workload
        self._device = device
        self._watched = _Watched(compiler.backend) if callable(compiler.backend) else None
        self._compiler = replace(compiler, backend=self._watched or compiler.backend)
        self._proving = proving
        self._train = train
        self._call: Callable[..., Any] | None = None
        self._measured: list[Ran] = []
        self._graphs: list[int] = []
        self._warmup_s = self._warm_up()
        self._runs = Runs(workload, device, train=train, seed=seed)

    def call(self, inputs: Inputs | None, *, fresh: bool) -> None:
        """Call once; the first time compiles."""
        if len(self._measured) < _MEASURED:
            if not self._proving.apart:
                self._measure(inputs, fresh=fresh)
                return
            for _ in range(_MEASURED):
                self._measure(None, fresh=False)
            self._get_ready_apart()
        with self._context():
            self._runs.call(self._compiled(), inputs, fresh=fresh)

    def call_in_a_row(self, sets: Sequence[Inputs | None]) -> None:
        """Call once with each set of inputs, each from the state that the last one left."""
        with self._context():
            self._runs.call_in_a_row(self._compiled(), sets)

    def hand(self, path: Any, picked: int | None) -> None:
        """Write what the last call gave to a file."""
        self._runs.hand(path, picked)

    def finished(self) -> Finished:
        """Return what was measured, and what only this process can see."""
        if self._runs.writes_attributes:  # they are put back before each call that is judged
            with self._context():
                self._runs.call_as_in_use(self._compiled(), _MEASURED)
        slow, breaks = tuple(slowness.reasons()), slowness.breaks()
        first, second = self._measured
        graphs, again = self._graphs
        notes = []
        if again > graphs:
            notes.append(f"compiled {again - graphs} more graph(s) on the second call")
        with self._context():
            fault = self._runs.fault(self._compiled(), self._before) if graphs else ""
        after = process_state.state()
        left = self._left_to_torch()
        return Finished(
            warmup_s=self._warmup_s,
            compile_s=first.seconds,
            compile_peak_bytes=first.peak_bytes,
            peak_bytes=second.peak_bytes,
            graphs=graphs,
            breaks=breaks,
            notes=(*notes, *self._seen()),
            left_to_torch=left,
            slow=slow,
            fault=fault,
            disturbs=process_state.changed(self._before, after),
            outputs_live="next_call" if self._runs.says_overwritten else None,
        )

    def captured(self) -> Captured:
        """Return the graphs that a backend is handed, and where; what was compiled is gone then.

        Dynamo captures them once more: to watch a backend of torch's own would be to change it.
        """
        found: list[str] = []

        def look(graph_module: GraphModule, _: Any) -> Callable[..., Any]:
            found.append(captured_digest(graph_module))
            return graph_module.forward

        if self._proving.apart:
            self._runs = Runs(
                self._workload, self._device, train=self._train, seed=self._runs.step.seed
            )
        torch._dynamo.reset()  # noqa: SLF001
        looking = Compiler(backend=look, keywords={"dynamic": self._compiler.keywords["dynamic"]})
        self._runs.call(looking.applied(self._workload.model), None, fresh=False)
        return Captured(graphs=tuple(dict.fromkeys(found)), place=place_on(self._device))

    def _warm_up(self) -> float:
        """Return the seconds of what is done once a process, and forget what it compiled."""
        seconds = self._compiler.warm_up(self._device, train=self._train)
        torch._dynamo.reset()  # noqa: SLF001 (torch.compiler.reset is this, since 2.1)
        if self._watched is not None:
            self._watched.graphs.clear()
        return seconds

    def _measure(self, inputs: Inputs | None, *, fresh: bool) -> None:
        if not self._measured:
            slowness.forget()
        self._measured.append(self._runs.call(self._compiled(), inputs, fresh=fresh))
        self._graphs.append(int(counters["stats"]["unique_graphs"]))

    def _get_ready_apart(self) -> None:
        """Have another form compiled, of other random draws or shapes than what is timed.

        Dynamo is reset: sizes must not become symbolic because they changed.
        """
        torch._dynamo.reset()  # noqa: SLF001
        self._call = None
        workload = self._runs.step.workload
        if self._proving.reduced:
            workload = shrunk(workload, train=self._train)
        self._runs = Runs(workload, self._device, train=self._train, seed=self._runs.step.seed)

    def _context(self) -> contextlib.AbstractContextManager[None]:
        return proof_context(
            draws_random=self._proving.draws_random, math_attention=self._proving.math_attention
        )

    def _compiled(self) -> Callable[..., Any]:
        if self._call is None:
            self._call = self._compiler.applied(self._runs.step.workload.model)
        return self._call

    def _left_to_torch(self) -> LeftToTorch | None:
        """Return what the backend leaves to torch's kernels; it is called once more to see it."""
        if not ownership.can_be_told():
            return None
        step = self._runs.step
        try:
            with unchanged(step), self._context(), counting() as eager:
                step(step.workload.model)
            with unchanged(step), self._context(), counting() as own:
                step(self._compiled())
        except Exception:  # noqa: BLE001 (it was right without a mode: nothing is known of this)
            return None
        finally:
            self._runs.put_state()
        return ownership.left_to_torch(eager, own)

    def _seen(self) -> Iterator[str]:
        """Yield what was compiled, if not all, and what the backend left to others."""
        if isinstance(self._call, InPlace):
            yield self._call.words
        graphs = self._watched.graphs if self._watched is not None else []
        if graphs and all(graphs):
            yield AS_IT_IS
        elif any(graphs):
            yield f"{AS_IT_IS}, in {sum(graphs)} of {len(graphs)} graphs"
        fell = [x for x in compile_log.records() if x.fell_back]
        yield from dict.fromkeys(f"{x.ran} ran in its place: {x.why}" for x in fell)


class _Watched:
    """A compiler function, and whether it returns each graph as it was given."""

    def __init__(self, compiler: CompilerFn) -> None:
        self._compiler = compiler
        self.graphs: list[bool] = []
        functools.update_wrapper(self, compiler, updated=())

    def __call__(self, graph_module: GraphModule, example_inputs: Any, **options: Any) -> Any:
        given = _operators(graph_module)
        made = self._compiler(graph_module, example_inputs, **options)
        owner = getattr(made, "__self__", made)
        self.graphs.append(isinstance(owner, GraphModule) and _operators(owner) == given)
        return made

    def reset(self) -> None:
        """Hand on what torch.compiler.reset asks."""
        if hasattr(self._compiler, "reset"):
            self._compiler.reset()


def _operators(graph_module: GraphModule) -> list[Any]:
    return [(n.op, n.target) for n in graph_module.graph.nodes if n.op.startswith("call")]
