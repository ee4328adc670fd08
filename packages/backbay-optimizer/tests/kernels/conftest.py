"""What tests of several kernels share."""

import importlib.util
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

GUARDED = "from backbay.kit.guarded_memory import guard_memory\nguard_memory()\n"


@pytest.fixture
def assert_right_in_interpreter(run_python, monkeypatch) -> Callable[[str], None]:
    """Assert that a program prints ``right`` at its end, in Triton's interpreter.

    A kernel that leaves its tensors ends the program.
    """
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))  # for interpreted.py
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))

    def run(program: str) -> None:
        done = run_python(GUARDED + textwrap.dedent(program), check=False)
        assert done.stdout.endswith("right\n"), done.stderr[-2000:]

    return run
