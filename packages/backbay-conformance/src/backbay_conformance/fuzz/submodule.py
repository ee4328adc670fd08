"""A program called by another module must give what it gives alone."""

import dataclasses
from typing import Any

import torch

from backbay.proof import Outcome, Workload, observe
from backbay_conformance.fuzz.building import built, inputs_of
from backbay_conformance.fuzz.holding import reference_at
from backbay_conformance.fuzz.pairing import judge_alike, pair_at
from backbay_conformance.subject import Subject


class Outer(torch.nn.Module):
    """Calls a module, and does nothing else."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        """Call it."""
        return self.inner(*args)


def held_inside(number: int, subject: Subject) -> None:
    """Compile a program alone and inside another module, and compare.

    Raises:
        Failed: they differ.
    """
    program, _ = pair_at("graph_break_changes_result", number)
    n = program.sizes[0]
    found = []
    for wrapped in (False, True):
        torch.compiler.reset()
        inner = built(program).to(subject.device)
        model = Outer(inner) if wrapped else inner
        workload = Workload(model, inputs_of(program, n, subject.device))
        call = subject.compile(workload.model, dynamic=program.dynamic)
        found.append(
            _plainly_named(observe(call, workload, train=program.train, seed=subject.seed))
        )
    alone = Workload(built(program).to(subject.device), inputs_of(program, n, subject.device))
    golden = reference_at(subject, alone, program)
    judge_alike(subject, found[0], found[1], golden)


def _plainly_named(outcome: Outcome) -> Outcome:
    """Call the inner module's buffers and parameters as if it were alone."""
    return dataclasses.replace(
        outcome,
        gradients={x.replace("inner.", ""): y for x, y in outcome.gradients.items()},
        changed={x.replace("inner.", ""): y for x, y in outcome.changed.items()},
    )
