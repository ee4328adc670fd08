"""Trials side by side: each is judged as if it were alone, and an interrupt ends all of them."""

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from backbay.errors import Interrupted
from backbay.judge import Judge
from backbay.judge.requests import Compare
from backbay.race import Limits, Objective, run, workload_race
from backbay.race.caches import Caches

FAULTY = Path(__file__).with_name("faulty.py")
QUICK = Limits(backend_s=120.0, timing_s=0.5, at_once=3)

pytestmark = pytest.mark.slow


def raced(*backends, limits=QUICK, **more):
    names = [f"{FAULTY}:{x}" for x in backends]
    return run(f"{FAULTY}:small", backends=names, device="cpu", limits=limits, **more)


def test_a_trial_takes_the_files_or_the_verdict_of_another():
    report = raced("honest", "scaled", "segfaults", "raises", "as_told")
    assert [(x.arm.rpartition(":")[2], x.status) for x in report.results] == [
        ("eager", "ok"),
        ("honest", "ok"),
        ("scaled", "wrong"),
        ("segfaults", "crashed"),
        ("raises", "failed"),
        ("as_told", "wrong"),
    ]
    assert {x.compiled_beside for x in report.results[1:]} == {2}
    assert any("up to 3 arms were compiled at the same time" in x for x in report.notes)
    assert report.results[1].median_ms is not None


def test_where_compile_times_decide_they_are_those_of_a_machine_that_does_other_things(here):
    report = raced("honest", "raises", objective=Objective(kind="total", calls=3))
    assert {x.compiled_beside for x in report.results} == {0}
    assert report.decision[0].sentence.startswith("with 3 calls and a cold compilation, ")


def test_an_interrupt_waits_for_what_hangs():
    def interrupt(result):
        if result.arm.endswith("honest"):
            raise KeyboardInterrupt

    start = time.monotonic()
    limits = dataclasses.replace(QUICK, backend_s=600.0)
    with pytest.raises(Interrupted) as stopped:
        raced("hangs", "honest", limits=limits, on_row=interrupt)
    assert time.monotonic() - start < 300
    found = {x.arm.rpartition(":")[2]: x.status for x in stopped.value.report.results}
    assert found["honest"] == "ok"


def test_an_arm_finds_what_another_has_left(tmp_path):
    caches = Caches(tmp_path)
    toolchain = Path(caches.toolchain()["TORCHINDUCTOR_CACHE_DIR"])
    (toolchain / "probe").write_text("found")
    assert caches.toolchain() is None
    caches.empty("inductor")
    (caches.folder("inductor") / "model").write_text("compiled")
    caches.empty("other")
    assert [x.name for x in caches.folder("other").iterdir()] == ["probe"]
    (caches.folder("other") / "mine").write_text("compiled")
    caches.empty("third")
    assert [x.name for x in caches.folder("third").iterdir()] == ["probe"]
    assert caches.environment("third")["TMPDIR"] != caches.environment("other")["TMPDIR"]
    caches.drop()
    assert not caches.folder("inductor").exists()


def test_a_file_that_gets_its_name_meanwhile_ends_the_race(tmp_path, monkeypatch):
    caches, link = Caches(tmp_path), os.link
    toolchain = Path(caches.toolchain()["TORCHINDUCTOR_CACHE_DIR"])
    for name in ("probe", ".1.tmp"):
        (toolchain / name).write_text("found")

    def link_late(source, destination):
        if source.endswith(".tmp"):
            Path(source).unlink()
        link(source, destination)

    monkeypatch.setattr(os, "link", link_late)
    caches.empty("inductor")
    assert [x.name for x in caches.folder("inductor").iterdir()] == ["probe"]


class DyingJudge(Judge):
    """Its process is killed before the first comparison, as who is out of memory is."""

    def verdict(self, pieces):
        if self.lost is None:
            for child in psutil.Process(self._keeper.open()._process.pid).children():
                child.kill()
        return super().verdict(pieces)


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_death_of_the_judge_is_an_arms_or_ends_the_race_with_a_traceback(monkeypatch, at_once):
    monkeypatch.setattr(workload_race, "Judge", DyingJudge)
    report = raced("honest", "scaled", limits=dataclasses.replace(QUICK, at_once=at_once))
    assert [x.status for x in report.results] == ["ok", "failed", "failed"]
    assert all("the judge was lost" in x.reason for x in report.results[1:])
    assert report.decision[0].sentence.startswith("nothing is decided: the judge was lost")
    assert all(x.median_ms is None for x in report.results)


def test_an_interrupt_waits_for_a_comparison(monkeypatch):
    stopped = threading.Event()

    class SlowJudge(Judge):
        def verdict(self, pieces):
            if self.lost is None:
                self._keeper.stop()  # its process compares, and takes its time
                os.kill(os.getpid(), signal.SIGINT)
                self._keeper.ask(Compare(pieces=tuple(pieces)), timeout_s=600.0)
            return super().verdict(pieces)

        def end(self):
            stopped.set()
            super().end()

    monkeypatch.setattr(workload_race, "Judge", SlowJudge)
    start = time.monotonic()
    with pytest.raises(Interrupted):
        raced("honest", "scaled")
    assert stopped.is_set()
    assert time.monotonic() - start < 300
