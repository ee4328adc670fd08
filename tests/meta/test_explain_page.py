"""The page on explanations is true: its output is what the command gives, and its code runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explain.md").read_text()


def timeless(text: str) -> list[str]:
    """Leave out what took how long, on which no two runs agree, and how that breaks lines."""
    return re.sub(r"\d+(\.\d+)?\s+s\b", "0.1 s", text).split()


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="the page shows torch 2.13's own words"
)
def test_the_output_on_the_page_is_that_of_the_command_above_it():
    block = re.search(r"```console\n\$ backbay (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    command = [sys.executable, "-m", "backbay", *shlex.split(block[1])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert timeless(done.stdout) == timeless(block[2])
    assert "halfway" in done.stderr


def test_every_block_of_the_page_runs_in_order(run_page, tmp_path):
    said = run_page(ROOT / "docs" / "explain.md", 2).stdout
    assert f"BB103 a branch depends on the values of a tensor at {tmp_path / 'page.py'}:8" in said
    assert "change: where one side is much work, use torch.cond" in said
    assert "count_calls made 0 changes and says {'calls': 1}" in said
