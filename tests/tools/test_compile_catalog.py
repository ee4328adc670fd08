"""The catalogue is a made module that is committed: it says what its source says."""

import runpy
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "compile_catalog.py"


def test_the_made_catalogue_is_what_its_source_says():
    tool = runpy.run_path(str(TOOL))
    assert tool["MADE"].read_text() == tool["code"](tool["source_specs"]())
