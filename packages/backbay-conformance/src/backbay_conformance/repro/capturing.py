"""The graphs that Dynamo gives a backend for a case, and what they are called with.

Dynamo gives every backend the same graphs. So one that runs them as they are is put in the place of
the one that fails, which then can neither crash nor hang here.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from backbay_conformance.case import Case
from backbay_conformance.handler import CaseHandler
from backbay_conformance.requests import SuiteSetup
from backbay_conformance.running import run_case
from backbay_conformance.suite import collected


@dataclass(frozen=True, kw_only=True)
class Captured:
    """One graph, and the inputs of its first call."""

    graph_module: torch.fx.GraphModule
    inputs: tuple[Any, ...]


def case_of(setup: SuiteSetup, case_id: str) -> Case:
    """Return a case by its id."""
    cases = collected(torch.device(setup.device).type, setup.levels, all_samples=setup.all_samples)
    return cases[case_id]


def captured(setup: SuiteSetup, case: Case) -> list[Captured]:
    """Run a case, and return its graphs in the order in which they were called."""
    found: list[Captured] = []

    def capture(graph_module: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        kept = copy.deepcopy(graph_module)
        called = False

        def call(*args: Any) -> Any:
            nonlocal called
            if not called:
                called = True
                found.append(Captured(graph_module=kept, inputs=tuple(map(copied, args))))
            return graph_module.forward(*args)

        return call

    handler = CaseHandler(capture)
    handler.prepare(setup)
    run_case(case, handler.subject())
    return found


def copied(value: Any) -> Any:
    """Copy an input of a graph as a leaf, laid out in memory as it was."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        copy_of = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
        if all(value.stride()) or not value.numel():
            copy_of.copy_(value)
        else:
            copy_of = value.detach().clone()
    return copy_of.requires_grad_(value.requires_grad)
