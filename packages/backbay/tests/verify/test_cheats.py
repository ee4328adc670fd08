"""A backend that is right only where it thinks that somebody looks is called wrong."""

import runpy
from pathlib import Path

import pytest
import torch

import backbay
from backbay.verify import Limits, run

RACE = Path(__file__).parents[1] / "race"
FILE, HOSTILE = RACE / "cheats.py", RACE / "hostile.py"
CHEATS, HONEST = (runpy.run_path(str(FILE))[x] for x in ("CHEATS", "HONEST"))
SMALL = f"{RACE / 'faulty.py'}:small"
QUICK = Limits(check_s=120.0, blame_s=0)

LATE = {
    "keyed_by_corner",
    "keyed_by_sum",
    "wrong_after_call_100",
    "skips_work_while_timed",
    "skips_work_in_a_hurry",
}
"""What is wrong only while a race times, after more calls than are made here, or where two sets of
inputs that are drawn happen to have the same corner or sum."""
LEAKING = {x for x in CHEATS if x.startswith("leaks_")}
"""What would spoil this process."""


def verified(*backends, **options):
    options = {"device": "cpu", "batches": [], "steps": 1, "train": False} | options
    report = run(SMALL, backends=list(backends), limits=QUICK, **options)
    return {x.backend.rpartition(":")[2]: x for x in report.results}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cheat_is_right(here):
    names = sorted(CHEATS.keys() - LATE - LEAKING)
    rows = verified(*(f"{FILE}:{x}" for x in names))
    statuses = {name: {x.check: x.status for x in rows[name].checks} for name in names}
    called_right = {name: x for name, x in statuses.items() if "wrong" not in x.values()}
    assert not called_right
    # What is right in the first call is found out in a later one.
    assert statuses["keyed_by_pointer"] == {"forward": "right", "calls": "wrong"}
    (calls,) = [x for x in rows["keyed_by_pointer"].checks if x.check == "calls"]
    assert "new values at" in calls.reason  # other addresses may be those of an earlier call


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_who_spoils_its_process_is_right():
    hostile = ["replaces_the_judge", "replaces_what_is_noted"]
    rows = verified(*(f"{HOSTILE}:{x}" for x in hostile), *(f"{FILE}:{x}" for x in LEAKING))
    for name in (*hostile, *LEAKING):
        assert "wrong" in {x.status for x in rows[name].checks}, (name, rows[name].sentence)
    assert "the default dtype" in rows["leaks_default_dtype_when_called"].sentence


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_who_is_honest_is_wrong(here):
    names = [*(f"{FILE}:{x}" for x in HONEST), "aot_eager", "inductor"]
    rows = verified(*names, train=None)
    for name, row in rows.items():
        assert row.passed, (name, row.sentence)


def test_goldens_can_be_written_by_who_is_judged(tmp_path, monkeypatch):
    """Nothing of the reference is on disk by the time that a backend is called."""
    found = []

    def looks(graph_module, example_inputs):
        found.extend(x.name for x in folder.rglob("*.pt"))
        return graph_module.forward

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path
    workload = backbay.Workload(torch.nn.Linear(4, 4), (torch.randn(3, 4),), name="linear")
    report = run(workload, backends={"looks": looks}, steps=2, batches=[5], limits=QUICK)
    assert report.passed, report.sentence
    assert report.isolation == "in_process"
    assert set(found) == {"train state 2.pt"}  # what it starts from, and no result
