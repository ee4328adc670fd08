"""What a decision is made by: times, totals, memory; and what it says of a busy machine."""

import numpy as np
import pytest

from backbay.errors import InputError
from backbay.race.costs import Peaks, costs
from backbay.race.crossings import crossings, lines, sentence
from backbay.race.decide import Deciding
from backbay.race.objective import Objective, parse_size
from backbay.race.record import Result, Trying
from backbay.race.times import Times


def rounds(median, *, spread=0.01, seed=0, count=30):
    return list(np.random.default_rng(seed).normal(median, spread * median, count))


TIMES = Times(
    [{"eager": rounds(10.0), "inductor": rounds(6.0, seed=1), "slow": rounds(5.0, seed=2)}]
)
TRIED = {
    "eager": Trying(status="ok", peak_bytes=1000),
    "inductor": Trying(status="ok", compile_s=4.0, warm_compile_s=1.0, peak_bytes=800),
    "slow": Trying(status="ok", compile_s=60.0, warm_compile_s=50.0, peak_bytes=900),
}


def decided(objective, times=TIMES, **more):
    return Deciding(
        workload="w",
        mode="infer",
        costs=costs(objective, times, TRIED),
        objective=objective,
        **more,
    ).decision()


@pytest.mark.parametrize(
    ("objective", "winner"),
    [
        (Objective(), "slow"),
        (Objective(kind="latency"), "slow"),
        (Objective(kind="memory"), "inductor"),
        (Objective(kind="total", calls=100), "eager"),
        (Objective(kind="total", calls=300, warm=True), "inductor"),
        (Objective(kind="total", calls=2000), "inductor"),
        (Objective(kind="total", calls=100_000), "slow"),
    ],
)
def test_another_objective_has_the_same_winner(objective, winner):
    decision = decided(objective)
    assert decision.winner == winner
    if objective.kind == "total":
        cache = "warm" if objective.warm else "cold"
        assert decision.sentence.startswith(f"with {objective.calls:,} calls and a {cache} comp")


def test_memory_is_worded_as_a_speed_or_a_small_difference_counts():
    assert decided(Objective(kind="memory")).sentence == (
        "inductor needs 0.80x the memory of eager; use inductor"
    )
    tried = Peaks({"eager": 1000, "inductor": 980})
    assert Deciding(workload="w", mode="infer", costs=tried).decision().winner == "eager"


def test_who_does_not_fit_is_chosen():
    decision = decided(Objective(), excluded=["slow"])
    assert decision.winner == "inductor"
    assert decision.sentence.endswith("use inductor; slow would not fit")
    only = decided(Objective(), Times([{"eager": rounds(5.0), "inductor": rounds(6.0, seed=1)}]),
                   excluded=["eager"])  # fmt: skip
    assert (only.winner, only.abstained) == ("inductor", False)
    assert "0.8" in only.sentence
    nothing = decided(Objective(), Times([{"eager": rounds(5.0)}]), excluded=["eager"])
    assert (nothing.winner, nothing.abstained) == ("eager", True)
    assert "nothing that is right fits" in nothing.sentence


def test_a_gain_below_the_margin_is_taken():
    times = Times(
        [{"eager": rounds(10.2, spread=1e-3), "inductor": rounds(10, spread=1e-3, seed=1)}]
    )
    assert decided(Objective(), times).winner == "inductor"
    decision = decided(Objective(margin=0.03), times)
    assert (decision.winner, decision.abstained) == ("eager", True)
    assert "no arm is better by more than 3% (inductor is 1.02x" in decision.sentence


NOISY = Times([{"eager": rounds(10, spread=0.4), "inductor": rounds(9.8, spread=0.4, seed=1)}])


def test_a_busy_machine_is_a_reason_to_keep_eager():
    busy = decided(Objective(), NOISY, busy=2.14, seconds=20)
    assert (busy.winner, busy.abstained, busy.unclear) == ("eager", True, True)
    assert busy.sentence == (
        "cannot tell: the machine is busy (2.1 cores by others); run again when idle, or with "
        "--seconds 60"
    )
    idle = decided(Objective(), NOISY, busy=0.1, seconds=40)
    assert idle.sentence.startswith("cannot tell: times scatter too much (inductor is ")
    assert idle.sentence.endswith("run again with --seconds 120")


def test_narrow_intervals_that_tell_nothing_apart_are_no_matter_of_the_machine():
    close = Times([{"eager": rounds(10), "inductor": rounds(10, seed=1)}])
    decision = decided(Objective(), close, busy=2.0, seconds=20)
    assert (decision.unclear, decision.abstained) == (False, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "speed"}, "choose one of throughput, latency, memory, total"),
        ({"kind": "total"}, "give calls"),
        ({"kind": "total", "calls": 0}, "give calls"),
        ({"calls": 3}, "not for throughput"),
        ({"kind": "memory", "warm": True}, "not for memory"),
        ({"memory_limit": 0}, "more than 0 bytes"),
    ],
)
def test_what_contradicts_itself_is_an_objective(given, said):
    with pytest.raises(InputError, match=said):
        Objective(**given)


def test_sizes():
    assert [parse_size(x) for x in ("8GiB", "500 MB", "1.5KiB", "12", "3B")] == [
        8 << 30,
        500_000_000,
        1536,
        12,
        3,
    ]
    for text in ("", "GB", "3 apples", "-", "1e999GB", "nan"):
        with pytest.raises(InputError, match="is no size"):
            parse_size(text)


def results(*rows):
    """Return results of (arm, ms a call, seconds to compile)."""
    return [
        Result(
            workload="w",
            mode="infer",
            backend=arm,
            status="ok",
            median_ms=ms,
            compile_s=compile_s,
            samples_ms=tuple(rounds(ms, seed=number, spread=1e-3)),
        )
        for number, (arm, ms, compile_s) in enumerate(rows)
    ]


def test_who_takes_over_after_how_many_calls():
    found = crossings(
        results(("eager", 10.0, None), ("inductor", 6.0, 4.0), ("tuned", 5.0, 60.0), ("x", 11, 1)),
        warm=False,
    )
    assert [(x.line.arm, round(x.calls, -1)) for x in found] == [
        ("inductor", 1000),
        ("tuned", 56_000),
    ]
    assert sentence(found) == "inductor pays after 1,000 calls and tuned pays after 56,000 calls"


def test_an_arm_that_never_leads_takes_over_on_its_way():
    found = crossings(
        results(("eager", 10.0, None), ("late", 8.0, 30.0), ("best", 5.0, 4.0)), warm=False
    )
    assert [x.line.arm for x in found] == ["best"]
    assert sentence(crossings(results(("eager", 5.0, None), ("x", 8.0, 1.0)), warm=False)) == (
        "no arm takes less time than eager, however often it is called"
    )


def test_who_cannot_be_told_from_eager_takes_over():
    same = results(("eager", 10.0, None), ("x", 10.001, 1.0))
    assert crossings(same, warm=False) == []
    assert [x.arm for x in lines(same, warm=False)] == ["eager", "x"]
