"""How long the search for a module goes on, asked in a session that starts no process."""

import itertools

import pytest

from backbay.decisions import Arm
from backbay.session import Lost
from backbay.verify import blaming
from backbay.verify.requests import Alone, AlonePrepared, Call, Course, Situation
from backbay.workloads.setup import WorkloadSetup

SETUP = WorkloadSetup(workload="w", size=None, mode="infer", dtype="float32", device="cpu", seed=0)
CHAIN = ("", *(".".join("a" * n) for n in range(1, 50)))


class Hanging:
    """Answers nothing. A clock runs along."""

    def __init__(self):
        self.now, self.limits = 0.0, []

    def ask(self, request, *, timeout_s):
        if isinstance(request, Alone):
            self.limits.append(timeout_s)
            self.now += timeout_s
            raise Lost(f"no answer within {timeout_s:g} s", "timeout")
        raise AssertionError(request)


class KnowingJudge:
    """Answers at once which modules there are, and that each has a truth."""

    def called(self, course, timeout_s):
        pairs = itertools.pairwise((None, *CHAIN))
        return tuple(
            Call(module=x, caller=caller, type="Module", forward="", called_at="")
            for caller, x in pairs
        )

    def prepare_alone(self, course, situation, module, timeout_s):
        return AlonePrepared()

    def place(self):
        return ""


@pytest.fixture
def search(monkeypatch):
    def run(**limits):
        session = Hanging()
        monkeypatch.setattr(blaming.time, "monotonic", lambda: session.now)
        found = blaming.Search(
            session=session,
            judge=KnowingJudge(),
            course=Course(setup=SETUP, folder=""),
            arm=Arm(backend="hangs"),
            situation=Situation(),
            check="forward",
            tell=lambda text: None,
            **limits,
        ).run()
        return session, found

    return run


def test_where_everything_hangs_the_search_goes_on_for_ever_or_one_hang_takes_all_of_it(search):
    session, blame = search(seconds=90.0, question_s=600.0)
    assert blame.found == "not_found"
    assert "time" in blame.reason
    assert session.limits[:2] == [30.0, 20.0]
    assert min(session.limits) >= 15.0  # a child must start, and import torch
    assert session.now < 90.0 + 15.0
    assert blame.tried == len(session.limits)


def test_a_question_takes_longer_than_a_check_may(search):
    session, blame = search(seconds=15.0, question_s=12.0)
    assert set(session.limits) == {12.0}
    assert blame.tried == 2
