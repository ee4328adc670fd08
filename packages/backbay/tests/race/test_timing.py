"""Who is timed where, and who must compile again, in sessions that start no process."""

import time
from pathlib import Path

from backbay.race.requests import Done, Open, Opened, Renew
from backbay.race.timing import InputSets, Limits, Timing
from backbay.session import Lost, Refused, Session
from backbay.timing.measure import Block, Timed
from backbay.workloads.setup import WorkloadSetup

SETUP = WorkloadSetup(workload="w", size=None, mode="infer", dtype="float32", device="cpu", seed=0)


class Client:
    """Answers at once; a block of a backend called "dies" ends it, one of "raises" is refused."""

    def __init__(self, opened):
        self.ready, self.running, self.over, self.blocks = (), True, False, 0
        opened.append(self)

    def ask(self, request, *, timeout_s):
        if not self.running:
            raise Lost("no answer: it is stopped", "timeout")
        if isinstance(request, Open):
            self.ready += request.backends
            return Opened(step_s=dict.fromkeys(self.ready, 1.0), failed={}, most_calls=9)
        if isinstance(request, Renew):
            return Done()
        assert isinstance(request, Block)
        assert request.backend in self.ready
        if request.backend == "dies":
            raise Lost("died")
        if request.backend == "raises":
            raise Refused("ValueError: no")
        if "slow_clock" in self.ready:
            time.sleep(1e-4)
        self.blocks += 1
        if "slow_clock" in self.ready:
            return Timed(seconds=1e-6, whole_s=1e-6)
        slowed = 3.0 if "slows_others" in self.ready else 1.0
        return Timed(seconds=slowed * request.calls, whole_s=slowed * request.calls)

    def end(self):
        self.over = True

    def stop(self):
        self.running = False

    def resume(self):
        self.running = True


def timed(*names, apart=()):
    opened = []
    timing = Timing(
        setup=SETUP,
        digest="",
        open_session=lambda: Session(lambda: Client(opened)),
        limits=Limits(backend_s=1.0, timing_s=1.0),
        tell=lambda backend, text, how_far: None,
        folder=Path(),
        sets=InputSets(sampled=False),
    )
    timing.run(names, apart)
    assert all(x.over for x in opened)
    return timing, [x.ready for x in opened]


def test_all_are_timed_apart_although_all_can_be_timed_together():
    timing, opened = timed("eager", "a", "b")
    assert opened == [("eager", "a", "b")]
    assert set(timing.samples) == {"eager", "a", "b"}
    assert (timing.lost, timing.notes) == ({}, [])


def test_after_a_loss_the_others_compile_once_more_or_are_not_timed():
    timing, opened = timed("eager", "dies", "raises", "a")
    assert opened == [("eager", "dies", "raises", "a"), ("eager",), ("dies",), ("raises",), ("a",)]
    assert timing.lost == {"dies": ("crashed", "died"), "raises": ("failed", "ValueError: no")}
    assert set(timing.samples) == {"eager", "a"}
    assert len(timing.samples["eager"]) == len(timing.samples["a"]) > 1
    (note,) = timing.notes
    assert "process of its own" in note


def test_eager_is_left_alone_and_waits_for_ever():
    timing, _ = timed("eager", "dies")
    assert set(timing.samples) == {"eager"}
    assert set(timing.lost) == {"dies"}


def test_without_eager_others_are_timed():
    timing, _ = timed("dies", "a")
    assert timing.samples == {}


def test_who_slows_others_down_is_timed_apart_from_them():
    timing, opened = timed("eager", "slows_others", "a")
    together = ("eager", "slows_others", "a")
    assert opened == [together, ("eager",), ("eager",), ("slows_others",), ("a",)]
    (note,) = timing.notes
    assert "eager alone takes 1e+03 ms a call in a process of its own, and 3e+03 ms" in note
    assert set(timing.samples["eager"]) == set(timing.samples["a"]) == {1e3}


def test_whose_clock_is_not_this_ones_has_no_times_and_the_others_have():
    timing, opened = timed("eager", "slow_clock", "a")
    assert opened[1:] == [("eager",), ("slow_clock",), ("a",)]
    assert set(timing.samples) == {"eager", "a"}
    (status, reason) = timing.lost["slow_clock"]
    assert (status, "process's clock says" in reason) == ("failed", True)


def test_who_changed_what_all_share_is_in_a_process_of_its_own_from_the_start():
    timing, opened = timed("eager", "a", "changes", apart={"changes"})
    assert opened == [("eager", "a"), ("changes",)]
    assert set(timing.samples) == {"eager", "a", "changes"}
    assert timing.notes == []


def test_who_dies_beside_others_is_timed_apart_from_them():
    timing, opened = timed("eager", "dies", "changes", apart={"changes"})
    assert opened == [("eager", "dies"), ("changes",), ("eager",), ("dies",), ("changes",)]
    assert set(timing.samples) == {"eager", "changes"}
    assert timing.lost == {"dies": ("crashed", "died")}


def test_nobody_waits_for_rounds_that_one_of_them_slows(monkeypatch):
    monkeypatch.setattr("backbay.race.timing._GRACE_S", -1e9)
    timing, opened = timed("eager", "a")
    assert opened == [("eager", "a"), ("eager",), ("a",)]
    (note,) = timing.notes
    assert "one of the backends slows the others down" in note
    assert set(timing.samples) == {"eager", "a"}
