"""One backend on one workload: compiled once, then judged in one situation after the other."""

import torch
from torch._dynamo.utils import counters

from backbay import compile_log
from backbay.causes import one_line
from backbay.proof import Proof, Step, Verdict
from backbay.registry import CompilerFn
from backbay.verify.record import CheckRecord, ProofRecord
from backbay.verify.requests import Judged, Situation, Trained
from backbay.verify.situations import (
    FIRST,
    TRAINED_EAGER,
    TRAINED_TRUE,
    Situations,
    drift,
    kept,
    room,
    train,
)
from backbay.workloads.setup import Mode

_GROUPS = {"value": "forward", "metadata": "forward", "gradient": "gradients", "mutation": "state"}


class CompiledModel:
    """A model as one backend compiled it."""

    def __init__(self, situations: Situations, compiler: CompilerFn) -> None:
        torch.compiler.reset()
        self._situations = situations
        self._golden = situations.golden(FIRST)
        self._call = torch.compile(situations.workload.model, backend=compiler)
        self._is_fresh = True
        codegen = getattr(compiler, "codegen", None)
        self._hands_on_to = codegen if isinstance(codegen, str) else ""

    def judged(self, situation: Situation) -> Judged:
        """Run what is compiled in a situation, and judge what it gives."""
        try:
            with room(), self._golden.context():
                return self._judged(situation)
        except Exception as error:  # noqa: BLE001 (whatever a backend raises is the result)
            return Judged(status="failed", reason=one_line(error), hands_on_to=self._hands_on_to)

    def trained(self, steps: int, rate: float) -> Trained:
        """Train freely, and return how far that leads from eager's training."""
        found, model = self._situations, self._situations.workload.model
        step = Step(found.workload, train=True, seed=found.seed)
        with room(), self._golden.context(), kept(model), torch.random.fork_rng():
            losses = tuple(train(self._call, step, steps=steps, rate=rate, seed=found.seed))
            own = [x.detach() for x in model.parameters()]
            eager, truth = found.tensors(TRAINED_EAGER), found.tensors(TRAINED_TRUE)
            return Trained(losses=losses, drift=drift(own, eager, truth))

    def _judged(self, situation: Situation) -> Judged:
        fresh, self._is_fresh = self._is_fresh, False
        if fresh and situation != FIRST:
            self._situations.observe(self._call, FIRST)  # it has to be compiled for that one first
        counters.clear()
        noted = len(compile_log.records())
        outcome = self._situations.observe(self._call, situation)
        graphs = int(counters["stats"]["unique_graphs"])
        breaks = sum(counters["graph_break"].values())
        if situation == FIRST and not graphs:
            reason = "nothing was compiled: Dynamo gave the backend no graph"
            return Judged(status="not_compiled", reason=reason, breaks=breaks)
        golden = self._golden if situation == FIRST else self._situations.golden(situation)
        found = _checks(golden.judge(outcome), situation, self._situations)
        fell = [x for x in compile_log.records()[noted:] if x.fell_back]
        return Judged(
            checks=found,
            status=next((x.status for x in found if x.status != "right"), "right"),
            graphs=graphs,
            breaks=breaks,
            hands_on_to=self._hands_on_to,
            notes=tuple(dict.fromkeys(f"{x.ran} ran in its place: {x.why}" for x in fell)),
        )


def _checks(proof: Proof, situation: Situation, situations: Situations) -> tuple[CheckRecord, ...]:
    """Divide a proof into checks: forward, gradients and state apart, or a situation as a whole."""
    mode = situations.course.setup.mode
    if situation != FIRST:
        return (check_of(mode, situation.name, proof.verdicts),)
    # Without training, a gradient is what detached tensors must not have: part of the forward.
    groups = _GROUPS if situations.train else _GROUPS | {"gradient": "forward"}
    by_check = {
        check: tuple(x for x in proof.verdicts if groups[x.kind] == check)
        for check in ("forward", "gradients", "state")
    }
    return tuple(check_of(mode, check, found) for check, found in by_check.items() if found)


def check_of(mode: Mode, check: str, verdicts: tuple[Verdict, ...]) -> CheckRecord:
    """Return verdicts, the worst first, as one check."""
    worst = verdicts[0]
    return CheckRecord(
        mode=mode,
        check=check,
        status="right" if worst.passed else "wrong",
        reason="" if worst.passed else f"{worst.where}: {worst.reason}",
        proof=ProofRecord(
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
        ),
    )
