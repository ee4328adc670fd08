"""Processes that start before they are needed: each is used once, and none is left."""

import contextlib
import os
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from backbay.race import Limits, run
from backbay.race.ahead import Ahead
from backbay.race.handler import RaceHandler
from backbay.race.requests import Done, GetReady, Load
from backbay.session import Lost
from backbay.workloads import loading
from backbay.workloads.setup import WorkloadSetup

FAULTY = Path(__file__).with_name("faulty.py")
WAIT_S = 20.0
SETUP = WorkloadSetup(
    workload="decoder", size=None, mode="infer", dtype="float32", device="cpu", seed=0
)
READY = GetReady(setup=SETUP)


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


def hanging(environment):
    return Opened(environment, hangs=True)


def interrupted():
    raise KeyboardInterrupt


def test_a_started_process_is_used_once_and_what_is_left_ends():
    with Ahead(Opened, timeout_s=WAIT_S) as ahead:
        ahead.start({"a": "1"})
        ahead.start({"a": "2"})
        first, again = ahead({"a": "1"}), ahead({"a": "1"})
        assert first.said == ["open"]
        assert again.said == []
        assert again.environment == {"a": "1"}
        left = ahead._started[0].session
    assert first.said == ["open"]  # whoever has it ends it
    assert left.said == ["open", "end"]


def test_one_that_does_not_start_is_opened_by_who_needs_it():
    with Ahead(lambda x: Opened(x, starts=False), timeout_s=WAIT_S) as ahead:
        ahead.start({"a": "1"})
        assert ahead({"a": "1"}).said == []


def test_who_opens_one_that_gets_ready_waits_for_that():
    with Ahead(Opened, timeout_s=WAIT_S) as ahead:
        ahead.start({"a": "1"})
        for name in ("1", "2"):
            ahead.get_ready({"a": name}, READY)
        session = ahead({"a": "1"})
        assert session.said == ["open", READY, "ready"]
        ahead.get_ready({"a": "1"}, READY)  # whose it is now
        assert ahead({"a": "2"}).said == []
    assert session.said == ["open", READY, "ready"]


@pytest.mark.parametrize("awaited", [False, True])
def test_one_that_never_gets_ready_ends_with_the_others(awaited):
    with contextlib.suppress(KeyboardInterrupt), Ahead(hanging, timeout_s=WAIT_S) as ahead:
        ahead.start({"a": "1"})
        ahead.get_ready({"a": "1"}, READY)
        left, start = ahead._started[0], time.monotonic()
        if awaited:
            left.ready.result = interrupted
            ahead({"a": "1"})
    assert time.monotonic() - start < WAIT_S / 2
    assert left.session.said[-1] == "end"


def test_a_model_that_is_ready_is_built_again(monkeypatch):
    built = []
    monkeypatch.setattr(
        loading, "build", lambda x, build=loading.build: built.append(x) or build(x)
    )
    handler, setup = RaceHandler(), msgspec.structs.replace(SETUP, size="tiny")
    assert handler.answer(GetReady(setup=setup)) == Done()
    assert built == [setup]
    handler.answer(Load(setup=setup))
    assert built == [setup]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_race_starts_its_processes_ahead_and_none_is_left(monkeypatch, at_once):
    started, asked = [], []
    start, ask = Ahead.start, Ahead._asked
    monkeypatch.setattr(Ahead, "start", lambda self, x: (started.append(x), start(self, x)))
    monkeypatch.setattr(Ahead, "_asked", lambda self, one, x: (asked.append(x), ask(self, one, x)))
    names = [f"{FAULTY}:{x}" for x in ("honest", "scaled")]
    limits = Limits(backend_s=120.0, timing_s=0.5, at_once=at_once)
    report = run(f"{FAULTY}:small", backends=names, device="cpu", limits=limits)
    assert [x.status for x in report.results] == ["ok", "ok", "wrong"]
    assert report.results[1].median_ms is not None
    assert len(started) == 1 + at_once  # of eager, which is where all are timed, and of arms
    # Nothing is done beside an arm that compiles alone.
    assert [x.setup.workload for x in asked] == [f"{FAULTY}:small"] * (at_once - 1)
    workers = psutil.Process(os.getpid()).children(recursive=True)
    assert not [x for x in workers if "backbay.session.worker" in " ".join(x.cmdline())]
