"""Holds what backends gave against what is kept, in a process in which no backend was loaded."""

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch

from backbay.proof import Golden, Proof, Verdict, evidence
from backbay.proof.bank import Bank
from backbay.verify.record import CheckRecord, ProofRecord
from backbay.verify.situations import FIRST, TRAINED_EAGER, TRAINED_TRUE, drift
from backbay.verify.weighing_requests import (
    Drift,
    Drifted,
    Keep,
    KeepOne,
    Kept,
    Reply,
    Request,
    Reveal,
    Weigh,
    WeighCalls,
    Weighed,
)
from backbay.workloads.setup import Mode

_GROUPS = {"value": "forward", "metadata": "forward", "gradient": "gradients", "mutation": "state"}


class WeighingHandler:
    """Keeps goldens, which no other process can open any more, and compares."""

    requests: ClassVar[Any] = Request

    def __init__(self) -> None:
        self._goldens: dict[tuple[Mode, str], Golden] = {}
        self._banks: dict[Mode, Bank] = {}
        self._trained: dict[tuple[Mode, str], list[torch.Tensor]] = {}

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request."""
        match request:
            case Keep():
                self._keep(request)
                return Kept()
            case KeepOne():
                self._goldens[request.mode, request.name] = Golden.load(request.path)
                _unlink(request.path)
                return Kept()
            case Reveal():
                inputs = self._banks[request.mode].inputs[request.inputs]
                evidence.write_tensors({str(i): x for i, x in enumerate(inputs)}, request.path)
                return Kept()
            case Weigh():
                return Weighed(checks=self._weighed(request))
            case WeighCalls():
                return Weighed(checks=(self._worst(request),))
            case Drift():
                return Drifted(drift=self._drift(request))

    def _keep(self, request: Keep) -> None:
        mode = request.mode
        self._banks[mode] = bank = Bank.load(request.bank)
        self._goldens[mode, FIRST.name] = bank.goldens[0]
        _unlink(request.bank)
        for name, path in request.goldens:
            if name in {TRAINED_EAGER, TRAINED_TRUE}:
                loaded = torch.load(path, mmap=True, map_location="cpu", weights_only=True)
                self._trained[mode, name] = list(loaded)
            else:
                self._goldens[mode, name] = Golden.load(path)
            _unlink(path)  # what is mapped stays; nobody else can open it

    def _weighed(self, request: Weigh) -> tuple[CheckRecord, ...]:
        """Divide a proof into checks: forward, gradients and state apart, or it as a whole."""
        mode = request.mode
        proof = _proof(self._goldens[mode, request.golden], request.path)
        if not request.divided:
            return (_check(mode, request.check, proof.verdicts),)
        # Without training, a gradient is what detached tensors must not have: part of the forward.
        groups = _GROUPS if mode == "train" else _GROUPS | {"gradient": "forward"}
        by_check = {
            check: tuple(x for x in proof.verdicts if groups[x.kind] == check)
            for check in ("forward", "gradients", "state")
        }
        return tuple(_check(mode, check, found) for check, found in by_check.items() if found)

    def _worst(self, request: WeighCalls) -> CheckRecord:
        bank = self._banks[request.mode]
        found = []
        for piece in request.pieces:
            golden = bank.golden_of(piece.inputs, picked=piece.picked, row=piece.row)
            check = _check(request.mode, request.check, _proof(golden, piece.path).verdicts)
            found.append((check, piece.what))
        worst, what = max(found, key=_severity)
        if worst.status == "right":
            return worst
        return msgspec.structs.replace(worst, reason=f"{worst.reason} ({what})")

    def _drift(self, request: Drift) -> float | None:
        usual, truth = (self._trained[request.mode, x] for x in (TRAINED_EAGER, TRAINED_TRUE))
        try:
            own = evidence.read_tensors(request.path)
            return drift([own[str(i)] for i in range(len(truth))], usual, truth)
        except (evidence.InvalidEvidence, KeyError, RuntimeError):
            return None
        finally:
            _unlink(request.path)


def _proof(golden: Golden, path: str) -> Proof:
    """Judge what is in a file, and remove it."""
    try:
        outcome = evidence.read(path)
    except evidence.InvalidEvidence as error:
        reason = f"what it handed on can't be read: {error}"
        verdict = Verdict(passed=False, reason=reason, where=None, kind="metadata")
        return Proof(verdicts=(verdict,))
    finally:
        _unlink(path)
    return dataclasses.replace(golden, eager=evidence.portable(golden.eager)).judge(outcome)


def _severity(found: tuple[CheckRecord, str]) -> tuple[bool, float]:
    check, _ = found
    severity = check.proof.severity if check.proof is not None else None
    return check.status != "right", math.inf if severity is None else severity


def _check(mode: Mode, name: str, verdicts: tuple[Verdict, ...]) -> CheckRecord:
    """Return verdicts, the worst first, as one check."""
    worst = verdicts[0]
    where = f"{worst.where}: " if worst.where else ""
    return CheckRecord(
        mode=mode,
        check=name,
        status="right" if worst.passed else "wrong",
        reason="" if worst.passed else f"{where}{worst.reason}",
        proof=ProofRecord(
            passed=worst.passed,
            reason=worst.reason,
            kind=worst.kind,
            where=worst.where,
            severity=worst.severity if math.isfinite(worst.severity) else None,
            ratio=worst.ratio if worst.ratio is None or math.isfinite(worst.ratio) else None,
            worst=worst.worst,
            index=worst.index,
            ulps=worst.ulps,
            compared=len(verdicts),
        ),
    )


def _unlink(path: str) -> None:
    Path(path).unlink(missing_ok=True)
