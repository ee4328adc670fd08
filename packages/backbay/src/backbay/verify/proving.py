"""One backend on one workload: compiled once, then judged in one situation after the other."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.utils import counters

from backbay import compile_log
from backbay.messages import one_line
from backbay.proof import Outcome, Proof, Step, Verdict, Workload, observe
from backbay.registry import CompilerFn
from backbay.verify.record import ProofRecord
from backbay.verify.requests import Judged, Part, Situation, Trained
from backbay.verify.situations import (
    FIRST,
    TRAINED_EAGER,
    TRAINED_TRUE,
    Files,
    inputs_of,
    kept,
    state_of,
)
from backbay.verify.training import drift, train

_COMPILES = 256
"""How often Dynamo may compile a function again; past its own limit of 8 it runs it eagerly, and
nothing more would be seen of the backend."""
_GROUPS = {"value": "forward", "metadata": "forward", "gradient": "gradients", "mutation": "state"}


class CompiledModel:
    """A model as one backend compiled it."""

    def __init__(
        self, workload: Workload, compiler: CompilerFn, files: Files, *, train: bool, seed: int
    ) -> None:
        torch.compiler.reset()
        self._golden = files.golden(FIRST)
        self._workload = self._golden.at(workload)
        self._compiler = compiler
        self._files = files
        self._train = train
        self._seed = seed
        self._call: Callable[..., Any] | None = None

    def judged(self, situation: Situation) -> Judged:
        """Run what is compiled in a situation, and judge what it gives."""
        try:
            with room(), self._golden.context():
                return self._judged(situation)
        except Exception as error:  # noqa: BLE001 (whatever a backend raises is the result)
            return Judged(status="failed", reason=one_line(error), hands_on_to=self._hands_on_to)

    def trained(self, steps: int, rate: float) -> Trained:
        """Train freely, and return how far that leads from eager's training."""
        model = self._workload.model
        step = Step(self._workload, train=True, seed=self._seed)
        with room(), self._golden.context(), kept(model), torch.random.fork_rng():
            call = self._compiled()
            losses = tuple(train(call, step, steps=steps, rate=rate, seed=self._seed))
            own = [x.detach() for x in model.parameters()]
            eager, truth = self._files.tensors(TRAINED_EAGER), self._files.tensors(TRAINED_TRUE)
            return Trained(losses=losses, drift=drift(own, eager, truth))

    def _judged(self, situation: Situation) -> Judged:
        if self._call is None and situation != FIRST:
            self._observed(FIRST)  # it has to be compiled for that one first
        counters.clear()
        noted = len(compile_log.records())
        outcome = self._observed(situation)
        graphs = int(counters["stats"]["unique_graphs"])
        breaks = sum(counters["graph_break"].values())
        if situation == FIRST and not graphs:
            reason = "nothing was compiled: Dynamo gave the backend no graph"
            return Judged(status="not_compiled", reason=reason, breaks=breaks)
        golden = self._golden if situation == FIRST else self._files.golden(situation)
        fell = [x for x in compile_log.records()[noted:] if x.fell_back]
        return Judged(
            parts=tuple(parts(golden.judge(outcome), situation, train=self._train)),
            graphs=graphs,
            breaks=breaks,
            hands_on_to=self._hands_on_to,
            notes=tuple(dict.fromkeys(f"{x.ran} ran in its place: {x.why}" for x in fell)),
        )

    def _observed(self, situation: Situation) -> Outcome:
        call, files = self._compiled(), self._files
        train, seed = self._train, self._seed
        return run(call, self._workload, situation, files, train=train, seed=seed)

    def _compiled(self) -> Callable[..., Any]:
        if self._call is None:
            self._call = torch.compile(self._workload.model, backend=self._compiler)
        return self._call

    @property
    def _hands_on_to(self) -> str:
        codegen = getattr(self._compiler, "codegen", None)
        return codegen if isinstance(codegen, str) else ""


def run(
    call: Callable[..., Any],
    workload: Workload,
    situation: Situation,
    files: Files,
    *,
    train: bool,
    seed: int,
) -> Outcome:
    """Run a workload's model, compiled or not, in a situation."""
    with state_of(workload.model, situation, files):
        return observe(call, inputs_of(workload, situation), train=train, seed=seed)


def parts(proof: Proof, situation: Situation, *, train: bool) -> Iterator[Part]:
    """Divide a proof into checks: forward, gradients and state apart, or a situation as a whole."""
    if situation != FIRST:
        yield part(situation.name, proof.verdicts)
        return
    for check in ("forward", "gradients", "state"):
        found = tuple(x for x in proof.verdicts if _group(x, train=train) == check)
        if found:
            yield part(check, found)


def _group(verdict: Verdict, *, train: bool) -> str:
    detached = verdict.kind == "gradient" and not train
    return "forward" if detached else _GROUPS[verdict.kind]


def part(check: str, verdicts: tuple[Verdict, ...]) -> Part:
    """Return verdicts, the worst first, as one check."""
    worst = verdicts[0]
    return Part(
        check=check,
        status="right" if worst.passed else "wrong",
        reason="" if worst.passed else f"{worst.where}: {worst.reason}",
        proof=proof_record(verdicts),
    )


def proof_record(verdicts: tuple[Verdict, ...]) -> ProofRecord:
    """Return verdicts, the worst first, as the report has them."""
    worst = verdicts[0]
    return ProofRecord(
        passed=worst.passed,
        reason=worst.reason,
        kind=worst.kind,
        where=worst.where,
        severity=worst.severity,
        ratio=worst.ratio,
        worst=worst.worst,
        index=worst.index,
        ulps=worst.ulps,
        compared=len(verdicts),
    )


def room() -> contextlib.AbstractContextManager[None]:
    """Let Dynamo compile again as often as a verification needs."""
    patched: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(  # noqa: SLF001
        recompile_limit=_COMPILES
    )
    return patched
