"""Who is timed where, and who must compile again, in sessions that start no process."""

import contextlib
import time
from pathlib import Path

import msgspec
import pytest

from backbay.decisions import Arm
from backbay.race.given import InputSets
from backbay.race.handler import RaceHandler
from backbay.race.objective import Objective
from backbay.race.requests import ArmSetup, Done, Hand, Open, Opened, Renew, Watch, Watched
from backbay.race.timing import Limits, Timing
from backbay.race.turns import Turns
from backbay.session import Lost, Refused, Session
from backbay.timing.gpu_work import GpuWork
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
            self.ready += tuple(x.name for x in request.arms)
            step_s = {x: 3600.0 if x == "hour_long" else 1.0 for x in self.ready}
            return Opened(step_s=step_s, failed={}, most_calls=9)
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
        if "takes_time" in self.ready:
            time.sleep(0.4)
        self.blocks += 1
        if "slow_clock" in self.ready:
            return Timed(seconds=1e-6, whole_s=1e-6)
        if {"a_with_b", "b_with_a"} <= {*self.ready} and request.backend == "eager":
            raise Refused("no")
        slowed = 3.0 if "slows_others" in self.ready else 1.0
        return Timed(seconds=slowed * request.calls, whole_s=slowed * request.calls)

    def end(self):
        self.over = True

    def stop(self):
        self.running = False

    def resume(self):
        self.running = True


class WithoutEager(Client):
    def ask(self, request, *, timeout_s):
        if isinstance(request, Open) and [x.name for x in request.arms] == ["eager"]:
            raise Refused("no")
        return super().ask(request, timeout_s=timeout_s)


def timed(
    *names,
    apart=(),
    client=Client,
    setup=SETUP,
    turns=None,
    objective=None,
    sets=InputSets(sampled=False),  # noqa: B008 (it is frozen)
    folder=Path(),
    **limits,
):
    opened = []
    timing = Timing(
        setup=setup,
        arms={x: ArmSetup(arm=Arm(backend=x)) for x in names},
        digest="",
        open_session=lambda: Session(lambda: client(opened)),
        limits=Limits(**{"backend_s": 1e6, "timing_s": 1.0} | limits),
        tell=lambda backend, text, how_far: None,
        folder=folder,
        sets=sets,
        turns=turns or Turns(),
        objective=objective or Objective(),
    )
    timing.run(names, dict.fromkeys(apart, "it changed what all share"))
    assert all(x.over for x in opened)
    for group in timing.groups:
        assert len(set(map(len, group.values()))) == 1
    return timing, [x.ready for x in opened]


class Watching(Client):
    """Replies with what the GPU does; of a backend called "a" it can't."""

    def ask(self, request, *, timeout_s):
        if not isinstance(request, Watch):
            return super().ask(request, timeout_s=timeout_s)
        assert self.running
        if request.arm == "a":
            raise Refused("the profiler broke")
        return Watched(work=GpuWork(busy_ms=1.0, launches=len(request.arm)))


def groups(timing):
    return [tuple(x) for x in timing.groups]


def test_all_who_leave_each_other_alone_are_timed_in_one_process():
    timing, opened = timed("eager", "a", "b")
    assert opened == [("eager", "a", "b")]
    assert groups(timing) == [("eager", "a", "b")]
    assert (timing.lost, timing.apart, timing.notes) == ({}, {}, [])


def test_what_a_gpu_does_is_not_asked_for_or_costs_anybody_its_times():
    on_a_gpu = msgspec.structs.replace(SETUP, device="cuda:1")
    for apart in ((), ("a", "b")):
        timing, _ = timed("eager", "a", "b", apart=apart, client=Watching, setup=on_a_gpu)
        assert {name: x.launches for name, x in timing.gpu_work.items()} == {"eager": 5, "b": 1}
        assert {name for group in timing.groups for name in group} == {"eager", "a", "b"}
        assert timing.lost == {}
    assert timed("eager", "b", client=Watching)[0].gpu_work == {}


def test_after_a_loss_the_others_are_timed_together_as_if_it_had_not_been_there():
    timing, opened = timed("eager", "dies", "a", "b")
    assert opened == [("eager", "dies", "a", "b"), ("eager", "a", "b"), ("eager",), ("dies",)]
    assert timing.lost == {"dies": ("crashed", "died")}
    assert groups(timing) == [("eager", "a", "b")]


def test_after_two_losses_each_is_tried_with_eager():
    timing, opened = timed("eager", "dies", "raises", "a")
    first, second, *others = opened
    assert first == ("eager", "dies", "raises", "a")
    assert second in [("eager", "raises", "a"), ("eager", "dies", "a")]
    assert others[:2] == [("eager", "a"), ("eager", "a")]
    assert timing.lost == {"dies": ("crashed", "died"), "raises": ("failed", "ValueError: no")}
    assert groups(timing) == [("eager", "a")]


def test_eager_is_left_alone_and_waits_for_ever():
    timing, _ = timed("eager", "dies")
    assert groups(timing) == [("eager",)]
    assert set(timing.lost) == {"dies"}


def test_where_eager_itself_is_lost_nobody_is_timed():
    timing, _ = timed("eager", "a", "b", apart=["b"], client=WithoutEager)
    assert timing.groups == []
    assert timing.lost["eager"] == ("failed", "eager: no")
    assert set(timing.lost) == {"eager", "a", "b"}


def test_who_slows_others_down_is_timed_apart_and_they_together_again():
    timing, opened = timed("eager", "slows_others", "a")
    assert opened[0] == ("eager", "slows_others", "a")
    assert ("eager", "slows_others") in opened
    assert opened[-3:] == [("eager", "a"), ("eager",), ("slows_others",)]
    assert (
        "eager alone takes 1e+03 ms a call in a process of its own, and 3e+03 ms"
        in (timing.apart["slows_others"])
    )
    assert groups(timing) == [("eager", "a"), ("eager", "slows_others")]
    assert set(timing.groups[0]["eager"]) == set(timing.groups[0]["a"]) == {1e3}
    assert set(timing.groups[1]["eager"]) == {1e3}


def test_whose_clock_is_not_this_ones_has_no_times_and_the_others_have():
    timing, opened = timed("eager", "slow_clock", "a")
    assert opened[-3:] == [("eager", "a"), ("eager",), ("slow_clock",)]
    assert groups(timing) == [("eager", "a")]
    (status, reason) = timing.lost["slow_clock"]
    assert (status, "process's clock says" in reason) == ("failed", True)


def test_who_changed_what_all_share_is_in_a_process_of_its_own_from_the_start():
    timing, opened = timed("eager", "a", "changes", apart=["changes"])
    assert opened == [("eager", "a"), ("eager",), ("changes",)]
    assert groups(timing) == [("eager", "a"), ("eager", "changes")]
    assert timing.apart == {"changes": "it changed what all share"}


def test_who_dies_beside_others_is_timed_apart_from_them():
    timing, opened = timed("eager", "dies", "changes", apart=["changes"])
    assert opened[:2] == [("eager", "dies"), ("eager",)]
    assert groups(timing) == [("eager",), ("eager", "changes")]
    assert timing.lost == {"dies": ("crashed", "died")}


def test_nobody_waits_for_rounds_that_one_of_them_slows(monkeypatch):
    monkeypatch.setattr("backbay.race.timing._GRACE_S", -1e9)
    timing, opened = timed("eager", "a", "b")
    assert opened[0] == ("eager", "a", "b")
    assert set(timing.apart) == {"a", "b"}
    assert "one of the backends slows the others down" in timing.apart["a"]
    assert groups(timing) == [("eager",), ("eager", "a"), ("eager", "b")]
    assert timing.lost == {}


def test_what_inputs_take_to_be_renewed_slows_nobody(monkeypatch):
    monkeypatch.setattr("backbay.race.timing._GRACE_S", 0.0)
    monkeypatch.setattr("backbay.race.timing._SLOWED", 0.0)
    renewed = Timing._renew

    def slow(self, *args):
        renewed(self, *args)
        self._renewing_s += 1e3

    monkeypatch.setattr(Timing, "_renew", slow)
    timing, _ = timed("eager", "a", "b")
    assert groups(timing) == [("eager", "a", "b")]


def test_what_nobody_alone_is_to_blame_for_is_a_note_and_all_are_timed_apart():
    timing, opened = timed("eager", "a_with_b", "b_with_a")
    assert groups(timing) == [("eager", "a_with_b"), ("eager", "b_with_a")]
    (note,) = timing.notes
    assert "each was timed in a process of its own, beside eager" in note
    assert opened[1:3] == [("eager", "a_with_b"), ("eager", "b_with_a")]


def test_who_takes_longer_than_its_limit_is_cut_off_and_says_so():
    timing, _ = timed("eager", "a", "hour_long", backend_s=40_000.0)
    assert groups(timing) == [("eager", "a")]
    assert timing.lost == {
        "hour_long": ("timeout", "to time it takes 4.32e+04 s, and it has 4e+04 s")
    }


def test_whoever_has_no_times_when_all_took_too_long_says_so():
    timing, _ = timed("eager", "a", "takes_time", apart=["takes_time"], whole_s=1.5)
    late = ("timeout", "the timing of all together took longer than 1.5 s")
    assert timing.lost == {"takes_time": late}
    assert groups(timing) == [("eager", "a")]
    timing, _ = timed("eager", "a", whole_s=-1.0)
    assert set(timing.lost) == {"eager", "a"}


class Noted(Turns):
    """Knows whose turn it is; each is waited for."""

    now = "nobody's"

    @contextlib.contextmanager
    def turn(self, name):
        assert self.now == "nobody's"
        time.sleep(0.2)
        self.now = name
        yield
        self.now = "nobody's"

    def working(self):
        return self.turn("working")

    def timing(self):
        return self.turn("timing")


@pytest.mark.parametrize("objective", [None, Objective(kind="total", calls=9, warm=True)])
def test_who_times_is_disturbed_or_who_waits_for_a_turn_loses_its_time(objective):
    turns, seen = Noted(), set()

    class Noting(Client):
        def ask(self, request, *, timeout_s):
            seen.add((type(request), turns.now))
            return super().ask(request, timeout_s=timeout_s)

    timing, _ = timed(
        *("eager", "a", "b"),
        apart=["b"],
        client=Noting,
        turns=turns,
        objective=objective,
        whole_s=0.5,
    )
    compiling = "working" if objective is None else "timing"
    assert {x for x in seen if x[0] is not Renew} == {(Open, compiling), (Block, "timing")}
    assert (groups(timing), timing.lost) == ([("eager", "a"), ("eager", "b")], {})


class BecomesSlow(Client):
    """Blocks take a multiple of what steps took when it was opened."""

    def ask(self, request, *, timeout_s):
        if isinstance(request, Hand):
            Path(request.path).touch()
            return Done()
        reply = super().ask(request, timeout_s=timeout_s)
        if isinstance(request, Block):
            time.sleep(0.01)
        if isinstance(request, Open):
            return msgspec.structs.replace(
                reply, step_s=dict.fromkeys(self.ready, 1e-3), most_calls=1
            )
        return reply


def test_rounds_that_end_early_leave_a_set_of_inputs_unjudged(tmp_path):
    names = ["a", "b", "c", "d", "e"]
    sets = InputSets(files=(Path("inputs-1"), Path("inputs-2")), seeds=(0, 1, 2))
    timing, _ = timed(
        *("eager", *names), client=BecomesSlow, sets=sets, folder=tmp_path, timing_s=0.25
    )
    assert len(timing.groups[0]["eager"]) == 6  # of the 13 that were planned
    given = {name: {x.piece.inputs for x in timing.given.get(name, ())} for name in names}
    assert given == {name: {0, 1, 2} for name in names}


@pytest.mark.parametrize("fewest", [6, 7, 12])
@pytest.mark.parametrize("files", [0, 1, 2, 4])
def test_what_is_judged_while_the_clock_runs_is_of_one_set_of_inputs(fewest, files):
    sets = files + 1
    timing = Timing(
        setup=SETUP,
        arms={},
        digest="",
        open_session=lambda: pytest.fail("nothing is asked"),
        limits=Limits(),
        tell=lambda *_: None,
        folder=Path(),
        sets=InputSets(files=tuple(Path(f"inputs-{x}") for x in range(files))),
    )
    drawn = [timing._sampled(["eager", "one"], fewest, 60) for _ in range(50)]
    for rounds in (set(x["one"]) for x in drawn):
        early = [x for x in rounds if x < 6]
        assert len(early) == 3
        assert len({x % sets for x in early}) == min(3, sets)
        assert sum(6 <= x < fewest for x in rounds) == (fewest > 6)
        assert len(rounds) == 3 + (fewest > 6) + -(-(60 - fewest) // 16)
    assert all("eager" not in x for x in drawn)
    assert len({tuple(sorted(x["one"])) for x in drawn}) > 1  # nobody can know them


@pytest.mark.parametrize(
    ("taken", "step_s", "calls"),
    [
        ([3.0, 14.0, 1.0, 1.1, 1.2, 1.3, 0.1], 1.0, 6),  # the second one records
        ([700.0, 0.9, 0.1], 0.9, 2),  # the first one times itself
        ([9e3, 8e3, 1.0], 8e3, 2),
    ],
)
def test_a_call_that_records_is_taken_for_a_step(taken, step_s, calls, monkeypatch):
    left = [x / 1e3 for x in taken]
    monkeypatch.setattr(RaceHandler, "_seconds", lambda *_, **__: left.pop(0))
    assert RaceHandler()._step_s("arm") == pytest.approx(step_s / 1e3)
    assert len(taken) - len(left) == calls
