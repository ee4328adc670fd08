"""Who is out while arms are timed, and when more rounds tell no more."""

import numpy as np
import pytest

from backbay.race.contest import Contest
from backbay.race.costs import Peaks


def samples(count=12, spread=0.01, **medians):
    draw = np.random.default_rng(0)
    return {x: list(draw.normal(y, spread * y, count)) for x, y in medians.items()}


def contest(fewest=12):
    return Contest(cost_of=lambda times: times, fewest=fewest)


def test_who_cannot_win_is_timed_to_the_end():
    told = contest()
    assert told.look(samples(eager=10.0, a=5.0, b=8.0, c=5.05)) == {"b"}
    assert not told.clear  # a and c are not told apart


def test_eager_is_never_out_and_an_arm_that_may_win_neither():
    assert contest().look(samples(eager=10.0, a=5.0)) == set()
    assert contest().look(samples(eager=10.0, a=5.0, b=5.6, spread=0.5)) == set()


@pytest.mark.parametrize(
    ("medians", "spread", "clear"),
    [
        ({"eager": 10.0, "a": 5.0}, 0.01, True),
        ({"eager": 5.0, "a": 10.0}, 0.01, True),
        ({"eager": 10.0, "a": 10.0}, 1e-3, True),
        ({"eager": 10.0, "a": 9.8}, 0.02, False),
        ({"eager": 10.0, "a": 9.0}, 0.3, False),
        ({"eager": 10.0, "a": 5.0, "b": 4.9}, 0.02, False),
    ],
)
def test_rounds_end_too_early_or_go_on_for_nothing(medians, spread, clear):
    told = contest()
    told.look(samples(spread=spread, **medians))
    assert told.clear == clear


def test_it_is_looked_at_too_early_or_in_each_round():
    told = contest()
    for count in (1, 11, 13, 14, 15):
        told.look(samples(count, eager=10.0, a=5.0, b=9.0))
        assert (told.out, told.clear) == (set(), False), count
    assert told.look(samples(16, eager=10.0, a=5.0, b=9.0)) == {"b"}


def test_samples_of_who_left_are_paired_with_later_rounds_of_others():
    told = contest()
    first = samples(eager=10.0, a=5.0, b=8.0)
    assert told.look(first) == {"b"}
    later = {x: y + ([] if x == "b" else y[:4]) for x, y in first.items()}
    told.look(later)
    assert told.clear


def test_where_times_do_not_decide_the_fewest_rounds_are_enough():
    told = Contest(cost_of=lambda _: Peaks({"eager": 100, "a": 80}), fewest=6)
    told.look(samples(6, eager=10.0, a=10.0, spread=0.5))
    assert told.clear
