"""Verdicts and order: a gain that is not shown is not claimed."""

import msgspec
import pytest

from backbay.diagnose.limits import _better
from backbay.diagnose.ranking import ranked
from backbay.diagnose.record import LimitRecord, SideRecord, TrialRecord
from backbay.diagnose.trying import sentence, verdict
from backbay.explain.findings import finding


def side(**known):
    usual = {
        "graphs": 1, "breaks": 0, "recompiles": 0, "compile_s": 1.0, "step_ms": 2.0,
        "step_ci_ms": (1.9, 2.1), "peak_bytes": None,
    }  # fmt: skip
    return SideRecord(**usual | known)


@pytest.mark.parametrize(
    ("before", "after", "speedup", "status"),
    [
        ({}, {}, (1.01, 1.2), "confirmed"),
        ({}, {}, (0.99, 1.2), "no_gain"),
        ({}, {}, (0.8, 0.99), "worse"),
        ({"breaks": 2}, {"breaks": 1}, (0.9, 1.1), "confirmed"),
        ({"breaks": 2}, {"breaks": 1}, (0.8, 0.99), "worse"),
        ({"recompiles": 2}, {"recompiles": 0}, (0.9, 1.1), "confirmed"),
        ({"breaks": 1}, {"breaks": 0, "recompiles": 3}, (0.9, 1.1), "no_gain"),
        ({"breaks": 1, "graphs": 0}, {"breaks": 0, "graphs": 0}, (0.9, 1.1), "no_gain"),
        ({"compile_s": 9.0}, {"compile_s": 1.0}, (0.9, 1.1), "no_gain"),
    ],
)
def test_a_verdict_rests_on_counts_and_whole_intervals(before, after, speedup, status):
    assert verdict(side(**before), side(**after), speedup) == status


def test_a_sentence_has_counts_the_interval_and_seconds():
    said = sentence(side(breaks=1), side(compile_s=3.0), 1.1, (0.9, 1.2))
    assert said == (
        "1 graph break before, 0 after; the step is 1.10x [0.90, 1.20] as fast; compiling took "
        "1.0 s before, 3.0 s after"
    )


def trial(status="confirmed", speedup=(1.5, 2.5), after=None, before=None):
    return TrialRecord(
        remedy="x", status=status, sentence="", before=before or side(),
        after=after or side(step_ms=1.0), speedup=2.0, speedup_ci=speedup,
    )  # fmt: skip


def order(findings, trials=None, own_calls=2):
    return [x.code for x in ranked(findings, trials or {}, own_calls)]


def test_what_saves_more_comes_first_and_notes_may_outrank_warnings():
    found = [finding("BB101", "a", ""), finding("BB102", "b", ""), finding("BB703", "c", "")]
    trials = {1: [trial(after=side(step_ms=1.9))], 2: [trial(after=side(step_ms=0.5))]}
    assert order(found, trials) == ["BB703", "BB102", "BB101"]
    assert ranked(found, trials, 2)[0].saved_s == pytest.approx(1.5)


def test_a_step_that_is_not_surely_faster_saves_nothing():
    found = [finding("BB101", "a", "")]
    (one,) = ranked(found, {0: [trial(speedup=(0.9, 3.0))]}, 2)
    assert one.saved_s == 0.0


def test_what_is_not_compiled_again_is_saved_once():
    found = [finding("BB205", "a", "")]
    confirmed = trial(
        speedup=(0.9, 1.1),
        before=side(recompiles=2, compile_s=9.0),
        after=side(recompiles=0, compile_s=4.0),
    )
    (one,) = ranked(found, {0: [confirmed]}, 2)
    assert one.saved_s == pytest.approx(5.0)


@pytest.mark.parametrize("status", ["no_gain", "worse", "wrong", "failed"])
def test_what_is_not_confirmed_saves_nothing_that_is_claimed(status):
    (one,) = ranked([finding("BB703", "a", "")], {0: [trial(status)]}, 2)
    assert one.saved_s is None
    assert not one.urgent


def test_errors_come_first_and_what_leads_to_one_before_it():
    found = [finding("BB106", "a", ""), finding("BB105", "b", ""), finding("BB203", "c", "")]
    assert order(found) == ["BB105", "BB106", "BB203"]
    assert order([finding("BB203", "c", ""), finding("BB106", "a", "")]) == ["BB106", "BB203"]


def test_what_was_met_with_made_up_sizes_alone_comes_after_what_was_met_as_it_is():
    made_up = finding("BB205", "a", "", calls=[2])
    own = finding("BB202", "b", "", calls=[1, 2])
    confirmed = {0: [trial()]}
    assert order([made_up, own], confirmed) == ["BB202", "BB205"]
    (_, last) = ranked([made_up, own], confirmed, 2)
    assert last.supposed
    assert not last.urgent
    assert order([made_up, own], confirmed, own_calls=4) == ["BB205", "BB202"]


def test_a_finding_of_no_call_is_never_supposed():
    (one,) = ranked([finding("BB701", "a", "")], {}, 0)
    assert not one.supposed


def test_the_best_that_was_seen_of_each_limit_counts():
    one = LimitRecord(copy_bytes_s=1.0, product_operations_s=9.0)
    other = msgspec.structs.replace(one, copy_bytes_s=5.0, product_operations_s=2.0)
    assert _better(one, other) == LimitRecord(copy_bytes_s=5.0, product_operations_s=9.0)
