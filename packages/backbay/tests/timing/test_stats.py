"""Intervals and decisions."""

import numpy as np
import pytest

from backbay.race import decide as deciding
from backbay.race.times import Times
from backbay.timing import stats


def decide(workload, mode, *groups):
    return deciding.decide(workload, mode, Times(groups))


def rounds(median: float, *, spread: float = 0.01, seed: int = 0, count: int = 30) -> list[float]:
    return list(np.random.default_rng(seed).normal(median, spread * median, count))


def test_the_interval_covers_the_true_median_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        _, (low, high) = stats.median(rounds(10.0, spread=0.05, seed=seed))
        covered += low <= 10.0 <= high
    assert 0.90 <= covered / 200 <= 0.99


def test_a_ratio_is_taken_within_rounds():
    drift = np.linspace(1.0, 3.0, 30)  # the machine slows down threefold during the race
    value, (low, high) = stats.ratio(list(2.0 * drift), list(1.0 * drift))
    assert value == pytest.approx(2.0)
    assert (low, high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_a_difference_is_taken_within_rounds():
    drift = np.linspace(1.0, 3.0, 30)
    value, (low, high) = stats.difference(list(drift + 0.5), list(drift))
    assert (value, low, high) == (pytest.approx(0.5),) * 3


def test_the_interval_of_a_difference_covers_the_true_one_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        slower, faster = rounds(10.0, seed=seed), rounds(9.5, seed=seed + 200)
        _, (low, high) = stats.difference(slower, faster)
        covered += low <= 0.5 <= high
    assert 0.90 <= covered / 200 <= 0.99


@pytest.mark.parametrize("compared", [stats.ratio, stats.difference])
def test_rounds_that_do_not_pair_up_are_refused(compared):
    with pytest.raises(ValueError, match="do not pair up"):
        compared([1.0, 2.0], [1.0])


def test_the_same_samples_give_the_same_interval():
    samples = rounds(5.0)
    assert stats.median(samples) == stats.median(samples)


def test_a_clear_winner_is_named_with_its_interval():
    decision = decide("w", "infer", {"eager": rounds(10.0), "inductor": rounds(7.0, seed=1)})
    assert decision.winner == "inductor"
    assert not decision.abstained
    assert decision.sentence.startswith("inductor is 1.43x [1.4")
    assert decision.sentence.endswith("use inductor")


def test_it_abstains_when_it_cannot_tell():
    noisy = {"eager": rounds(10.0, spread=0.2), "inductor": rounds(9.9, spread=0.2, seed=1)}
    decision = decide("w", "infer", noisy)
    assert (decision.winner, decision.abstained) == ("eager", True)
    assert decision.sentence.startswith("no significant difference")


def test_a_slower_backend_is_not_called_a_tie():
    decision = decide("w", "infer", {"eager": rounds(10.0), "inductor": rounds(14.0, seed=1)})
    assert (decision.winner, decision.abstained) == ("eager", False)
    assert "slower" in decision.sentence


def test_another_backend_has_to_beat_inductor_not_only_eager():
    samples = {"eager": rounds(10.0), "inductor": rounds(7.0, seed=1), "x": rounds(6.99, seed=2)}
    tied = decide("w", "infer", samples)
    assert tied.winner == "inductor"
    assert "x cannot be told from it" in tied.sentence
    samples["x"] = rounds(5.0, seed=2)
    assert decide("w", "infer", samples).winner == "x"


def test_the_fastest_of_several_rivals_wins():
    samples = {"eager": rounds(10.0), "a": rounds(8.0, seed=1), "b": rounds(6.0, seed=2)}
    assert decide("w", "infer", samples).winner == "b"


def test_eager_alone_is_kept():
    assert decide("w", "infer", {"eager": rounds(10.0)}).winner == "eager"


def test_a_small_significant_gain_does_not_read_as_none():
    samples = {"eager": rounds(10.02, spread=1e-4), "x": rounds(10.0, spread=1e-4, seed=1)}
    decision = decide("w", "infer", samples)
    assert decision.winner == "x"
    assert "[1.00," not in decision.sentence


def test_who_is_timed_by_itself_is_compared_by_way_of_eager():
    together = {"eager": rounds(10.0), "inductor": rounds(5.0, seed=1)}
    busy = {"eager": rounds(20.0, seed=2), "x": rounds(8.0, seed=3)}
    times = Times([together, busy])
    value, (low, high) = times.ratio("inductor", "x")
    assert value == pytest.approx(5.0 / 4.0, rel=0.02)
    assert low < 5.0 / 4.0 < high
    assert times.ratio("eager", "x")[0] == pytest.approx(2.5, rel=0.02)
    assert list(times["eager"]) == together["eager"]
    assert list(times.eagers("x")) == busy["eager"]
    assert decide("w", "infer", together, busy).winner == "x"
    assert set(times.without("inductor")) == {"eager", "x"}


def test_the_interval_of_a_ratio_by_way_of_a_third_covers_the_true_one_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        one, other = rounds(8.0, seed=seed), rounds(4.0, seed=seed + 200)
        third, again = rounds(10.0, seed=seed + 400), rounds(10.0, seed=seed + 600)
        _, (low, high) = stats.ratio_beside(one, third, other, again)
        covered += low <= 2.0 <= high
    assert 0.90 <= covered / 200 <= 0.99
