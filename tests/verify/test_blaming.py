"""How long the search for a module goes on, asked of a seat that starts no process."""

import itertools

import pytest

from backbay.race.job import Setup
from backbay.verify import blaming
from backbay.verify.job import Alone, Call, Called, Calls, Judged, Situation

SETUP = Setup(workload="w", size=None, mode="infer", dtype="float32", device="cpu", seed=0)
CHAIN = ("", *(".".join("a" * n) for n in range(1, 50)))


class Hanging:
    """Answers nothing but which modules there are: each calls the next. A clock runs along."""

    def __init__(self):
        self.now, self.limits = 0.0, []

    def ask(self, request, *, timeout_s):
        assert isinstance(request, Calls)
        pairs = itertools.pairwise((None, *CHAIN))
        return Called(
            calls=tuple(
                Call(module=x, caller=caller, type="Module", forward="", called_at="")
                for caller, x in pairs
            )
        )

    def judged(self, request, *, timeout_s):
        assert isinstance(request, Alone)
        self.limits.append(timeout_s)
        self.now += timeout_s
        return Judged(status="timeout", reason=f"no answer within {timeout_s:g} s")


@pytest.fixture
def search(monkeypatch):
    def run(**limits):
        seat = Hanging()
        monkeypatch.setattr(blaming.time, "monotonic", lambda: seat.now)
        found = blaming.Search(
            seat,
            setup=SETUP,
            folder="",
            digest="",
            backend="hangs",
            situation=Situation(),
            check="forward",
            tell=lambda text: None,
            **limits,
        ).run()
        return seat, found

    return run


def test_where_everything_hangs_the_search_goes_on_for_ever_or_one_hang_takes_all_of_it(search):
    seat, blame = search(seconds=90.0, question_s=600.0)
    assert blame.found == "not_found"
    assert "time" in blame.reason
    assert seat.limits[:2] == [30.0, 20.0]
    assert min(seat.limits) >= 15.0  # a child must start, and import torch
    assert seat.now < 90.0 + 15.0
    assert blame.tried == len(seat.limits)


def test_a_question_takes_longer_than_a_check_may(search):
    seat, blame = search(seconds=15.0, question_s=12.0)
    assert set(seat.limits) == {12.0}
    assert blame.tried == 2
