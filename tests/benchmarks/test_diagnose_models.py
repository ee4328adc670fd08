"""A diagnosis is measured by bars: each is missed where what it asks for is not there."""

import importlib
import sys
from pathlib import Path

import msgspec
import pytest

from backbay.diagnose import RankedFinding, TrialRecord

FOLDER = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, FOLDER)
    yield importlib.import_module("diagnose_models")
    sys.path.remove(FOLDER)


def trial(status="confirmed"):
    return TrialRecord(remedy="a setting", status=status, sentence="it is faster")


def found(code="BB102", line="/home/me/cases.py:3: x.item()", trials=()):
    return RankedFinding(
        code=code, severity="warning", message="what it is", line=line, fixes=("change it",),
        count=1, cost_s=None, calls=(0,), page="docs/findings.md", trials=trials,
    )  # fmt: skip


@pytest.fixture
def seeded(bench):
    return bench.seeded("reading", ["BB102"], "x.item()")


@pytest.fixture
def other(bench):
    return bench.Case(name="bert", reference="hf:bert@tiny")


def test_a_seeded_defect_that_is_found_first_and_confirmed_misses_nothing(bench, seeded):
    claimed = trial()
    first = found(trials=(claimed,))
    assert list(bench.bars(seeded, first, claimed, trial())) == []


def test_another_finding_or_another_line_or_nothing_confirmed_misses_a_bar(bench, seeded):
    claimed = trial()
    (wrong,) = bench.bars(seeded, found("BB205", trials=(claimed,)), claimed, trial())
    assert wrong == "the first finding is BB205"
    elsewhere = found(line="/home/me/cases.py:9: x.sin()", trials=(claimed,))
    (wrong,) = bench.bars(seeded, elsewhere, claimed, trial())
    assert wrong == "the first finding is at /home/me/cases.py:9: x.sin()"
    (wrong,) = bench.bars(seeded, found(trials=(trial("no_gain"),)), None, None)
    assert wrong == "nothing that was tried for it is confirmed"
    assert len(list(bench.bars(seeded, None, None, None))) == 2


def test_what_is_claimed_for_another_finding_is_not_the_seeded_ones(bench, seeded):
    (wrong,) = bench.bars(seeded, found(trials=()), trial(), trial())
    assert wrong == "nothing that was tried for it is confirmed"


@pytest.mark.parametrize("status", ["no_gain", "worse", "wrong", "failed"])
def test_a_gain_that_the_race_does_not_confirm_misses_a_bar(bench, other, status):
    (wrong,) = bench.bars(other, found(), trial(), trial(status))
    assert wrong == f"a gain is claimed, and the race says: {status}"


def test_where_no_gain_is_claimed_none_is_missed(bench, other):
    assert list(bench.bars(other, found(), None, None)) == []


def test_a_defect_of_a_gpu_is_skipped_on_a_cpu_with_its_reason(bench, tmp_path):
    (case,) = [x for x in bench.CASES if x.gpu]
    asked = bench.Asked(state=tmp_path, out=None, device="cpu", only=(), budget_s=1.0, timing_s=1.0)
    row = bench.measured(case, asked)
    assert row.skipped
    assert row.reference.endswith(":convolving")
    assert any(f"skipped: {row.skipped}" in x for x in bench.cells(row))


def test_what_was_measured_is_read_and_what_nobody_asked_for_says_so(bench, tmp_path):
    asked = bench.Asked(
        state=tmp_path, out=None, device="cpu", only=["bert"], budget_s=1.0, timing_s=1.0
    )
    by_name = {x.name: x for x in bench.CASES}
    kept = bench.Row(name="bert", reference="hf:bert@tiny", sentence="as it was")
    (tmp_path / "bert.json").write_bytes(msgspec.json.encode(kept))
    assert bench.known(by_name["bert"], asked) == kept
    assert bench.known(by_name["gpt2"], asked).skipped == "not measured yet"


def test_there_are_six_seeded_models_and_seven_others(bench):
    assert [bool(x.codes) for x in bench.CASES] == [True] * 6 + [False] * 7


def test_every_seeded_line_stands_in_the_file_of_cases(bench):
    lines = [x.strip() for x in bench.CASES_FILE.read_text().splitlines()]
    assert all(x.code in lines for x in bench.CASES if x.codes)
