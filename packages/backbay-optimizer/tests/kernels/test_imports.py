"""Modules of kernels import no Triton; their device code does, when an operator is asked for."""

from pathlib import Path

import pytest

import backbay_optimizer.kernels

FOLDER = Path(backbay_optimizer.kernels.__file__).parent
MODULES = sorted(x.stem for x in FOLDER.glob("[a-z]*.py") if not x.stem.endswith("_device"))

IMPORTS = """
    import os, sys, torch
    print("torch", "triton" in sys.modules, flush=True)
    for name in {modules}:
        if not os.fork():  # a process for each, of one that has imported torch
            __import__("backbay_optimizer.kernels." + name)
            print(name, "triton" in sys.modules, flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.fixture(scope="module")
def imported(run_python):
    """Return by module whether a process that imports no other imported Triton, and errors."""
    done = run_python(IMPORTS.format(modules=MODULES), check=False)
    return dict(line.split() for line in done.stdout.splitlines()), done.stderr


@pytest.mark.parametrize("name", ["torch", *MODULES])
def test_importing_a_module_fails_or_imports_triton(imported, name):
    said, errors = imported
    assert said.get(name) == "False", errors
