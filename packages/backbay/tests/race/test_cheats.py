"""A backend that is right only while it is looked at is called wrong, and an honest one isn't."""

import runpy
from pathlib import Path

import pytest
import torch

from backbay.race import Limits, run

FILE = Path(__file__).with_name("cheats.py")
CHEATS, HONEST = (runpy.run_path(str(FILE))[x] for x in ("CHEATS", "HONEST"))
SMALL = f"{Path(__file__).with_name('faulty.py')}:small"
QUICK = Limits(backend_s=120.0, timing_s=0.3)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _nothing_leaks():
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

    while _get_current_dispatch_mode_stack():
        _pop_mode()


def raced(*names, **options):
    report = run(
        SMALL, backends=[f"{FILE}:{x}" for x in names], device="cpu", limits=QUICK, **options
    )
    return report, {x.backend.rpartition(":")[2]: x for x in report.results}


@pytest.mark.parametrize("name", sorted(CHEATS))
def test_no_cheat_is_right(here, name):
    report, rows = raced(name)
    assert rows[name].status in ("wrong", "failed"), rows[name]
    assert rows[name].median_ms is None
    assert report.decision[0].winner == "eager"


@pytest.mark.parametrize("train", [False, True])
def test_who_is_honest_is_right(here, train):
    _, rows = raced(*HONEST, train=train)
    for name in HONEST:
        assert rows[name].status == "ok", rows[name]
        assert rows[name].verdict.calls == 15
    assert "runs the captured graph as it is" in rows["graph_as_it_is"].notes
    assert "runs the captured graph as it is" not in rows["copies_its_outputs"].notes
