"""Who times is alone, who works is not, and who dies keeps nobody waiting."""

import contextlib
import subprocess
import sys
import threading
import time

import pytest

from backbay.race import Limits, run, timing
from backbay.race.turns import SharedDevice, Turns

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))


def enters_while(held, wanted):
    """Whether a second race can begin something while a first one holds something."""
    entered = threading.Event()

    def enter():
        with wanted:
            entered.set()

    thread = threading.Thread(target=enter)
    with held:
        thread.start()
        soon = entered.wait(0.3)
    thread.join(10)
    assert entered.is_set()
    return soon


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("working", "working", True),
        ("working", "timing", False),
        ("timing", "working", False),
        ("timing", "timing", False),
    ],
)
def test_who_times_is_alone(first, second, together):
    one, other = SharedDevice("cpu"), SharedDevice("cpu")
    assert enters_while(getattr(one, first)(), getattr(other, second)()) is together


@pytest.mark.parametrize(
    ("held", "first", "second"), [("working", "timing", "working"), ("timing", "working", "timing")]
)
def test_who_waits_to_time_is_overtaken_by_who_is_about_to_work(held, first, second):
    order, threads = [], []

    def enter(name):
        with getattr(SharedDevice("cpu"), name)():
            order.append(name)

    with getattr(SharedDevice("cpu"), held)():
        for name in (first, second):
            threads.append(threading.Thread(target=enter, args=(name,)))
            threads[-1].start()
            time.sleep(0.3)
        assert order == []
    for thread in threads:
        thread.join(10)
    assert order == ["timing", "working"]


def test_other_devices_and_races_without_turns_wait_for_nobody():
    assert enters_while(SharedDevice("cuda 0").timing(), SharedDevice("cuda 1").timing())
    assert enters_while(Turns().timing(), Turns().timing())


def test_who_dies_keeps_nobody_waiting():
    program = (
        "import time; from backbay.race.turns import SharedDevice\n"
        "with SharedDevice('cpu').timing():\n    print('timing', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "timing\n"
        process.kill()
        start = time.monotonic()
        with SharedDevice("cpu").timing():
            assert time.monotonic() - start < 10


@pytest.mark.slow
@pytest.mark.parametrize("slowed", [False, True])
def test_a_race_works_and_times_in_its_turns(here, tmp_path, monkeypatch, slowed):
    class Noted(Turns):
        now, seen = "nothing", []

        @contextlib.contextmanager
        def turn(self, name):
            assert self.now == "nothing"
            self.now = name
            try:
                yield
            finally:  # a busy machine makes times void, and they are taken again
                self.now = "nothing"

        def working(self):
            return self.turn("working")

        def timing(self):
            return self.turn("timing")

    monkeypatch.setattr(timing, "_is_slower", lambda _before, _after: slowed)
    model = tmp_path / "mine.py"
    model.write_text("import torch\ndef model():\n    return torch.nn.ReLU(), (torch.ones(4),)\n")
    turns = Noted()
    run(
        f"{model}:model",
        backends=["aot_eager"],
        device="cpu",
        limits=Limits(timing_s=0.3),
        turns=turns,
        tell=lambda _workload, _arm, text, _how_far: turns.seen.append((turns.now, text)),
    )
    assert {now for now, text in turns.seen if "reference" in text} == {"working"}
    assert {now for now, text in turns.seen if "proving" in text} == {"working"}
    assert {now for now, text in turns.seen if "timing" in text} == {"timing"}
    assert {now for now, text in turns.seen if "compiling again" in text} == {"working"}
    loaded = [now for now, text in turns.seen if "loading again" in text]
    assert loaded[0] == "working"
    # Whether others slow eager is part of the timing: nobody works beside the new process of it.
    assert ("timing" in loaded) is slowed
