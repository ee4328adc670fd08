"""The schedule of interleaved timing, in sessions that only keep a diary."""

import itertools
import time
from collections import Counter

import pytest

from backbay.session import Lost, Refused
from backbay.timing.measure import Block, BlockLost, Timed, interleave
from backbay.timing.rounds import (
    FEWEST_ROUNDS,
    LONGEST_BLOCK_S,
    MOST_ROUNDS,
    SHORTEST_BLOCK_S,
    Plan,
    plan,
)


class Diary:
    def __init__(self, entries, *, seconds=0.1, fails=None):
        self.entries = entries
        self.seconds = seconds
        self.fails = fails

    def ask(self, request, *, timeout_s):
        assert isinstance(request, Block)
        self.entries.append(request.backend)
        if isinstance(self.fails, Exception):
            raise self.fails
        return Timed(seconds=self.seconds * request.calls)

    def stop(self):
        self.entries.append("stop")

    def resume(self):
        self.entries.append("resume")


def timed(sessions, *, rounds=3, most=99):
    chosen = Plan(rounds=rounds, calls=dict.fromkeys(sessions, 2))
    return interleave(
        sessions, chosen, limit_s=9.0, on_round=lambda done, of: done < most
    ).milliseconds


def test_everyone_is_timed_in_every_round_and_nobody_always_behind_the_same():
    diary = []
    samples = timed(dict.fromkeys("abc", Diary(diary)), rounds=60)
    assert all(sorted(diary[i : i + 3]) == ["a", "b", "c"] for i in range(0, 180, 3))
    assert samples == {name: [pytest.approx(100.0)] * 60 for name in "abc"}
    pairs = Counter(itertools.pairwise(diary))
    assert min(pairs[x, y] for x in "abc" for y in "abc" if x != y) >= 15


def test_sessions_apart_run_one_at_a_time():
    diary = []
    timed({"a": Diary(diary), "b": Diary(diary)}, rounds=1)
    first, second = diary[1], diary[4]
    assert diary == ["resume", first, "stop", "resume", second, "stop"]
    assert {first, second} == {"a", "b"}


def test_rounds_end_when_nobody_wants_more():
    assert timed({"a": Diary([])}, rounds=60, most=5) == {"a": [pytest.approx(100.0)] * 5}


def test_all_blocks_of_one_together_have_a_limit():
    class Slow(Diary):
        def ask(self, request, *, timeout_s):
            waits.append(timeout_s)
            if timeout_s < 8.7:
                raise Lost("no answer", "timeout")
            time.sleep(0.1)
            return super().ask(request, timeout_s=timeout_s)

    waits = []
    with pytest.raises(BlockLost, match="called for longer than 9 s, all in all") as caught:
        timed({"a": Slow([])}, rounds=60)
    assert caught.value.status == "timeout"
    assert 3 <= len(waits) <= 5


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Lost("died", "crashed"), "crashed"),
        (Lost("slow", "timeout"), "timeout"),
        (Refused("ValueError: no"), "failed"),
    ],
)
def test_who_is_lost_is_named(fault, status):
    with pytest.raises(BlockLost) as caught:
        timed({"good": Diary([]), "bad": Diary([], fails=fault)})
    assert (caught.value.backend, caught.value.status) == ("bad", status)


def test_short_steps_are_gathered_into_blocks_that_a_clock_can_tell():
    chosen = plan({"fast": 1e-5, "slow": 1.0}, budget_s=20.0)
    assert chosen.calls["fast"] * 1e-5 >= SHORTEST_BLOCK_S
    assert chosen.calls["slow"] == 1
    assert chosen.rounds == FEWEST_ROUNDS


def test_time_to_spare_makes_blocks_longer_up_to_a_bound():
    assert plan({"x": 1e-3}, budget_s=1e9).calls["x"] * 1e-3 == pytest.approx(LONGEST_BLOCK_S)
    assert plan({"x": 1e-3}, budget_s=12.0).calls["x"] * 1e-3 == pytest.approx(0.05)


def test_a_block_is_as_long_whoever_else_takes_part():
    few, many = (
        plan(dict.fromkeys(map(str, range(n)), 1e-3), budget_s=12.0).calls["0"] for n in (2, 40)
    )
    assert few == many


def test_rounds_fit_the_budget_between_bounds():
    assert plan({"x": 0.02}, budget_s=1e9).rounds == MOST_ROUNDS
    assert plan({"x": 0.1}, budget_s=6.1).rounds == 20
