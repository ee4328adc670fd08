"""A race against an earlier one: what fails, what can't be told, and what can't be compared."""

import json

import browser
import made_up_races
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from backbay.cli import main
from backbay.errors import InputError
from backbay.race.against import check_comparable, compared
from backbay.race.page import page
from backbay.race.reading import read
from backbay.race.record import Machine, Report, Result, Settings
from backbay.race.table import table
from backbay.reporting.wording import ratio

MACHINE = Machine(system="Linux", processor="one", cores=4, memory_bytes=1 << 34, device="cpu")
VERSIONS = {"python": "3.11.9", "torch": "2.13.0"}


def timed(backend, milliseconds, *, spread=0.01, seed=0, eager=()):
    samples = np.random.default_rng(seed).normal(milliseconds, spread * milliseconds, 20)
    return Result(
        workload="model",
        mode="infer",
        backend=backend,
        status="ok",
        median_ms=float(np.median(samples)),
        samples_ms=tuple(samples.tolist()),
        eager_samples_ms=tuple(eager),
    )


def failed(backend, status="wrong", reason="output[0] is off"):
    return Result(workload="model", mode="infer", backend=backend, status=status, reason=reason)


def raced(*results, created="2026-02-03T04:05:06+00:00", machine=MACHINE, versions=VERSIONS):
    return Report(
        created=created,
        machine=machine,
        versions=versions,
        settings=Settings(
            backends=("eager", "inductor"), mode="infer", dtype="float32", device="cpu", seed=0
        ),
        decision=(),
        results=results,
    )


def then(*results, **changed):
    return raced(*results, created="2026-01-01T00:00:00+00:00", **changed)


def rows(comparison):
    return {row.arm: row for row in comparison.rows}


def test_where_machine_and_versions_are_the_same_medians_are_compared():
    earlier = then(timed("eager", 10.0), timed("inductor", 5.0, seed=1))
    slower = raced(timed("eager", 10.0, seed=2), timed("inductor", 6.0, seed=3))
    found = compared(slower, earlier, 0.97)
    assert found.basis == "median_ms"
    assert [row.arm for row in found.failed] == ["inductor"]
    row = rows(found)["inductor"]
    assert row.speed == pytest.approx(5.0 / 6.0, rel=0.01)
    assert row.speed_ci[0] < row.speed < row.speed_ci[1] < 0.97
    assert "below 0.97x" in row.reason
    assert "model with inductor" in found.sentence


def test_eager_itself_slower_is_a_row_that_fails():
    earlier = then(timed("eager", 10.0), timed("inductor", 5.0, seed=1))
    changed = raced(timed("eager", 20.0, seed=2), timed("inductor", 5.0, seed=3))
    assert [x.arm for x in compared(changed, earlier, 0.97).failed] == ["eager"]


def test_an_interval_that_reaches_the_bar_fails_nothing():
    earlier = then(timed("eager", 10.0, spread=0.2), timed("inductor", 5.0, spread=0.2, seed=1))
    noisy = raced(
        timed("eager", 10.5, spread=0.2, seed=2), timed("inductor", 5.8, spread=0.2, seed=3)
    )
    found = compared(noisy, earlier, 0.97)
    assert rows(found)["inductor"].speed < 0.97
    assert not found.failed


def test_with_other_versions_ratios_to_eager_are_compared():
    earlier = then(timed("eager", 10.0), timed("inductor", 5.0, seed=1))
    newer = {**VERSIONS, "torch": "2.14.0", "triton": "3.8"}
    twice_as_slow = raced(
        timed("eager", 20.0, seed=2), timed("inductor", 10.0, seed=3), versions=newer
    )
    found = compared(twice_as_slow, earlier, 0.97)
    assert found.basis == "ratio_to_eager"
    assert found.differences == (
        "torch: 2.13.0 then, 2.14.0 now",
        "triton: absent then, 3.8 now",
    )
    assert not found.failed
    assert rows(found)["inductor"].speed == pytest.approx(1.0, rel=0.02)
    assert rows(found)["eager"].speed is None
    lost = raced(timed("eager", 10.0, seed=2), timed("inductor", 9.0, seed=3), versions=newer)
    assert [x.arm for x in compared(lost, earlier, 0.97).failed] == ["inductor"]


def test_on_another_processor_ratios_are_compared_and_it_is_said():
    other = msgspec.structs.replace(MACHINE, processor="two", cores=8)
    earlier = then(timed("eager", 10.0), timed("inductor", 5.0), machine=other)
    found = compared(raced(timed("eager", 4.0), timed("inductor", 2.0)), earlier, 0.97)
    assert found.basis == "ratio_to_eager"
    assert found.differences == ("processor: two then, one now", "cores: 8 then, 4 now")
    assert not found.failed


def test_on_another_device_only_what_is_right_is_compared():
    other = msgspec.structs.replace(MACHINE, device="A GPU")
    earlier = then(timed("eager", 1.0), timed("inductor", 0.5), timed("tvm", 0.5), machine=other)
    found = compared(
        raced(timed("eager", 9.0), timed("inductor", 9.0), failed("tvm")), earlier, 0.97
    )
    assert found.basis == "status"
    assert rows(found)["inductor"].speed is None
    assert [x.arm for x in found.failed] == ["tvm"]


def test_what_was_timed_by_itself_is_compared_by_the_eager_beside_it():
    newer = {**VERSIONS, "torch": "2.14.0"}
    apart = timed("inductor", 5.0, eager=timed("eager", 10.0, seed=9).samples_ms)
    earlier = then(timed("eager", 40.0), apart)
    found = compared(
        raced(timed("eager", 10.0), timed("inductor", 5.0, seed=3), versions=newer), earlier, 0.97
    )
    assert rows(found)["inductor"].speed == pytest.approx(1.0, rel=0.02)


def test_who_left_the_timing_early_is_compared_by_the_rounds_that_it_was_in():
    newer = {**VERSIONS, "torch": "2.14.0"}
    short = timed("inductor", 20.0, seed=3)
    short = msgspec.structs.replace(short, samples_ms=short.samples_ms[:8])
    earlier = then(timed("eager", 10.0), timed("inductor", 10.0, seed=1))
    found = compared(raced(timed("eager", 10.0), short, versions=newer), earlier, 0.97)
    assert [x.arm for x in found.failed] == ["inductor"]
    assert rows(found)["inductor"].speed == pytest.approx(0.5, rel=0.02)


def test_what_was_right_and_is_wrong_fails_whatever_its_speed():
    earlier = then(timed("eager", 10.0), timed("inductor", 5.0))
    found = compared(raced(timed("eager", 10.0), failed("inductor")), earlier, 0.5)
    assert rows(found)["inductor"].reason == "was right, and is wrong: output[0] is off"
    assert rows(found)["inductor"].failed


def test_rows_that_only_one_race_has_are_shown_and_fail_nothing():
    earlier = then(timed("eager", 10.0), timed("tvm", 5.0))
    found = compared(raced(timed("eager", 10.0), timed("inductor", 5.0)), earlier, 0.97)
    assert not found.failed
    assert rows(found)["tvm"].reason == "not in this race"
    assert rows(found)["inductor"].reason == "not in the earlier race"


def test_without_a_bar_no_row_fails():
    earlier = then(timed("eager", 1.0), timed("inductor", 1.0))
    found = compared(raced(timed("eager", 9.0), failed("inductor")), earlier)
    assert not found.failed
    assert rows(found)["eager"].speed == pytest.approx(1 / 9, rel=0.02)


def test_no_time_at_all_is_no_speed():
    earlier = then(msgspec.structs.replace(timed("eager", 1.0), samples_ms=()))
    found = compared(raced(timed("eager", 1.0)), earlier, 0.97)
    assert rows(found)["eager"].reason == "one of the two has no times to compare"


def test_a_race_of_another_step_or_dtype_is_refused():
    with pytest.raises(InputError, match="mode infer, and this one is of train"):
        check_comparable(then(), mode="train", dtype="float32")
    with pytest.raises(InputError, match="dtype float32, and this one is of bfloat16"):
        check_comparable(then(), mode="infer", dtype="bfloat16")


def test_the_comparison_is_in_the_table_on_the_page_and_in_the_json(tmp_path):
    earlier = then(timed("eager", 10.0), timed("inductor", 5.0))
    report = raced(timed("eager", 10.0), failed("inductor"))
    report = msgspec.structs.replace(report, against=compared(report, earlier, 0.97))
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table(report))
    printed = " ".join(captured.get().split())
    for text in (printed, page(report)):
        assert "was right, and is wrong: output[0] is off" in text
        assert "1 row failed: model with inductor" in text
    (tmp_path / "new.json").write_bytes(msgspec.json.encode(report))
    assert read(tmp_path / "new.json").against == report.against


def test_no_number_is_cut_in_a_narrow_terminal():
    earlier = then(timed("eager", 10.0), timed("inductor", 5.0))
    report = raced(timed("eager", 10.0, seed=2), timed("inductor", 6.0, seed=3))
    found = compared(report, earlier)
    console = Console(width=50)
    with console.capture() as captured:
        console.print(table(msgspec.structs.replace(report, against=found)))
    printed = " ".join(captured.get().split())
    for row in found.rows:
        assert f"{row.arm}: {ratio(row.speed, row.speed_ci)} as fast as then" in printed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "Expected `object`"),
        ('{"schema": "backbay.verify/1"}', "of schema 'backbay.verify/1'"),
        ('{"schema": "backbay.race/1"}', "missing required field"),
        ("{", "JSON is malformed|truncated"),
    ],
)
def test_a_file_that_holds_no_race_is_refused_before_anything_runs(tmp_path, text, why):
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(InputError, match=why):
        read(path)
    done = CliRunner().invoke(main, ["race", "--against", str(path)])
    assert done.exit_code == 2
    assert "does not hold a race" in done.output


def test_a_bar_without_an_earlier_race_is_refused():
    done = CliRunner().invoke(main, ["race", "--fail-below", "0.97"])
    assert done.exit_code == 2
    assert "name it with --against" in done.output


@pytest.mark.slow
def test_the_command_ends_with_1_and_says_which_row(here, tmp_path):
    model = tmp_path / "mine.py"
    model.write_text(
        "import torch\n"
        "def model():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()), "
        "(torch.randn(64, 64),)\n"
    )
    kept, now = tmp_path / "kept.json", tmp_path / "now.json"
    command = ["race", f"{model}:model", "--backends", "aot_eager", "--device", "cpu", "--no-keep"]
    command += ["--seconds", "0.3"]
    done = CliRunner().invoke(main, [*command, "--json", str(kept)])
    assert done.exit_code == 0, done.output
    document = json.loads(kept.read_text())
    for row in document["results"]:  # as if it had been far faster, however busy the machine is
        row["samples_ms"] = [x / 1e6 for x in row["samples_ms"]]
    kept.write_text(json.dumps(document))
    again = [*command, "--against", str(kept), "--json", str(now)]
    done = CliRunner().invoke(main, [*again, "--fail-below", "0.97"])
    assert done.exit_code == 1, done.output
    assert f"{model}:model with aot_eager: 0." in done.output
    assert "below 0.97x" in done.output
    assert json.loads(now.read_text())["against"]["basis"] == "median_ms"
    done = CliRunner().invoke(main, again)
    assert done.exit_code == 0, done.output


@browser.needs_browser
def test_no_text_of_the_page_is_clipped_or_covered(tmp_path):
    earlier, report = (made_up_races.raced(made_up_races.WORKLOADS[-1], seed=n) for n in (1, 2))
    report = msgspec.structs.replace(report, against=compared(report, earlier, 0.97))
    browser.check_layout(page(report), tmp_path)
