"""One backend on one workload: compiled once, then run in one situation after the other.

What it gives goes to files. This process, in which the backend runs, says nothing of whether it is
right.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import clear_compilation_metrics, counters

from backbay import compile_log
from backbay.causes import one_line
from backbay.judge import process_state
from backbay.judge.runs import Runs
from backbay.proof import Step, evidence
from backbay.proof.bank import Inputs
from backbay.reporting.breaks import BreakCounter
from backbay.verify.requests import Again, AgainInARow, Finished, Gave, Situation, Trained
from backbay.verify.situations import FIRST, Situations, kept, room, train


class CompiledModel:
    """A model as one backend compiled it."""

    def __init__(self, situations: Situations, look_up: Callable[[], dict[str, Any]]) -> None:
        torch.compiler.reset()
        self._situations = situations
        self._before = process_state.state()  # it may be changed when a backend is imported
        asked, course = look_up(), situations.course
        self._call = torch.compile(
            situations.workload.model, dynamic=course.dynamic, fullgraph=course.fullgraph, **asked
        )
        self._runs: Runs | None = None
        self._is_fresh = True
        codegen = getattr(asked["backend"], "codegen", None)
        self._hands_on_to = codegen if isinstance(codegen, str) else ""

    def given(self, situation: Situation, path: str) -> Gave:
        """Run what is compiled in a situation, and write what it gives to a file."""
        try:
            with room(), self._situations.context():
                return self._given(situation, path)
        except Exception as error:  # noqa: BLE001 (whatever a backend raises is the result)
            return Gave(status="failed", reason=one_line(error), hands_on_to=self._hands_on_to)

    def again(self, request: Again) -> None:
        """Call what is compiled once more, as in the first situation."""
        with room(), self._situations.context():
            self._repeated.call(self._call, self._read(request.inputs), fresh=request.fresh)

    def again_in_a_row(self, request: AgainInARow) -> None:
        """Call what is compiled once with each set of inputs."""
        with room(), self._situations.context():
            self._repeated.call_in_a_row(self._call, [*map(self._read, request.inputs)])

    def hand(self, path: str, picked: int | None) -> None:
        """Write what the last such call gave to a file."""
        self._repeated.hand(Path(path), picked)

    def finished(self) -> Finished:
        """Return what only this process can see: memory that is written anew, a state that is left.

        It is asked after the last call.
        """
        runs = self._repeated
        with room(), self._situations.context():
            fault = runs.fault(self._call, self._before)
        self._runs = None  # it keeps outputs
        notes = []
        if runs.says_overwritten:
            notes.append("its outputs live until the next call, and torch says so of those read")
        changes = process_state.changed(self._before, process_state.state())
        if changes:
            notes.append(f"changed for everybody in its process: {', '.join(changes)}")
        return Finished(fault=fault, notes=tuple(notes))

    def trained(self, steps: int, rate: float, path: str) -> Trained:
        """Train freely, and write the parameters that it ends at to a file."""
        found, model = self._situations, self._situations.workload.model
        step = Step(found.workload, train=True, seed=found.seed)
        with room(), found.context(), kept(model), torch.random.fork_rng():
            losses = tuple(train(self._call, step, steps=steps, rate=rate, seed=found.seed))
            own = {str(i): x.detach() for i, x in enumerate(model.parameters())}
            evidence.write_tensors(own, path)
            return Trained(losses=losses)

    def _read(self, path: str | None) -> Inputs | None:
        """Return the values of one set of inputs; None stands for the workload's own."""
        if path is None:
            return None
        tensors = evidence.read_tensors(path)
        return tuple(tensors[str(i)].to(self._device) for i in range(len(tensors)))

    @property
    def _device(self) -> torch.device:
        return torch.device(self._situations.course.setup.device)

    @property
    def _repeated(self) -> Runs:
        if self._runs is None:
            found = self._situations
            self._runs = Runs(found.workload, self._device, train=found.train, seed=found.seed)
        return self._runs

    def _given(self, situation: Situation, path: str) -> Gave:
        fresh, self._is_fresh = self._is_fresh, False
        if fresh and situation != FIRST:
            self._situations.observe(self._call, FIRST)  # it has to be compiled for that one first
        counters.clear()
        clear_compilation_metrics()
        noted = len(compile_log.records())
        counter = BreakCounter()
        with counter.on():
            outcome = self._situations.observe(self._call, situation)
        graphs = int(counters["stats"]["unique_graphs"])
        breaks = len(counter.breaks())
        logged = compile_log.records()[noted:]
        if situation == FIRST:
            reason = _nothing_seen(graphs, logged)
            if reason:
                return Gave(status="not_compiled", reason=reason, breaks=breaks)
        evidence.write(outcome, path)
        return Gave(
            graphs=graphs,
            breaks=breaks,
            hands_on_to=self._hands_on_to,
            notes=tuple(dict.fromkeys(_left(logged))),
        )


def _nothing_seen(graphs: int, logged: Sequence[compile_log.Record]) -> str:
    """Return why nothing of the backend was seen; empty where something was."""
    if not graphs:
        return "nothing was compiled: Dynamo gave the backend no graph"
    counted = [x for x in logged if x.owned is not None]
    if counted and not any(x.owned for x in counted):
        return f"the backend runs no operator of the model: {'; '.join(_left(counted))}"
    return ""


def _left(logged: Sequence[compile_log.Record]) -> Iterator[str]:
    """Yield what the backend left to another."""
    for record in logged:
        if record.fell_back:
            yield f"{record.ran} ran in its place: {record.why}"
        elif record.owned is not None and record.owned < record.nodes:
            yield record.why
