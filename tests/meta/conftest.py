"""What tests of documents share."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SHORT_RACES = (
    "import backbay.race.timing as T; T.Limits.__init__.__kwdefaults__.update(timing_s=0.5); "
)
"""What a program begins with, on its first line: a reader's race times for 20 s, a test's need not.
"""


@pytest.fixture
def run_page(tmp_path: Path) -> Callable[[Path, int], subprocess.CompletedProcess[str]]:
    """Run every Python block of a page, in order, as one program; their number is known."""

    def run(page: Path, count: int) -> subprocess.CompletedProcess[str]:
        blocks = re.findall(
            r"```(?:python|\{code-cell\} ipython3)\n(.*?)```", page.read_text(), re.DOTALL
        )
        assert len(blocks) == count
        script = tmp_path / "page.py"
        script.write_text(SHORT_RACES + "\n".join(blocks))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    return run
