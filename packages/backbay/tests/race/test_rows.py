"""Models with a state: two calls in a row are judged, and timed ones where that can be done."""

from pathlib import Path

import pytest

from backbay.race import Limits, run
from backbay.timing.rounds import LEAST_ROUNDS

FAULTY = Path(__file__).with_name("faulty.py")
QUICK = Limits(backend_s=120.0, timing_s=0.3)

pytestmark = pytest.mark.slow


def raced(workload, *backends, train=False):
    report = run(
        f"{FAULTY}:{workload}",
        backends=[f"{FAULTY}:{x}" for x in backends],
        device="cpu",
        train=train,
        limits=QUICK,
    )
    return report, {x.backend.rpartition(":")[2]: x for x in report.results}


def test_what_folds_the_state_is_right_in_each_call_from_it_and_wrong_in_a_row(here):
    report, rows = raced("with_state", "folds_buffers", "honest")
    assert rows["folds_buffers"].status == "wrong"
    assert "in two calls in a row" in rows["folds_buffers"].reason
    assert rows["honest"].status == "ok"
    assert rows["honest"].verdict.calls == 13  # 11, two in a row and one afterwards
    (note,) = [x for x in report.notes if "while the clock did" in x]
    assert "depends on the state that those before it left" in note


def test_what_returns_the_same_from_any_state_is_judged_while_the_clock_runs(here):
    report, rows = raced("with_batch_norm", "honest", "scaled", train=True)
    assert (rows["honest"].status, rows["scaled"].status) == ("ok", "wrong")
    later = len(rows["honest"].samples_ms) > LEAST_ROUNDS
    assert rows["honest"].verdict.calls == 16 + later
    assert not any("while the clock did" in x for x in report.notes)


def test_random_draws_are_replayed_in_a_row_and_a_note_says_what_is_not_judged(here):
    report, rows = raced("with_dropout", "honest", train=True)
    assert rows["honest"].status == "ok"
    assert rows["honest"].verdict.calls == 12
    (note,) = [x for x in report.notes if "while the clock did" in x]
    assert "draws random numbers" in note
