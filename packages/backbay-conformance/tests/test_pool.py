"""Cases in child processes: what is lost is a result, and the rest is run."""

import pytest

from backbay.errors import InputError
from backbay.registry import Traits
from backbay.session import Lost, Refused
from backbay_conformance import pool
from backbay_conformance.record import Result
from backbay_conformance.requests import (
    Ran,
    Ready,
    Refer,
    Referred,
    Run,
    SuiteSetup,
    Weigh,
    Weighed,
)

SETUP = SuiteSetup(backend="tried", device="cpu", seed=0, levels=(1,), profile="full")
CASES = tuple((f"contract/{x}", 5.0) for x in "abcdef")


class FakeClient:
    """Answers as told; what it is told to lose is lost, and so is the client."""

    opened = 0

    def __init__(self, fates):
        self.fates = fates
        self.ended = False
        type(self).opened += 1

    def ask(self, request, *, timeout_s):
        assert not self.ended
        if isinstance(request, SuiteSetup):
            known = tuple(x for x, _ in CASES)
            return Ready(
                cases=CASES,
                reference_backends=("eager",),
                known=known,
                device_name="cpu",
                traits=Traits(),
            )
        fate = self.fates.get((request.id, request.reference), "pass")
        if fate in {"crashed", "timeout"}:
            raise Lost("it died", fate)
        return Ran(result=Result(id=request.id, level=1, status=fate))

    def end(self):
        self.ended = True


class FakeJudge(FakeClient):
    """Judges as told, by the case; runs reference backends as its fates have it."""

    opened = 0

    def __init__(self, fates, verdicts, asked):
        super().__init__(fates)
        self.verdicts, self.asked, self.case = verdicts, asked, None

    def ask(self, request, *, timeout_s):
        if isinstance(request, Refer):
            self.case = request.id
            if self.verdicts.get(self.case) == "lost":
                raise Lost("it died", "crashed")
            return Referred(openings=(), asked=self.asked)
        if isinstance(request, Weigh):
            status = self.verdicts.get(self.case)
            return Weighed(status=status, reason="" if status is None else "judged")
        return super().ask(request, timeout_s=timeout_s)


@pytest.fixture
def run(monkeypatch):
    FakeClient.opened = FakeJudge.opened = 0

    def run(fates, workers=1, verdicts=None, asked=1):
        told = []
        judge = lambda _caches: lambda: FakeJudge(fates, verdicts or {}, asked)  # noqa: E731
        monkeypatch.setattr(pool, "judge_in", judge)
        _ready, results, _ = pool.run_all(
            SETUP, workers=workers, tell=told.append, open_client=lambda: FakeClient(fates)
        )
        assert sorted(x.id for x in told) == sorted(x.id for x in results)
        return [x.status for x in results]

    return run


@pytest.mark.parametrize("workers", [1, 3, 20])
def test_results_come_in_another_order(run, workers):
    assert run({("contract/c", None): "fail_value"}, workers) == [
        "pass",
        "pass",
        "fail_value",
        "pass",
        "pass",
        "pass",
    ]
    assert 1 <= FakeClient.opened <= min(workers, len(CASES))


@pytest.mark.parametrize(("fate", "status"), [("crashed", "crash"), ("timeout", "hang")])
def test_a_crash_or_a_hang_is_the_end(run, fate, status):
    assert run({("contract/b", None): fate})[:3] == ["pass", status, "pass"]
    assert FakeClient.opened == 2


def test_torchs_own_crash_is_held_against_the_backend(run):
    fates = {("contract/b", None): "crashed", ("contract/b", "eager"): "crashed"}
    assert run(fates)[:3] == ["pass", "upstream", "pass"]
    assert (FakeClient.opened, FakeJudge.opened) == (
        2,
        2,
    )  # references run where it judges


def test_a_verdict_of_the_judge_is_lost(run):
    verdicts = {"contract/b": "fail_value", "contract/d": "lost"}
    assert run({}, verdicts=verdicts) == [
        "pass",
        "fail_value",
        "pass",
        "not_runnable",
        "pass",
        "pass",
    ]
    assert FakeClient.opened == 1
    # Where nothing is asked, and nothing given, there is nothing to judge.
    assert run({}, verdicts={"contract/b": "fail_value"}, asked=0)[1] == "pass"


def test_an_interrupt_loses_what_was_run(run, monkeypatch):
    def ask(self, request, *, timeout_s):
        if getattr(request, "id", "") == "contract/c":
            raise KeyboardInterrupt
        return original(self, request, timeout_s=timeout_s)

    original = FakeClient.ask
    monkeypatch.setattr(FakeClient, "ask", ask)
    monkeypatch.setattr(pool, "judge_in", lambda _: lambda: FakeJudge({}, {}, 1))
    _, results, interruption = pool.run_all(
        SETUP, workers=1, tell=lambda _: None, open_client=lambda: FakeClient({})
    )
    assert [x.id for x in results] == ["contract/a", "contract/b"]
    assert isinstance(interruption, KeyboardInterrupt)


def test_a_backend_that_cannot_be_loaded_is_run():
    class Refusing(FakeClient):
        def ask(self, request, *, timeout_s):
            raise Refused("there is no such thing")

    with pytest.raises(InputError, match="no such thing"):
        pool.run_all(SETUP, workers=2, tell=print, open_client=lambda: Refusing({}))


def test_an_error_in_one_place_of_work_is_lost(monkeypatch):
    monkeypatch.setattr(pool, "judge_in", lambda _: lambda: FakeJudge({}, {}, 1))

    class Broken(FakeClient):
        def ask(self, request, *, timeout_s):
            if isinstance(request, Run) and type(self).opened > 1:
                raise KeyError("a defect of ours")
            return super().ask(request, timeout_s=timeout_s)

    with pytest.raises(KeyError):
        pool.run_all(SETUP, workers=3, tell=lambda _: None, open_client=lambda: Broken({}))
