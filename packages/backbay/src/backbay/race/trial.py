"""One backend's trial: compile in an empty cache, count its graphs, prove what it computes."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import counters

from backbay.proof import Golden, Proof, Step, Workload, observe, unchanged
from backbay.race.record import VerdictRecord
from backbay.race.requests import Tried
from backbay.registry import CompilerFn
from backbay.timing.device import synchronize
from backbay.timing.memory import peak_bytes, reset_peak

EAGER = "eager"
"""The uncompiled model. (torch's debug backend of that name adds Dynamo to it.)"""


def compiled(model: torch.nn.Module, compiler: str | CompilerFn | None) -> Callable[..., Any]:
    """Return the model as a backend runs it; ``None`` is eager."""
    if compiler is None:
        return model
    call: Callable[..., Any] = torch.compile(model, backend=compiler)
    return call


def warm_up_toolchain(compiler: str | CompilerFn, device: torch.device, *, train: bool) -> float:
    """Compile a trivial function, so that what a toolchain does once is not charged to the model.

    Returns:
        Seconds that it took. A failure says nothing of the model, and is not reported.
    """
    start = time.perf_counter()
    with contextlib.suppress(Exception):
        function = torch.compile(lambda x: x + 1, backend=compiler)
        result = function(torch.ones(8, device=device, requires_grad=train))
        if train:
            result.sum().backward()
    synchronize(device)
    torch._dynamo.reset()  # noqa: SLF001 (torch.compiler.reset is this, since 2.1)
    return time.perf_counter() - start


@dataclass
class Trial:
    """What is measured of one backend before it is timed."""

    workload: Workload
    device: torch.device
    train: bool
    seed: int
    compiler: str | CompilerFn | None
    notes: list[str] = field(default_factory=list)

    def run(self, golden: Golden) -> Tried:
        """Compile, count and prove.

        Whatever the backend raises is raised: the caller knows what a failure means.
        """
        warmup_s = self._warm_up()
        call = compiled(self.workload.model, self.compiler)
        step = Step(self.workload, train=self.train, seed=self.seed)
        with unchanged(step):  # the proof starts from the state that the reference started from
            compile_s, compile_peak = self._first_call(step, call)
            graphs, breaks = _counted()
            run_peak = self._second_call(step, call)
        self._note_recompiles(graphs)
        measured: dict[str, Any] = {
            "warmup_s": warmup_s,
            "compile_s": compile_s if self.compiler is not None else None,
            "compile_peak_bytes": compile_peak if self.compiler is not None else None,
            "peak_bytes": run_peak,
            "graphs": graphs if self.compiler is not None else None,
            "breaks": breaks if self.compiler is not None else None,
        }
        if self.compiler is not None and graphs == 0:
            reason = "Dynamo captured no graph, so this backend compiled nothing"
            return Tried(status="failed", reason=reason, notes=tuple(self.notes), **measured)
        return self._judged(golden, call, measured)

    def _warm_up(self) -> float | None:
        if self.compiler is None:
            return None
        return warm_up_toolchain(self.compiler, self.device, train=self.train)

    def _first_call(self, step: Step, call: Callable[..., Any]) -> tuple[float, int | None]:
        counters.clear()
        reset_peak(self.device)
        start = time.perf_counter()
        step(call)
        synchronize(self.device)
        return time.perf_counter() - start, peak_bytes(self.device)

    def _second_call(self, step: Step, call: Callable[..., Any]) -> int | None:
        reset_peak(self.device)
        step(call)
        synchronize(self.device)
        return peak_bytes(self.device)

    def _note_recompiles(self, graphs: int) -> None:
        again = _counted()[0] - graphs
        if again > 0 and self.compiler is not None:
            self.notes.append(f"compiled {again} more graph(s) on the second call")

    def _judged(self, golden: Golden, call: Callable[..., Any], measured: dict[str, Any]) -> Tried:
        with golden.context():
            if golden.draws_random or golden.reduced:
                # The proof needs other random draws, or other shapes, than what is timed: a fresh
                # compile keeps Dynamo from making the sizes symbolic because they changed.
                torch._dynamo.reset()  # noqa: SLF001
                call = compiled(self.workload.model, self.compiler)
            workload = golden.at(self.workload)
            proof = golden.judge(observe(call, workload, train=self.train, seed=self.seed))
        verdict = verdict_record(proof)
        return Tried(
            status="ok" if proof.passed else "wrong",
            reason="" if proof.passed else verdict.reason,
            verdict=verdict,
            notes=tuple(self.notes),
            **measured,
        )


def verdict_record(proof: Proof) -> VerdictRecord:
    """Return a proof as the report has it."""
    worst = proof.worst
    return VerdictRecord(
        passed=proof.passed,
        reason=worst.reason,
        where=worst.where,
        worst=worst.worst,
        index=worst.index,
        ulps=worst.ulps,
        ratio=worst.ratio,
        tensors=len(proof.verdicts),
    )


def _counted() -> tuple[int, int]:
    graphs = int(counters["stats"]["unique_graphs"])
    return graphs, sum(counters["graph_break"].values())
