"""The page on torch's compiler APIs is true: its code runs, in order."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "compiler-apis.md"


@pytest.mark.slow
def test_every_block_of_the_page_runs_in_order_and_says_what_the_page_says(run_page):
    done = run_page(PAGE, 14)
    assert "L['self'].scale == 2.0  # return h * h.sigmoid() * self.scale" in done.stdout
    assert "has a hook that was added after" in done.stdout
    assert "Detected recompile" in done.stdout
    assert "two takes no options: its function has no parameter of this name" in done.stdout
    assert "INFO:backbay.kit.pipeline:pass rewrite_silu: 1x in" in done.stderr
    assert "pass wrong at level torch" in done.stdout
