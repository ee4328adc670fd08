"""The site is built without a warning, its pages are reachable, and the tutorials run."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backbay.registry import tested

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTED = ("kit", "race", "verify", "explain", "campaign", "history", "proof", "registry")


def test_the_page_of_backends_says_what_the_catalogue_says():
    page = [sys.executable, ROOT / "tools" / "backends_page.py", "--check"]
    assert subprocess.run(page, check=False).returncode == 0


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_has_every_public_name(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"]
    command += ["-D", "nb_execution_mode=off", DOCS, tmp_path]  # the next tests run the notebooks
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in (DOCS / "extra").rglob("*.*"):  # published as they are
        assert (tmp_path / page.relative_to(DOCS / "extra")).read_bytes() == page.read_bytes()
    page = (tmp_path / "reference" / "api.html").read_text()
    for part in DOCUMENTED:
        module = importlib.import_module(f"backbay.{part}")
        for name in module.__all__:
            if inspect.isclass(getattr(module, name)) or inspect.isroutine(getattr(module, name)):
                assert f'id="backbay.{part}.{name}"' in page, name


@pytest.mark.slow
def test_the_tutorial_on_writing_a_backend_runs(run_page):
    said = run_page(DOCS / "tutorials" / "write_a_backend.md", 7).stdout
    assert "[('fuse_relu_squared', 1), ('fold_constants', 1), ('remove_dead_code', 0)]" in said
    assert "\nright\n" in said


@pytest.mark.slow
def test_the_tutorial_on_choosing_a_backend_runs(run_page):
    said = run_page(DOCS / "tutorials" / "which_backend.md", 2).stdout
    assert "torch.Size([32, 10])" in said


@pytest.mark.slow
def test_the_tutorial_on_racing_from_python_runs(run_page):
    said = run_page(DOCS / "tutorials" / "race_in_python.md", 7).stdout
    assert "BB101 print can't be compiled" in said
    assert "1 graph, 0 breaks" in said
    assert "inductor   ok" in said
    assert "torch.Size([32, 64])" in said


@pytest.mark.slow
def test_the_tutorials_first_finding_is_the_one_that_is_found(tmp_path):
    model = "examples/which_backend.py:talking"
    command = [sys.executable, "-m", "backbay", "explain", model, "--backend", "inductor"]
    done = subprocess.run(
        [*command, "--device", "cpu"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    page = (DOCS / "tutorials" / "which_backend.md").read_text()
    first = next(x.split()[0] for x in done.stdout.splitlines() if x.startswith("  BB"))
    assert f"Findings\n  {first} " in page


def test_the_page_of_tested_versions_says_what_the_results_say():
    page = [sys.executable, ROOT / "tools" / "tested_page.py", "--check"]
    assert subprocess.run(page, check=False).returncode == 0


def test_doctor_takes_another_torch_for_the_newest_that_was_tested():
    page = (DOCS / "reference" / "tested.md").read_text()
    newest = re.search(r"^\| (\d+\.\d+)\.", page, re.MULTILINE)
    assert newest is not None
    assert newest[1] == tested.NEWEST
