"""The table of what `backbay.choose` applied and how it did, timed anew."""

import subprocess
import sys
import time

import msgspec
import psutil
import pytest

import choose
from backbay.race.record import Machine, Report, Result, Settings
from backbay.timing.gpu_work import GpuWork
from speed import chosen
from speed.chosen import Anew

MACHINE = Machine(system="Linux", processor="CPU", cores=2, memory_bytes=1, device="cpu")


def anew(workload="model", *, raced=False, **medians):
    around = [1 + 0.001 * (n % 5 - 2) for n in range(20)]
    return Anew(
        workload=workload,
        mode="infer",
        dtype="float32",
        created="2026-11-25T00:00:00+00:00",
        machine=MACHINE,
        versions={"torch": "2.13.0"},
        decided="inductor",
        why="inductor, raced on 2026-11-25",
        raced=raced,
        choose_s=0.5,
        samples_ms={name: [x * y for y in around] for name, x in medians.items()},
        busy=0.0,
    )


@pytest.mark.parametrize(("slower", "holds"), [(1.0, True), (1.02, True), (1.05, False)])
def test_a_row_holds_though_it_is_worse_or_not_though_it_is_alike(slower, holds):
    row = chosen.row(anew(eager=4.0, inductor=2.0, chosen=2.0 * slower))
    assert (row.best, row.holds) == ("inductor", holds)
    assert row.over_best.value == pytest.approx(slower)
    assert row.over_inductor.value == pytest.approx(1 / slower)


def test_what_may_be_no_worse_does_not_hold():
    unsure = anew(inductor=2.0, chosen=2.0)
    unsure.samples_ms["chosen"][:] = [2.0, 2.16] * 10
    row = chosen.row(unsure)
    assert row.over_best.value > 1.03
    assert row.holds


def test_what_was_raced_again_holds():
    assert not chosen.row(anew(inductor=2.0, chosen=2.0, raced=True)).holds
    assert "raced again" in chosen.text([anew(inductor=2.0, chosen=2.0, raced=True)], {}, "")


def test_a_mean_is_not_geometric_or_counts_who_has_no_inductor():
    found = [
        anew(inductor=4.0, chosen=1.0),
        anew(inductor=1.0, chosen=1.0),
        anew(eager=1.0, chosen=0.1),
    ]
    mean = chosen.mean(found)
    assert mean.value == pytest.approx(2.0)
    assert mean.interval[0] <= mean.value <= mean.interval[1]
    assert mean.interval[1] - mean.interval[0] < 0.01
    assert chosen.mean(found[2:]) is None


def test_an_arm_that_was_not_right_has_no_cell():
    result = Result(workload="model", mode="infer", backend="other", arm="other@m", status="wrong")
    report = Report(
        created="",
        machine=MACHINE,
        versions={},
        settings=Settings(backends=(), mode="infer", dtype="float32", device="cpu", seed=0),
        decision=(),
        results=(result,),
    )
    text = chosen.text([anew(inductor=2.0, chosen=2.0)], {("model", "infer"): report}, "")
    assert "| workload | inductor | other@m | cores by others |" in text
    assert "| wrong | 0.0 |" in text
    assert "; CPU, 2 cores; torch 2.13.0." in text


def test_the_table_hides_who_failed_or_does_not_hold():
    failed = anew("models.py:small", eager=4.0, chosen=4.0)
    failed = msgspec.structs.replace(
        failed, failed={"inductor": "died"}, gpu_work={"eager": GpuWork(busy_ms=1.5, launches=2)}
    )
    text = chosen.text([failed, anew("large", eager=4.0, inductor=2.0, chosen=2.2)], {}, "")
    assert "by more than 3 %: 1 of 2" in text
    small, large, *arms = [x for x in text.splitlines() if x.startswith(("| small", "| large"))]
    assert small.endswith(" | yes |  | 0.5 |")
    assert " | **no** | 0.909 [" in large
    assert arms[0].startswith("| small, infer | 4 [")
    assert arms[0].endswith("] (1.5) | failed anew | 0.0 |")
    assert chosen.text([], {}, "") == "Nothing was timed anew.\n"


def test_the_json_can_not_be_read_again():
    found = [anew(inductor=2.0, chosen=2.0)]
    document = msgspec.json.decode(chosen.document(found))
    assert msgspec.convert(document["anew"], list[Anew]) == found
    assert document["rows"][0]["holds"] is True


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_who_works_goes_on_while_another_times_or_never_again():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    gone = psutil.Process(ended.pid)
    ended.wait()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        other = psutil.Process(process.pid)
        try:
            with choose.stopped([gone, other]):
                assert other.status() == psutil.STATUS_STOPPED
            deadline = time.monotonic() + 10
            while other.status() == psutil.STATUS_STOPPED and time.monotonic() < deadline:
                time.sleep(0.01)
            assert other.status() != psutil.STATUS_STOPPED
        finally:
            process.kill()
