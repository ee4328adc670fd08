"""Answers a judge's requests. No backend is ever loaded where this runs."""

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import torch

from backbay.judge.requests import (
    Compare,
    Judged,
    Keep,
    Kept,
    Piece,
    Prepare,
    Prepared,
    Reply,
    Request,
    Reveal,
    Revealed,
)
from backbay.proof import Proof, Step, Verdict, Workload, digest, evidence, unchanged
from backbay.proof.bank import Bank, make_bank
from backbay.proof.sequence import labels, mixed
from backbay.proof.state import attributes_kept
from backbay.timing.device import device_name, synchronize
from backbay.timing.memory import free_bytes, peak_bytes, reset_peak

_RANDOM = (
    "the model draws random numbers: it was proven with Inductor's fallback_random, which draws "
    "what eager draws, and timed without it"
)


class JudgeHandler:
    """Makes the reference of a workload, or keeps it and compares."""

    requests: ClassVar[Any] = Request

    def __init__(self, workload: Workload | None = None) -> None:
        self._given = workload
        self._kept: Bank | None = None

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request."""
        match request:
            case Prepare():
                return self._prepared(request)
            case Keep():
                self._kept = Bank.load(request.bank)
                Path(request.bank).unlink()  # what is mapped stays; nobody else can open it
                return Kept()
            case Reveal():
                inputs = self._bank.inputs[request.inputs]
                evidence.write_tensors({str(i): x for i, x in enumerate(inputs)}, request.path)
                return Revealed()
            case Compare():
                return _worst([(piece, self._proof(piece)) for piece in request.pieces])

    def _prepared(self, request: Prepare) -> Prepared:
        setup = request.setup
        device = torch.device(setup.device)
        given = self._workload(request)
        workload = mixed(given)
        fingerprint = digest(workload)
        peak = _eager_peak(workload, request)  # first: a golden keeps its tensors
        bank = make_bank(workload, train=setup.train, seed=setup.seed, seeds=request.seeds)
        bank.save(request.bank)
        golden = bank.goldens[0]
        return Prepared(
            workload=workload.name,
            digest=fingerprint,
            device_name=device_name(device),
            peak_bytes=peak,
            free_bytes=free_bytes(device),
            seeds=bank.seeds,
            reduced=golden.reduced,
            draws_random=golden.draws_random,
            math_attention=golden.math_attention,
            changes_state=bool(golden.eager.changed),
            state_matters=bank.state_matters,
            row=bank.row_sets,
            calls=labels(given),
            notes=(*golden.notes, *bank.notes, *([_RANDOM] if golden.draws_random else [])),
        )

    def _workload(self, request: Prepare) -> Workload:
        if self._given is not None:
            return self._given
        from backbay.workloads.loading import build  # noqa: PLC0415 (a given model needs none of it)

        return build(request.setup)

    @property
    def _bank(self) -> Bank:
        assert self._kept is not None, "who asks has had it kept"
        return self._kept

    def _proof(self, piece: Piece) -> Proof:
        golden = self._bank.golden_of(piece.inputs, picked=piece.picked, row=piece.row)
        eager = evidence.portable(golden.eager)
        if piece.timed:
            eager = dataclasses.replace(eager, parameters={})
        try:
            outcome = evidence.read(piece.path)
        except evidence.InvalidEvidence as error:
            return _unreadable(error)
        finally:
            Path(piece.path).unlink(missing_ok=True)
        if piece.timed and eager.changed:  # from which state it began, nobody knows
            eager, truth, outcome = (
                dataclasses.replace(x, changed={}) for x in (eager, golden.truth, outcome)
            )
            golden = dataclasses.replace(golden, truth=truth)
        return dataclasses.replace(golden, eager=eager).judge(outcome)


def _eager_peak(workload: Workload, request: Prepare) -> int | None:
    setup, device = request.setup, torch.device(request.setup.device)
    step = Step(workload, train=setup.train, seed=setup.seed)
    with unchanged(step), attributes_kept(workload.model):
        step(workload.model)
        reset_peak(device)
        step(workload.model)
        synchronize(device)
        return peak_bytes(device)


def _unreadable(error: Exception) -> Proof:
    reason = f"what it handed on can't be read: {error}"
    verdict = Verdict(passed=False, reason=reason, where=None, kind="metadata")
    return Proof(verdicts=(verdict,))


def _worst(proofs: list[tuple[Piece, Proof]]) -> Judged:
    piece, proof = min(proofs, key=lambda x: (x[1].passed, -x[1].worst.severity))
    worst = proof.worst
    return Judged(
        passed=proof.passed,
        reason=worst.reason,
        what=piece.what,
        where=worst.where,
        worst=worst.worst,
        # Of elements that were drawn, a position among them says nothing.
        index=worst.index if piece.picked is None else None,
        ulps=worst.ulps,
        ratio=worst.ratio,
        allowed=worst.severity if math.isfinite(worst.severity) else None,
        tensors=max(len(x.verdicts) for _, x in proofs),
    )
