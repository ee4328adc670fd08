"""The page on what is wrong upstream is true: its code runs, and it leaves out nothing."""

from pathlib import Path

import pytest
import torch

from backbay_conformance import expecting

PAGE = Path(__file__).parents[2] / "docs" / "upstream.md"
FILES = ("upstream", "inductor", "aot_eager", "aot_eager_decomp_partition", "eager")


def test_a_program_or_an_issue_of_the_suites_lines_is_not_on_the_page():
    lines = [line for name in FILES for line in expecting.shipped(name).values()]
    page = PAGE.read_text()
    assert len(lines) > 80
    assert {x.link for x in lines if x.link and x.link not in page} == set()
    assert {x.repro for x in lines if x.repro and f"`{Path(x.repro).name}`" not in page} == set()


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the page is of torch 2.13")
def test_every_block_of_the_page_shows_what_it_says(run_page):
    assert run_page(PAGE, 10).returncode == 0
