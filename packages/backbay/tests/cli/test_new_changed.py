"""A package that ``backbay new`` wrote, after its author changed it: its own tests and settings."""

import importlib.util
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from backbay.cli import main

pytestmark = pytest.mark.slow

with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)

SECOND_PASS = """

@graph_pass()
def look(graph_module: GraphModule) -> int:
    \"\"\"Look at a graph.\"\"\"
    return 1
"""


@pytest.fixture
def made(tmp_path):
    done = CliRunner().invoke(main, ["new", "acme-fast", "--directory", str(tmp_path / "made")])
    assert done.exit_code == 0, done.output
    return tmp_path / "made"


def change(path, old, new):
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new, 1))


def run(made, *command):
    return subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, "PYTHONPATH": str(made / "src")},
        cwd=made,
        capture_output=True,
        text=True,
        check=False,
    )


def own_tests(made, file, chosen):
    return run(made, "pytest", "-q", "-p", "no:cacheprovider", f"tests/{file}", "-k", chosen)


def test_a_second_pass_fails_the_tests_of_the_first(made):
    package = made / "src" / "acme_fast"
    change(package / "passes.py", "import rewrite_pass\n", "import graph_pass, rewrite_pass\n")
    change(
        package / "passes.py",
        "import Tensor\n",
        "import Tensor\nfrom torch.fx import GraphModule\n",
    )
    (package / "passes.py").write_text((package / "passes.py").read_text() + SECOND_PASS)
    change(
        package / "backend.py",
        "import rewrite_relu_squared\n",
        "import look, rewrite_relu_squared\n",
    )
    change(package / "backend.py", "(rewrite_relu_squared,)", "(rewrite_relu_squared, look)")
    done = own_tests(made, "test_backend.py", "(outputs and float32 and not inductor) or spelling")
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout


def test_mypy_refuses_a_second_kernel(made):
    package = made / "src" / "acme_fast"
    (package / "gates").mkdir()
    (package / "gates" / "__init__.py").write_text('"""Gates."""\n')
    copied = (package / "kernel.py").read_text().replace("::relu_squared", "::gates")
    (package / "gates" / "kernel.py").write_text(copied)
    done = run(made, "mypy")
    assert done.stdout.startswith("Success"), done.stdout
    assert done.stderr == ""
    (package / "gates" / "kernel.py").rename(package / "gates" / "gates.py")
    assert "errors in 1 file" in run(made, "mypy").stdout


INTERPRETED = ("test_kernel.py", "interpreter and float32", "elements outside of all tensors")
FAULTS = {
    "a load without a mask": ("load(x_ptr + at, mask=at < n)", "load(x_ptr + at)", *INTERPRETED),
    "a store without a mask": ("y_ptr + at, y, mask=at < n", "y_ptr + at, y", *INTERPRETED),
    "a load of the gradient": ("load(dy_ptr + at, mask=at < n)", "load(dy_ptr + at)", *INTERPRETED),
    "a store of the gradient": ("at, dx, mask=at < n", "at, dx", *INTERPRETED),
    "float64": (
        "x * x)",
        "tl.sqrt(x.to(tl.float64)))",
        "test_kernel.py",
        "in_float64",
        "'f64' not",
    ),
    "a layout": ("not x.is_contiguous()", "False", "test_kernel.py", "refuses", "not contiguous"),
    "a device": ("x.device.type not in", "x.is_cuda and", "test_kernel.py", "refuses", "on cpu"),
    "a condition": (
        "(is_floating_point(), _refusal)",
        "(is_floating_point(),)",
        "test_backend.py",
        "left_to_inductor",
        "2 failed",
    ),
}


@with_triton
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_passes_the_packages_own_tests(fault, made):
    old, new, file, chosen, words = FAULTS[fault]
    paths = (made / "src" / "acme_fast").glob("*.py")
    (path,) = (x for x in paths if old in x.read_text())
    change(path, old, new)
    done = own_tests(made, file, chosen)
    assert done.returncode == 1, done.stdout
    assert words in done.stdout
