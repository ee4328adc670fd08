"""Processes that start before they are needed: each is used once, and none is left."""

import os
import threading
import time
from pathlib import Path

import psutil
import pytest

from backbay.race import Limits, run
from backbay.race.ahead import Ahead
from backbay.race.requests import GetReady
from backbay.session import Lost
from backbay.workloads.setup import WorkloadSetup

FAULTY = Path(__file__).with_name("faulty.py")
WAIT_S = 20.0
SETUP = WorkloadSetup(
    workload="decoder", size=None, mode="infer", dtype="float32", device="cpu", seed=0
)


class Opened:
    """A session that notes what becomes of its process."""

    def __init__(self, environment, *, starts=True, hangs=False):
        self.environment, self.starts, self.hangs = environment, starts, hangs
        self.said, self.ended = [], threading.Event()

    def open(self):
        if not self.starts:
            raise Lost("no process could be started", "failed")
        self.said.append("open")

    def ask(self, request, timeout_s):
        assert timeout_s == WAIT_S
        self.said.append(request)
        if self.hangs:
            self.ended.wait(WAIT_S)
            raise Lost("it was ended", "failed")
        time.sleep(0.05)
        self.said.append("ready")

    def end(self):
        self.ended.set()
        self.said.append("end")


def test_a_started_process_is_used_once_and_what_is_left_ends():
    with Ahead(Opened, timeout_s=WAIT_S) as ahead:
        ahead.start({"a": "1"})
        ahead.start({"a": "2"})
        first, again = ahead({"a": "1"}), ahead({"a": "1"})
        assert first.said == ["open", GetReady(), "ready"]  # who opens it waits for that
        assert again.said == []
        assert again.environment == {"a": "1"}
        left = ahead._started[0].session
    assert "end" not in first.said  # whoever has it ends it
    assert "end" in left.said


def test_one_that_does_not_start_is_opened_by_who_needs_it():
    with Ahead(lambda x: Opened(x, starts=False), timeout_s=WAIT_S) as ahead:
        ahead.start({"a": "1"})
        ahead.get_ready({"a": "1"}, GetReady())
        assert ahead({"a": "1"}).said == []


def test_what_is_asked_ahead_comes_in_order_and_of_nobody_else():
    more = GetReady(setup=SETUP)
    with Ahead(Opened, timeout_s=WAIT_S) as ahead:
        ahead.start({"a": "1"})
        ahead.get_ready({"a": "1"}, more)
        ahead.get_ready({"a": "2"}, more)
        session = ahead({"a": "1"})
        ahead.get_ready({"a": "1"}, more)  # whose it is now
        assert session.said == ["open", GetReady(), "ready", more, "ready"]
        assert ahead({"a": "2"}).said == []


def test_one_that_never_gets_ready_is_ended_with_the_others():
    with Ahead(lambda x: Opened(x, hangs=True), timeout_s=WAIT_S) as ahead:
        ahead.start({"a": "1"})
        ahead.get_ready({"a": "1"}, GetReady())
        left, start = ahead._started[0].session, time.monotonic()
    assert time.monotonic() - start < WAIT_S / 2
    assert left.said[-1] == "end"


@pytest.mark.slow
def test_a_race_starts_its_processes_ahead_and_none_is_left(monkeypatch):
    started, asked = [], []
    start, ask = Ahead.start, Ahead._asked
    monkeypatch.setattr(Ahead, "start", lambda self, x: (started.append(x), start(self, x)))
    monkeypatch.setattr(
        Ahead, "_asked", lambda self, one, x, **rest: (asked.append(x), ask(self, one, x, **rest))
    )
    names = [f"{FAULTY}:{x}" for x in ("honest", "scaled")]
    limits = Limits(backend_s=120.0, timing_s=0.5, at_once=1)
    report = run(f"{FAULTY}:small", backends=names, device="cpu", limits=limits)
    assert [x.status for x in report.results] == ["ok", "ok", "wrong"]
    assert report.results[1].median_ms is not None
    # Of eager, which is where all are timed, and of the first arm.
    assert len(started) == 2
    assert asked == [GetReady(), GetReady(), GetReady(setup=asked[-1].setup)]
    assert asked[-1].setup is not None
    workers = psutil.Process(os.getpid()).children(recursive=True)
    assert not [x for x in workers if "backbay.session.worker" in " ".join(x.cmdline())]
