"""A row says in words why its arm is slower than it could be."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from backbay.race import Limits, run, slowness
from backbay.race.table import table

FAULTY = Path(__file__).with_name("faulty.py")
QUICK = Limits(backend_s=120.0, timing_s=0.3)


def drawn(report):
    file = io.StringIO()
    Console(file=file, width=400).print(table(report))
    return file.getvalue()


@pytest.fixture(autouse=True)
def watched():
    torch.compiler.reset()
    slowness.forget()
    yield
    torch.compiler.reset()


def test_a_guard_that_failed_is_told_without_its_reason_or_its_line():
    call = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    for size in (2, 3, 4, 5):
        call(torch.ones(size))
    first, second, more = slowness.reasons()
    assert first.startswith("compiled <lambda> (test_slowness.py:")
    assert first.endswith("again: the size of x's dimension 0 changed from 2 to 3")
    assert second.endswith("again: the size of x's dimension 0 changed from 3 to 4")
    assert more == "compiled again 3 times in all"


def test_many_compilations_are_no_matter_of_torchs_limit():
    with torch._dynamo.config.patch(recompile_limit=64):
        call = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
        for size in range(2, 12):
            call(torch.ones(size))
    *_, last = slowness.reasons()
    assert "raise torch._dynamo.config.recompile_limit" in last


def test_what_runs_well_has_reasons():
    call = torch.compile(lambda x: x + 1, backend="eager")
    call(torch.ones(2))
    call(torch.ones(2))
    assert list(slowness.reasons()) == []


@pytest.mark.slow
def test_breaks_and_recompilations_are_numbers_without_a_word(here):
    workloads = [f"{FAULTY}:broken", f"{FAULTY}:counting"]
    report = run(workloads, backends=[f"{FAULTY}:honest"], device="cpu", limits=QUICK)
    broken, counting = (x for x in report.results if x.backend != "eager")
    assert broken.slow[0].startswith("1 graph break, where the model runs uncompiled: ")
    assert "graph_break" in broken.slow[0]
    assert (broken.breaks, counting.breaks) == (1, 0)
    assert counting.slow[0].startswith("compiled forward (faulty.py:"), counting
    text = drawn(report)
    assert "1 graph break, where the model runs uncompiled" in text
    assert f"see backbay explain {FAULTY}:broken --backend {FAULTY}:honest" in text
