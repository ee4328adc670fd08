"""The page on verification is true: its output is what the command gives, and its code runs."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from backbay.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verify.md").read_text()


@pytest.fixture
def backbay(here, monkeypatch):
    """Return the command, run in this process and from where the page says."""
    monkeypatch.chdir(ROOT)
    return lambda arguments: CliRunner().invoke(main, shlex.split(arguments))


def alike_anywhere(text: str) -> str:
    """Leave out what another processor's kernels round otherwise, and how that breaks lines.

    Of the two gradients of the layer that is wrong, either may be the worse one.
    """
    numberless = re.sub(r"\d[\d.,]*(e\+\d+)?", "N", text)
    unbroken = re.sub(r"\s+", "", numberless)
    return re.sub(r"layers\.N(widen|narrow)\.weight", "layers.N-.weight", unbroken)


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="the page was written with torch 2.13"
)
def test_the_output_on_the_page_is_that_of_the_command_above_it(backbay):
    block = re.search(r"```console\n\$ backbay (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    done = backbay(block[1])
    assert done.exit_code == 1, done.output
    assert alike_anywhere(done.stdout) == alike_anywhere(block[2])
    assert "layers.1 (FeedForward, examples/verified.py:22) is the first" in " ".join(
        done.stdout.split()
    )


@pytest.mark.slow
def test_the_command_with_options_on_the_page_ends_with_0(backbay):
    block = re.search(r"```sh\nbackbay (.*?)\n```", PAGE, re.DOTALL)
    assert block is not None
    done = backbay(block[1])
    assert done.exit_code == 0, done.output
    assert "2 of 2 backends right on decoder@tiny: aot_eager, eager" in done.stdout


def test_every_block_of_the_page_runs_in_order(run_page):
    said = run_page(ROOT / "docs" / "verify.md", 1).stdout.splitlines()
    assert said[0].startswith("False halves is WRONG on mlp: infer, forward: output:")
    assert said[1].startswith("infer forward wrong")
    assert said[2].startswith("infer calls wrong")
    assert [x.split()[3] for x in said[3:-1]] == ["wrong", "wrong"]
    assert said[-1] == "0"
