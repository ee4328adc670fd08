"""Processes that start before they are needed: each is used once, and none is left."""

import os
from pathlib import Path

import psutil
import pytest

from backbay.race import Limits, run
from backbay.race.ahead import Ahead
from backbay.session import Lost

FAULTY = Path(__file__).with_name("faulty.py")


class Opened:
    """A session that notes what becomes of its process."""

    def __init__(self, environment, *, starts=True):
        self.environment, self.starts = environment, starts
        self.said = []

    def open(self):
        if not self.starts:
            raise Lost("no process could be started", "failed")
        self.said.append("open")

    def end(self):
        self.said.append("end")


def test_a_started_process_is_used_once_and_what_is_left_ends():
    with Ahead(Opened) as ahead:
        ahead.start({"a": "1"})
        ahead.start({"a": "2"})
        first, again = ahead({"a": "1"}), ahead({"a": "1"})
        assert first.said == ["open"]
        assert again.said == []
        assert again.environment == {"a": "1"}
        left = ahead._started[0][1]
    assert first.said == ["open"]  # whoever has it ends it
    assert left.said == ["open", "end"]


def test_one_that_does_not_start_is_opened_by_who_needs_it():
    with Ahead(lambda x: Opened(x, starts=False)) as ahead:
        ahead.start({"a": "1"})
        assert ahead({"a": "1"}).said == []


@pytest.mark.slow
def test_a_race_starts_its_processes_ahead_and_none_is_left(monkeypatch):
    started = []
    start = Ahead.start
    monkeypatch.setattr(Ahead, "start", lambda self, x: (started.append(x), start(self, x)))
    names = [f"{FAULTY}:{x}" for x in ("honest", "scaled")]
    limits = Limits(backend_s=120.0, timing_s=0.5, at_once=1)
    report = run(f"{FAULTY}:small", backends=names, device="cpu", limits=limits)
    assert [x.status for x in report.results] == ["ok", "ok", "wrong"]
    assert report.results[1].median_ms is not None
    # Of eager, which is where all are timed, and of the first arm.
    assert len(started) == 2
    workers = psutil.Process(os.getpid()).children(recursive=True)
    assert not [x for x in workers if "backbay.session.worker" in " ".join(x.cmdline())]
