"""Holds programs that are compiled with passes against eager and float64 truth."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from backbay.kit import Backend, Pass, collected
from backbay.proof import Golden, Workload, make_golden, observe
from backbay_conformance.case import Failed
from backbay_conformance.fuzz.building import built, inputs_of
from backbay_conformance.fuzz.program import Program
from backbay_conformance.subject import message_of, raise_if_wrong


@dataclass(kw_only=True)
class Held:
    """What became of a program."""

    wrong: str = ""
    """In which way it is; empty where it is right."""
    skipped: str = ""
    """Why there is nothing to compare with."""
    changes: Counter[str] = field(default_factory=Counter)
    """Of each pass."""
    near: list[str] = field(default_factory=list)
    """Why passes left something alone."""


def hold(program: Program, passes: tuple[Pass, ...], codegen: str) -> Held:
    """Compile a program with passes, and hold all that its calls give to the rule.

    It is called twice at each of its sizes, and what it owns changes before the second time.
    """
    held, module = Held(), built(program)
    torch.compiler.reset()
    backend: Any = type("Tried", (Backend,), {"passes": passes, "codegen": codegen})()
    call = torch.compile(module, backend=backend, dynamic=program.dynamic)
    for n, again in itertools.product(program.sizes, (False, True)):
        if again:
            _change(module)
        workload = Workload(module, inputs_of(program, n, torch.device("cpu")))
        try:
            golden = make_golden(workload, train=program.train)
        except Exception as error:  # noqa: BLE001 (eager or float64 refuses it, in whichever way)
            held.skipped = message_of(error)
            return held
        with golden.context(), collected() as reports:
            held.wrong = _wrong(golden, call, workload, train=program.train)
        for report in reports:
            held.changes[report.name] += report.changes
            held.near += [x.reason for x in report.near]
        if held.wrong:
            return held
    return held


def _change(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for x in (*module.parameters(), *module.buffers()):
            x.mul_(0.9)


def _wrong(golden: Golden, call: Callable[..., Any], workload: Workload, *, train: bool) -> str:
    try:
        outcome = observe(call, workload, train=train, seed=0)
    except Exception as error:  # noqa: BLE001 (whatever a backend raises is a find)
        return f"it raises {type(error).__name__}: {message_of(error)}"
    try:
        raise_if_wrong(golden.judge(outcome))
    except Failed as error:
        return f"{error.status}: {error}"
    return ""
