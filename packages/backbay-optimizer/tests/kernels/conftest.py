"""What tests of several kernels share."""

import importlib.util
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def assert_right_in_interpreter(run_python, monkeypatch) -> Callable[[str], None]:
    """Assert that a program prints ``right`` at its end, in Triton's interpreter.

    A kernel that leaves its tensors ends the program.
    """
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))

    def run(program: str) -> None:
        guarded = f"from guarded_memory import guard\nguard()\n{textwrap.dedent(program)}"
        done = run_python(guarded, check=False)
        assert done.stdout.endswith("right\n"), done.stderr[-2000:]

    return run
