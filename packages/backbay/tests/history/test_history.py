"""A metric over races that were kept: what is one table, and what changed between two runs."""

import json
import re

import browser
import made_up_races
import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from backbay.cli import main
from backbay.history import METRICS, traced
from backbay.history.page import page
from backbay.history.table import table
from backbay.race.record import Machine, Report, Result, Settings
from backbay.reporting.wording import NOTHING, ratio

MACHINE = Machine(system="Linux", processor="one", cores=4, memory_bytes=1 << 34, device="cpu")


def row(backend, milliseconds, *, workload="model", **changed):
    fields = {
        "workload": workload,
        "mode": "infer",
        "backend": backend,
        "status": "ok",
        "median_ms": milliseconds,
        "ci_ms": (milliseconds * 0.99, milliseconds * 1.01),
        "ratio_to_eager": 10.0 / milliseconds,
        "ratio_to_eager_ci": (9.9 / milliseconds, 10.1 / milliseconds),
        "compile_s": 3.0,
        "peak_bytes": 5 << 20,
    }
    return Result(**{**fields, **changed})


def raced(day, *results, torch="2.13.0", machine=MACHINE, dtype="float32"):
    return Report(
        created=f"2026-01-{day:02}T04:05:06+00:00",
        machine=machine,
        versions={"torch": torch, "backbay": "0.1"},
        settings=Settings(
            backends=("eager", "inductor"), mode="infer", dtype=dtype, device="cpu", seed=0
        ),
        decision=(),
        results=results,
    )


def files(*reports):
    return [(f"race-{n}.json", x) for n, x in enumerate(reports)]


def printed(history):
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table(history))
    return captured.get()


THREE = files(
    raced(9, row("eager", 10.0), row("inductor", 4.0), torch="2.14.0"),
    raced(1, row("eager", 10.0), row("inductor", 5.0)),
    raced(
        20,
        row("eager", 10.0),
        row("inductor", 1.0, status="wrong", median_ms=None, ratio_to_eager=None),
        torch="2.14.0",
    ),
)


def row_of(text, start):
    return next(x for x in text.splitlines() if x.strip().startswith(start))


def test_runs_stand_in_the_order_of_their_times_whatever_that_of_the_files():
    history = traced(THREE, "ratio_to_eager")
    assert [x.file for x in history.runs] == ["race-1.json", "race-0.json", "race-2.json"]
    (trace,) = history.traces
    (inductor,) = (x for x in trace.series if x.arm == "inductor")
    assert [x.value for x in inductor.points] == [2.0, 2.5, None]
    text = printed(history)
    assert "2.50x [2.48, 2.52]" in row_of(text, "2026-01-09")
    assert "wrong" in row_of(text, "2026-01-20")
    assert "2026-01-09 04:05: torch: 2.13.0 then, 2.14.0 now" in text


def test_other_devices_dtypes_and_workloads_are_not_mixed():
    gpu = msgspec.structs.replace(MACHINE, device="A GPU")
    other = msgspec.structs.replace(MACHINE, processor="two")
    history = traced(
        files(
            raced(1, row("eager", 1.0), row("eager", 1.0, workload="other")),
            raced(2, row("eager", 1.0), machine=gpu),
            raced(3, row("eager", 1.0), machine=other),
            raced(4, row("eager", 1.0), dtype="bfloat16"),
            raced(5, row("eager", 1.0)),
        ),
        "median_ms",
    )
    found = {(x.workload, x.dtype, x.device): x.runs for x in history.traces}
    assert found == {
        ("model", "float32", "cpu, one"): (0, 4),
        ("other", "float32", "cpu, one"): (0,),
        ("model", "float32", "A GPU"): (1,),
        ("model", "float32", "cpu, two"): (2,),
        ("model", "bfloat16", "cpu, one"): (3,),
    }


def test_the_same_race_in_two_files_is_one_run():
    history = traced([*THREE, ("copy.json", THREE[0][1])], "compile_s")
    assert len(history.runs) == 3


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_a_table_and_a_page(metric):
    history = traced(THREE, metric)
    expected = {"median_ms": "4.00", "compile_s": "3.0 s", "peak_bytes": "5.00 MiB"}
    value = expected.get(metric, "2.50x" if metric == "ratio_to_eager" else NOTHING)
    assert value in row_of(printed(history), "2026-01-09")
    assert value in page(history)


def test_the_page_holds_the_history_and_loads_nothing():
    history = traced(THREE, "ratio_to_eager")
    text = page(history)
    assert page(history) == text
    embedded = re.search(r'id="history">(.*?)</script>', text, re.DOTALL)
    assert json.loads(embedded[1])["metric"] == "ratio_to_eager"
    assert all(x.startswith("#") for x in re.findall(r'(?:href|src)="([^"]*)"', text))
    referred = set(re.findall(r'href="#([^"]*)"', text)) | set(re.findall(r"url\(#([^)]*)\)", text))
    assert referred <= set(re.findall(r' id="([^"]*)"', text))
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= set(re.findall(r"(--[\w-]+):", text))
    assert text.count("<svg") == 1
    assert "inductor from 2.00x to wrong" in text


def test_a_hostile_name_is_text_on_the_page():
    evil = "</script><script>x</script>"
    history = traced(files(*(raced(n, row(evil, 5.0, workload=evil)) for n in (1, 2))), "median_ms")
    assert page(history).count("<script") == 1


def test_one_run_has_a_table_and_no_plot():
    assert "<svg" not in page(traced(THREE[:1], "ratio_to_eager"))


def test_the_command_writes_table_json_and_page(tmp_path):
    paths = []
    for name, report in THREE:
        paths.append(str(tmp_path / name))
        (tmp_path / name).write_bytes(msgspec.json.encode(report))
    out = [str(tmp_path / name) for name in ("h.json", "h.html")]
    done = CliRunner().invoke(main, ["history", *paths, "--json", out[0], "--html", out[1]])
    assert done.exit_code == 0, done.output
    assert "2.00x" in done.output
    document = json.loads((tmp_path / "h.json").read_text())
    assert document["schema"] == "backbay.history/1"
    assert [x["created"][:10] for x in document["runs"]] == [
        "2026-01-01",
        "2026-01-09",
        "2026-01-20",
    ]
    assert (tmp_path / "h.html").read_text().startswith("<!doctype html>")


def test_a_file_that_holds_no_race_is_named(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    done = CliRunner().invoke(main, ["history", str(path)])
    assert done.exit_code == 2
    assert "x.json does not hold a race" in done.output


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_number_is_cut_in_a_narrow_terminal(width):
    found = [made_up_races.raced("model", seed=n, created=f"2026-0{n}-02") for n in (1, 2)]
    history = traced(files(*found), "ratio_to_eager")
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table(history))
    shown = captured.get()
    for report in found:
        for result in report.results:
            if result.ratio_to_eager is not None:
                assert str(ratio(result.ratio_to_eager, result.ratio_to_eager_ci)) in shown
    assert all(len(line) <= width for line in shown.splitlines())


@browser.needs_browser
def test_no_text_of_the_page_is_clipped_or_covered(tmp_path):
    names = made_up_races.WORKLOADS[-2:]
    found = [
        made_up_races.raced(name, seed=n, created=f"2026-0{n}-02")
        for n in range(1, 9)
        for name in names
    ]
    browser.check_layout(page(traced(files(*found), "ratio_to_eager")), tmp_path)
