"""What the documents say is what is so."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from backbay.campaign import Campaign, Row, Unit
from backbay.campaign.plan import KEYS
from backbay.cli import main
from backbay.diagnose import record as diagnosed
from backbay.explain import record as explained
from backbay.history.record import History, Point, Run, Series, Trace
from backbay.race.comparison import ComparedRow, Comparison
from backbay.race.record import (
    Decision,
    LeftToTorch,
    Machine,
    Report,
    Result,
    Settings,
    VerdictRecord,
)
from backbay.verify import record as verified

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROSE = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]


def test_ci_does_what_readmes_test_command_does():
    command = re.search(r"^(python3 -m venv .*pytest.*)$", README, re.MULTILINE)
    assert command is not None
    ci = (ROOT / ".ci" / "run").read_text()
    for step in command[1].split(" && "):
        assert step in ci


def test_every_file_that_a_document_links_to_exists():
    for document in PROSE:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_readme_sends_a_newcomer_to_six_files():
    section = README.partition("## Read these six files first")[2].partition("\n\n[")[0]
    assert len(re.findall(r"^\d\.", section, re.MULTILINE)) == 6


def test_there_is_no_unfinished_work_in_the_sources():
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
    for folder in ("packages", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not marks.search(path.read_text()), path


@pytest.mark.slow
def test_readmes_python_example_runs(run_page):
    said = run_page(ROOT / "README.md", 1).stdout
    assert "'inductor'" in said
    last = said.splitlines()[-1]
    assert "eager" in last or last.startswith("cannot tell: the machine is busy")


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["mlp", "classifier"])
def test_the_example_workloads_can_be_raced(here, workload):
    arguments = ["race", f"{ROOT}/examples/my_model.py:{workload}", "--train", "--device", "cpu"]
    options = ["--backends", "aot_eager", "--seconds", "0.5", "--json", "-"]
    done = CliRunner().invoke(main, [*arguments, *options])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["results"]
    assert {x["backend"]: x["status"] for x in rows} == {"eager": "ok", "aot_eager": "ok"}


@pytest.mark.parametrize(
    ("command", "records", "count"),
    [("explain", explained, 14), ("diagnose", diagnosed, 12), ("verify", verified, 7)],
)
def test_every_key_of_a_report_is_documented(command, records, count):
    text = (ROOT / "docs" / "json.md").read_text()
    section = text.partition(f"## `backbay {command}")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section)) | {"schema"}
    own = [
        x
        for x in vars(records).values()
        if hasattr(x, "__struct_fields__") and x.__module__ == records.__name__
    ]
    assert len(own) == count
    for record in own:
        assert set(record.__struct_fields__) <= documented, record


def test_every_key_of_the_race_report_is_documented():
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "json.md").read_text()))
    records = (Report, Result, Decision, VerdictRecord, Machine, Settings, LeftToTorch)
    for record in (*records, Comparison, ComparedRow):
        assert set(record.__struct_fields__) <= documented


def test_every_key_of_campaigns_and_histories_is_documented():
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "json.md").read_text()))
    for record in (Campaign, Row, Unit, History, Run, Point, Series, Trace):
        assert set(record.__struct_fields__) <= documented, record


def test_every_key_of_a_campaigns_file_is_documented():
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "campaigns.md").read_text()))
    assert set(KEYS) <= documented
