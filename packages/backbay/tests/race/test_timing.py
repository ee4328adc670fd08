"""Who is timed where, and who must compile again, in sessions that start no process."""

from backbay.race.requests import Open, Opened
from backbay.race.timing import Limits, Timing
from backbay.session import Lost, Refused, Session
from backbay.timing.measure import Block, Timed
from backbay.workloads.setup import WorkloadSetup

SETUP = WorkloadSetup(workload="w", size=None, mode="infer", dtype="float32", device="cpu", seed=0)


class Client:
    """Answers at once; a block of a backend called "dies" ends it, one of "raises" is refused."""

    def __init__(self, opened):
        self.ready, self.running, self.over = (), True, False
        opened.append(self)

    def ask(self, request, *, timeout_s):
        if not self.running:
            raise Lost("no answer: it is stopped", "timeout")
        if isinstance(request, Open):
            self.ready = request.backends
            return Opened(step_s=dict.fromkeys(self.ready, 1.0), failed={})
        assert isinstance(request, Block)
        assert request.backend in self.ready
        if request.backend == "dies":
            raise Lost("died")
        if request.backend == "raises":
            raise Refused("ValueError: no")
        return Timed(seconds=1.0 * request.calls)

    def end(self):
        self.over = True

    def stop(self):
        self.running = False

    def resume(self):
        self.running = True


def timed(*names):
    opened = []
    timing = Timing(
        setup=SETUP,
        digest="",
        open_session=lambda: Session(lambda: Client(opened)),
        limits=Limits(backend_s=1.0, timing_s=1.0),
        tell=lambda backend, text, how_far: None,
    )
    timing.run(names)
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
