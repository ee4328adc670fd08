"""Whole campaigns: what is done is not run again, and what ends badly is a row."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import made_up_races
import msgspec
import pytest
from click.testing import CliRunner

from backbay import campaign
from backbay.campaign.place import Raced
from backbay.campaign.results import Results, digest
from backbay.cli import main
from backbay.errors import InputError, Interrupted
from backbay.race.reading import read

MODELS = """
import torch

def small():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()), (torch.randn(8, 16),)

def other():
    return torch.nn.Linear(16, 4), (torch.randn(8, 16),)

def raises():
    raise ValueError("no weights here")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Write a campaign's file of functions of a module."""
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    models = tmp_path / "mine.py"
    models.write_text(MODELS)

    def write(*names, more=""):
        workloads = "".join(f'[[workload]]\nname = "{models}:{name}"\n' for name in names)
        path = tmp_path / "nightly.toml"
        path.write_text(f'arms = ["aot_eager"]\ndevice = "cpu"\nseconds = 0.3\n{more}\n{workloads}')
        return path

    return write


class Fake:
    """Races nothing: each unit's outcome is made up, and counted."""

    def __init__(self, versions, *, stops_after=None, loses=()):
        self.versions, self.stops_after, self.loses, self.asked = versions, stops_after, loses, []

    def device_names(self, devices):
        return dict.fromkeys(devices, "one")

    def race(self, units):
        for unit in units:
            if len(self.asked) == self.stops_after:
                raise KeyboardInterrupt
            name = unit.workload.rpartition(":")[2]
            self.asked.append(name)
            if name in self.loses:
                yield Raced(unit=unit, reason="its worker died twice")
                continue
            report = made_up_races.raced(unit.workload, unit.mode, device="cpu")
            yield Raced(unit=unit, report=msgspec.structs.replace(report, versions=self.versions))


@pytest.fixture
def versions():
    import backbay

    return {"backbay": backbay.__version__}


def test_what_is_done_is_not_run_again(file, versions, tmp_path):
    path = file("small", "other")
    first = Fake(versions)
    told = []
    found = campaign.run(path, placement=first, show=lambda _, row: told.append(row.status))
    assert first.asked == ["small", "other"]
    assert told == ["raced", "raced"]
    again = Fake(versions)
    same = campaign.run(path, placement=again)
    assert again.asked == []
    assert [x.report for x in same.rows] == [x.report for x in found.rows]
    assert [x.kept for x in same.rows] == [True, True]
    assert len(list((tmp_path / "nightly.results").iterdir())) == 2
    more = Fake(versions)
    grown = campaign.run(file("small", "other", "raises"), placement=more)
    assert more.asked == ["raises"]
    assert [x.kept for x in grown.rows] == [True, True, False]


def test_what_is_asked_for_anew_is_run_and_the_earlier_race_stays(file, versions, tmp_path):
    path = file("small")
    campaign.run(path, placement=Fake(versions))
    again = Fake(versions)
    campaign.run(path, placement=again, anew=True)
    assert again.asked == ["small"]


def test_what_was_raced_with_other_versions_is_run_again(file, versions):
    path = file("small")
    campaign.run(path, placement=Fake({"backbay": "0.0.1"}))
    again = Fake(versions)
    campaign.run(path, placement=again)
    assert again.asked == ["small"]


def test_a_model_that_changed_is_run_again(file, versions, tmp_path):
    path = file("small")
    campaign.run(path, placement=Fake(versions))
    (tmp_path / "mine.py").write_text(MODELS + "# changed\n")
    again = Fake(versions)
    campaign.run(path, placement=again)
    assert again.asked == ["small"]


def test_a_lost_race_is_a_row_and_is_tried_on_the_next_run(file, versions):
    path = file("small", "other")
    found = campaign.run(path, placement=Fake(versions, loses={"small"}))
    assert [(x.status, x.reason) for x in found.rows] == [
        ("lost", "its worker died twice"),
        ("raced", ""),
    ]
    assert found.failures == found.rows[:1]
    again = Fake(versions)
    campaign.run(path, placement=again)
    assert again.asked == ["small"]


def test_an_interrupted_campaign_says_what_it_has_and_goes_on_later(file, versions):
    path = file("small", "other", "raises")
    with pytest.raises(Interrupted) as stopped:
        campaign.run(path, placement=Fake(versions, stops_after=1))
    assert stopped.value.report.partial
    assert [x.status for x in stopped.value.report.rows] == ["raced", "waiting", "waiting"]
    again = Fake(versions)
    campaign.run(path, placement=again)
    assert again.asked == ["other", "raises"]


def test_a_damaged_or_half_written_file_costs_a_race(file, versions, tmp_path):
    path = file("small", "other")
    campaign.run(path, placement=Fake(versions))
    one, other = sorted((tmp_path / "nightly.results").iterdir())
    one.write_bytes(one.read_bytes()[:100])
    (other.parent / f".{other.name}.0000.part").write_bytes(b"{")
    again = Fake(versions)
    campaign.run(path, placement=again)
    assert len(again.asked) == 1


def test_the_results_of_another_device_are_not_taken(file, versions, registry, tmp_path):
    path = file("small")
    (row,) = campaign.run(path, placement=Fake(versions)).rows
    kept = Results(tmp_path / "nightly.results", registry.environment)
    assert kept.find(digest(row.unit, "one")) is not None
    assert kept.find(digest(row.unit, "another")) is None


def test_a_model_that_changes_while_it_is_raced_is_run_again(file, versions, tmp_path):
    path = file("small", "other")
    changed = MODELS + "# changed\n"
    show = lambda *_: (tmp_path / "mine.py").write_text(changed)  # noqa: E731
    campaign.run(path, placement=Fake(versions), show=show)
    again = Fake(versions)
    campaign.run(path, placement=again)
    assert again.asked == ["small", "other"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, InputError])
def test_where_races_run_is_left_whatever_ends_the_campaign(file, versions, raised):
    class Leaving(Fake):
        left = False

        def race(self, units):
            try:
                yield from super().race(units)
            finally:
                self.left = True

    def show(*_):
        raise raised("no more")

    fake = Leaving(versions)
    with pytest.raises((Interrupted, InputError)) as stopped:
        campaign.run(file("small", "other"), placement=fake, show=show)
    assert (fake.left, fake.asked) == (True, ["small"]), stopped


def test_a_folder_that_cant_be_written_is_told(file, versions, tmp_path):
    (tmp_path / "taken").write_text("")
    fake = Fake(versions)
    fake.device_names = lambda _: pytest.fail("no cluster is joined for nothing")
    with pytest.raises(InputError, match="taken can't be written"):
        campaign.run(file("small"), placement=fake, results=tmp_path / "taken")
    assert fake.asked == []


@pytest.mark.slow
def test_the_command_races_writes_and_skips(here, file, tmp_path):
    path = file("small", "raises", "other")
    out = [str(tmp_path / name) for name in ("out.json", "out.html")]
    command = ["race", str(path), "--json", out[0], "--html", out[1], "--no-keep"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1, done.output
    assert "no weights here" in done.output
    assert "1 of 3 races" in done.output
    document = json.loads(Path(out[0]).read_text())
    assert document["schema"] == "backbay.campaign/1"
    assert [x["status"] for x in document["rows"]] == ["raced", "lost", "raced"]
    pages = sorted(x.name for x in (tmp_path / "out.pages").iterdir())
    assert [x.split("-")[0].endswith(("small", "other")) for x in pages] == [True, True]
    for kept in (tmp_path / "nightly.results").iterdir():
        assert read(kept).decision  # as backbay race --json wrote it
    file("small", "other")
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "aot_eager · compiling" not in done.output
    assert [x["kept"] for x in json.loads(Path(out[0]).read_text())["rows"]] == [True, True]


def test_what_the_file_says_is_not_taken_from_the_command_line(file):
    done = CliRunner().invoke(main, ["race", str(file("small")), "--dtype", "float32", "--train"])
    assert done.exit_code == 2
    assert "write --train, --dtype there" in done.output
    done = CliRunner().invoke(main, ["race", str(file("small")), "decoder"])
    assert done.exit_code == 2
    assert "race it alone" in done.output


@pytest.mark.slow
def test_a_killed_campaign_goes_on_where_it_was(file, tmp_path):
    path = file("small", "other")
    results = tmp_path / "nightly.results"
    command = [sys.executable, "-m", "backbay", "race", str(path), "--no-keep"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        end = time.monotonic() + 200
        while time.monotonic() < end and not list(results.glob("*.json")):
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    assert len(list(results.glob("*.json"))) == 1
    versions = read(next(results.glob("*.json"))).versions
    rest = Fake(versions)
    rest.device_names = lambda devices: dict.fromkeys(devices, _processor())
    found = campaign.run(path, placement=rest)
    assert rest.asked == ["other"]
    assert [(x.status, x.kept) for x in found.rows] == [("raced", True), ("raced", False)]


def _processor():
    from backbay.reporting.machine import processor

    return processor()


@pytest.mark.parametrize(
    ("given", "address"),
    [(["--ray"], ""), (["--ray", "10.0.0.1:6379"], "10.0.0.1:6379"), (["--ray=auto"], "auto")],
)
def test_ray_takes_an_address_or_none_before_the_file(file, versions, monkeypatch, given, address):
    asked = []

    def cluster(**options):
        asked.append(options)
        return Fake(versions)

    monkeypatch.setattr("backbay.cli.campaign.Cluster", cluster)
    done = CliRunner().invoke(main, ["race", *given, str(file("small")), "--device-name", "one"])
    assert done.exit_code == 0, done.output
    assert (asked[0]["address"], asked[0]["only"], asked[0]["keep"]) == (address, "one", True)


def test_ray_without_a_campaign_and_a_device_without_ray_are_refused(file):
    done = CliRunner().invoke(main, ["race", "--ray=auto", "decoder"])
    assert (done.exit_code, "name its TOML file" in done.output) == (2, True)
    done = CliRunner().invoke(main, ["race", str(file("small")), "--device-name", "one"])
    assert (done.exit_code, "give --ray" in done.output) == (2, True)
