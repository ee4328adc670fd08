"""Verdicts and order: a gain that is not shown is not claimed."""

import msgspec
import pytest

from backbay.diagnose.limits import _better
from backbay.diagnose.ranking import measured, ranked
from backbay.diagnose.record import (
    CompiledGraph,
    KernelRecord,
    LimitRecord,
    SideRecord,
    StepRecord,
    TrialRecord,
    WhiteBox,
)
from backbay.diagnose.requests import Looked
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
        ({}, {}, (1.01, 1.049), "no_gain"),
        ({}, {}, (1.01, 1.063), "confirmed"),
        ({}, {}, (0.99, 1.2), "no_gain"),
        ({}, {}, (1.0, 1.2), "no_gain"),
        ({}, {}, (0.8, 1.0), "no_gain"),
        ({}, {}, (0.8, 0.99), "worse"),
        ({}, {}, (0.97, 0.99), "no_gain"),
        ({"recompiles": 2}, {"recompiles": 0}, (0.97, 0.99), "confirmed"),
        ({"breaks": 2}, {"breaks": 1}, (0.9, 1.1), "confirmed"),
        ({"breaks": 2}, {"breaks": 1}, (0.8, 0.99), "worse"),
        ({"recompiles": 2}, {"recompiles": 0}, (0.9, 1.1), "confirmed"),
        ({"breaks": 1}, {"breaks": 0, "recompiles": 3}, (0.9, 1.1), "no_gain"),
        ({"breaks": 1, "graphs": 0}, {"breaks": 0, "graphs": 0}, (0.9, 1.1), "no_gain"),
        ({"breaks": 1, "graphs": 0}, {"breaks": 0, "graphs": 1}, (0.9, 1.1), "confirmed"),
        ({"breaks": 1, "graphs": 1}, {"breaks": 0, "graphs": 0}, (0.9, 1.1), "no_gain"),
        ({"compile_s": 9.0}, {"compile_s": 1.0}, (0.9, 1.1), "no_gain"),
    ],
)
def test_a_verdict_rests_on_counts_and_whole_intervals(before, after, speedup, status):
    middle = sum(speedup) / 2
    assert verdict(side(**before), side(**after), middle, speedup) == status


def test_a_sentence_has_counts_the_interval_and_seconds():
    said = sentence(side(breaks=1), side(compile_s=3.0), 1.1, (0.9, 1.2))
    assert said == (
        "1 graph break before, 0 after; the step is 1.10x [0.90, 1.20] as fast; compiling took "
        "1.0 s before, 3.0 s after"
    )


def test_a_sentence_says_what_is_less_precise():
    said = sentence(side(), side(), 2.0, (1.9, 2.1), less_precise=True)
    assert "rounded to 10 bits of their 23" in said


def test_a_sentence_has_what_a_remedy_makes_worse_and_that_nothing_was_proven():
    said = sentence(side(recompiles=1), side(recompiles=3), 1, (1, 1), unproven="it draws")
    assert said.startswith("1 recompile before, 3 after; the step")
    assert said.endswith("; its result was not proven right: it draws")
    assert sentence(side(), side(breaks=2), 1, (1, 1)).startswith("0 graph breaks before, 2 after")


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
    counted = {"before": side(compile_s=9.0), "after": side(step_ms=1.0)}
    for interval in ((0.9, 3.0), (1.0, 3.0)):
        (one,) = ranked(found, {0: [trial(speedup=interval, **counted)]}, 2)
        assert one.saved_s == 0.0  # nor do seconds of compiling once count


def test_the_best_of_two_remedies_counts_and_compiling_longer_once_is_not_held_against_it():
    longer = trial(before=side(recompiles=1), after=side(recompiles=0, compile_s=9.0, step_ms=1.0))
    (one,) = ranked([finding("BB205", "a", "")], {0: [longer, trial(after=side(step_ms=0.5))]}, 2)
    assert one.saved_s == pytest.approx(1.5)
    (one,) = ranked([finding("BB205", "a", "")], {0: [longer]}, 2)
    assert one.saved_s == pytest.approx(1.0)


def test_what_saves_nothing_that_is_shown_comes_after_what_has_a_remedy_then_by_severity_and_cost():
    remedied = {3: [trial(speedup=(0.9, 1.1))]}
    found = [
        finding("BB703", "a", "", cost_s=99.0),
        finding("BB201", "b", "", cost_s=1.0),
        finding("BB202", "c", "", cost_s=2.0),
        finding("BB704", "d", ""),
    ]
    assert order(found, remedied) == ["BB704", "BB202", "BB201", "BB703"]


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
    alone = [finding("BB106", "a", "", cost_s=2.0), finding("BB602", "d", "", cost_s=1.0)]
    assert order(alone) == ["BB106", "BB602"]


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


def kernel(name, **known):
    usual = {
        "name": name, "kind": "cpp", "work": "pointwise", "lines": (f"{name}:1", f"{name}:2"),
        "operators": (), "ms": 1.0, "share": 0.5, "bytes": 1, "operations": None, "of_limit": 0.9,
        "not_fused": (), "code": "",
    }  # fmt: skip
    return KernelRecord(**usual | known)


def codes(*kernels, blocks=0, convolutions=0, tf32=False, products_ms=0.0, **step):
    """Return what is found by code: its words and its line."""
    usual = dict.fromkeys(("kernels_ms", "outside_ms", "copies_ms", "guards_ms", "host_ms"), 0.0)
    graph = CompiledGraph(
        number=0, compile_id="0/0", direction="forward", calls=1.0, kernels=kernels, code=""
    )
    inside = WhiteBox(
        graphs=(graph,),
        outside=(),
        step=StepRecord(
            **usual | step,
            wall_ms=9.0,
            wall_ci_ms=(9.0, 9.0),
            by_work={"gemm": products_ms},
            peak_bytes=None,
        ),
        limit=LimitRecord(copy_bytes_s=1.0, product_operations_s=1.0),
        phases_s={},
        compile_s=3.0,
        notes=(),
    )
    looked = Looked(
        inside=inside,
        device_name="cpu",
        blocks=blocks,
        convolutions=convolutions,
        could_be_tf32=tf32,
    )
    return {x.code: (x.message, x.line, x.cost_s) for x in measured(looked)}


def test_a_host_that_takes_over_half_of_a_step_is_found_where_kernels_could_take_it():
    one = kernel("cpp_a")
    found = codes(one, host_ms=3.0, guards_ms=2.0, kernels_ms=4.0)
    assert found["BB701"][0].startswith("the host takes 5.00 ms of 9.00 ms of a step")
    assert codes(host_ms=9.0) == {}
    assert codes(one, host_ms=5.0, kernels_ms=5.0) == {}
    assert codes(one, host_ms=5.0, kernels_ms=2.0, outside_ms=2.0, copies_ms=2.0) == {}


def test_the_kernel_that_loses_most_time_to_the_limit_is_found_if_it_matters():
    near = kernel("near", ms=3.0, of_limit=0.49, share=0.4)
    far = kernel("far", ms=2.0, of_limit=0.1, share=0.3)
    assert codes(near, far)["BB702"][:2] == (
        "far takes 30% of the time in kernels, and reaches 10% of this machine's limit",
        "far:2",
    )
    for known in ({"of_limit": 0.5}, {"share": 0.1}, {"ms": 0.05}, {"of_limit": None}):
        assert codes(kernel("cpp_a", **{"of_limit": 0.1} | known)) == {}


def test_repeated_blocks_and_convolutions_are_found_from_two_and_one():
    assert codes(blocks=1) == {}
    assert codes(blocks=2)["BB703"][2] == 3.0
    longest, other = (kernel(f"conv{ms}", work="convolution", ms=ms) for ms in (2.0, 1.0))
    found = codes(kernel("mm", ms=9.0), other, longest, convolutions=1)
    assert found["BB704"][:2] == ("1 convolution with channels first in memory", "conv2.0:2")
    assert codes(convolutions=1)["BB704"][1] == ""


def test_products_in_full_float32_are_found_where_there_is_tf32_and_they_take_a_tenth():
    product = kernel("mm", work="gemm", ms=2.0)
    found = codes(product, tf32=True, products_ms=2.0, kernels_ms=10.0)
    words, line, _ = found["BB705"]
    assert words.startswith("matrix products take 2.00 ms of 10.0 ms of a step, in full float32")
    assert line == "mm:2"
    assert codes(product, tf32=False, products_ms=2.0, kernels_ms=10.0) == {}
    assert codes(product, tf32=True, products_ms=1.0, kernels_ms=10.0) == {}
