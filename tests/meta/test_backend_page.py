"""The page on writing a backend is true: its code runs, in order."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "backend.md"


@pytest.mark.slow
def test_every_block_of_the_page_runs_in_order(run_page):
    said = run_page(PAGE, 13).stdout
    assert "Graph: 3 ops" in said
    assert "aten.sigmoid.default: not a product of matrices" in said
    assert "forward graph: 7 of 8 operators (88%) in 2 regions; eager runs aten.sigmoid" in said
    assert any(x in said for x in ("gate_then_inductor", "keep eager", "cannot tell"))
