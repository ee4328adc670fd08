"""What torch itself gets wrong: each line has a program that shows it, and the program does."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from backbay_conformance import expecting

ROOT = Path(__file__).parents[3]
LINES = expecting.shipped("upstream")
NAMED = [x for x in {**LINES, **expecting.shipped("inductor")}.values() if x.repro]
PROGRAMS = sorted((ROOT / "examples/upstream").glob("*.py"))


def test_a_line_without_a_program():
    assert {x for x, line in LINES.items() if not (ROOT / line.repro).is_file()} == set()


def test_a_program_without_a_line():
    named = {line.repro for line in NAMED}
    assert {str(x.relative_to(ROOT)) for x in PROGRAMS} == named


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda x: x.stem)
def test_a_program_shows_nothing(program, monkeypatch, capsys):
    mine = [x for x in NAMED if x.repro == str(program.relative_to(ROOT))]
    if not any(x.applies("cpu", torch.__version__) for x in mine):
        pytest.skip(f"no line of torch {torch.__version__} on a CPU")
    torch.compiler.reset()
    monkeypatch.setattr(sys, "argv", [str(program)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(program), run_name="__main__")
    capsys.readouterr()
    assert ended.value.code, "torch is right"
    assert program.read_text(encoding="utf-8").count("\n") < 50
