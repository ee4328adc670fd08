"""The page on writing a backend is true: its code runs, in order."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "backend.md"


@pytest.mark.slow
def test_every_block_of_the_page_runs_in_order(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 10
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Graph: 3 ops" in done.stdout
    assert "aten.sigmoid.default: not a product of matrices" in done.stdout
    assert "gate_then_inductor" in done.stdout or "keep eager" in done.stdout
