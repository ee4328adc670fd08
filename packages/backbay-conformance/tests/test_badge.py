"""The badge of a statement: what it says, its colour, and the file."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass

import msgspec
import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.race.record import Machine
from backbay_conformance.badge import AMBER, GREEN, GREY, RED, says, write_badge
from backbay_conformance.record import LEVELS, LevelSummary, Result, Statement

TESTED = "(quick, torch 2.13.0)"


def statement(*statuses, **keywords):
    """One case for each level, from level 0 on."""
    results = [Result(id=f"{LEVELS[i]}/x", level=i, status=x) for i, x in enumerate(statuses)]
    return Statement(
        created="2026-01-02T03:04:05+00:00",
        backend="tried",
        origin="somewhere",
        profile="quick",
        device="cpu",
        seed=0,
        machine=Machine(system="Linux", processor="one", cores=2, memory_bytes=8, device="cpu"),
        versions={"torch": "2.13.0+cpu"},
        seconds=1.0,
        levels=tuple(LevelSummary.of(i, results) for i in range(len(results))),
        results=tuple(results),
        **keywords,
    )


@dataclass
class Case:
    made: Statement
    said: str
    colour: str


@pytest.mark.parametrize(
    "case",
    [
        Case(statement("pass", "pass"), f"levels 0-1 of 10 {TESTED}", GREEN),
        Case(statement("pass", "pass", "fail_value"), f"levels 0-1 of 10 {TESTED}", AMBER),
        Case(statement("pass", stale=("a line",)), f"levels 0-0 of 10 {TESTED}", AMBER),
        Case(statement("crash", "pass"), f"no level without a failure {TESTED}", RED),
        Case(statement("unsupported", "upstream"), f"nothing was shown {TESTED}", GREY),
        Case(statement("pass", partial=True), f"interrupted {TESTED}", GREY),
    ],
    ids=["right", "a failure", "an untrue line", "level 0 fails", "nothing", "interrupted"],
)
def test_a_badge_says_more_than_the_statement(case):
    assert says(case.made) == (case.said, case.colour)


def test_a_badge_is_no_picture_or_is_not_read_aloud(tmp_path):
    made = msgspec.structs.replace(statement("pass"), versions={"torch": "2.13.0<&>"})
    write_badge(made, tmp_path / "badge.svg")
    root = ET.parse(tmp_path / "badge.svg").getroot()
    said = "backbay conform: levels 0-0 of 10 (quick, torch 2.13.0<&>)"
    assert root.get("aria-label") == said
    texts = [x.text for x in root.iter("{http://www.w3.org/2000/svg}text")]
    assert ": ".join(texts) == said
    widths = [int(x.get("width")) for x in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert sum(widths) == int(root.get("width"))


@pytest.mark.slow
def test_the_command_writes_no_badge(tmp_path):
    path = tmp_path / "badge.svg"
    arguments = ["conform", "eager", "--level", "load", "--device", "cpu", "--badge", str(path)]
    done = CliRunner().invoke(main, [*arguments, "--json"])
    made = msgspec.json.decode(done.stdout, type=Statement)
    assert says(made)[0] in path.read_text()


def test_a_badge_is_promised_of_random_programs(tmp_path):
    arguments = ["conform", "eager", "--fuzz", "1", "--badge", str(tmp_path / "badge.svg")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "of the suite, not of the fuzzer" in done.stderr
