"""A torchvision that does not fit torch is told in one line, by what is in their files."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.registry import Environment, torchvision
from backbay.registry.distributions import scan


def told(torch, cuda=None):
    build = {"__version__": torch, "cuda": cuda}
    return torchvision.problem(Environment(installed=scan(), torch_build=build))


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Install a torchvision that was built for something, beside torch; none has code."""

    def found(vision, wanted, torch, cuda=None):
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision" / "__init__.py").touch()
        (tmp_path / "torchvision" / "version.py").write_text(f"__version__ = '{vision}'\n")
        info = tmp_path / "torchvision-1.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: torchvision\nVersion: 1\nRequires-Dist: {wanted}\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        return told(torch, cuda)

    return found


def test_one_for_another_version_says_which(beside):
    said = beside("0.27.0", "torch (==2.12.0)", "2.13.0")
    assert said.startswith(
        "torchvision 0.27.0 does not fit torch 2.13.0: it was built for torch ==2.12.0, "
    )
    assert said.endswith(": pip install --force-reinstall torch==2.13.0 torchvision")


def test_one_for_cuda_beside_a_torch_without_it_says_where_the_other_is(beside):
    said = beside("0.28.0+cu130", "torch (==2.13.0)", "2.13.0+cpu")
    assert "it was built for CUDA 13.0, and what imports it fails" in said
    assert said.endswith("torchvision --index-url https://download.pytorch.org/whl/cpu")


def test_one_for_another_cuda_says_both(beside):
    said = beside("0.28.0+cu130", "torch (==2.13.0)", "2.13.0+cu126", "12.6")
    assert "it was built for CUDA 13.0, and torch for 12.6" in said


@pytest.mark.parametrize(
    ("vision", "torch", "cuda"),
    [
        ("0.28.0+cpu", "2.13.0+cpu", None),
        ("0.28.0+cpu", "2.13.0+cu126", "12.6"),
        ("0.28.0+cu128", "2.13.0+cu126", "12.6"),
        ("0.28.0", "2.13.0", None),
        ("0.28.0", "2.13.0.dev20260101", None),
    ],
)
def test_what_fits_is_no_problem(beside, vision, torch, cuda):
    wanted = "torch (>=2.12)" if "dev" in torch else "torch (==2.13.0)"
    assert beside(vision, wanted, torch, cuda) is None


def test_what_else_it_needs_does_not_matter(beside):
    assert beside("0.28.0", "torchdata (==0.1)", "2.13.0") is None


def test_without_torchvision_there_is_no_problem(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    assert told("2.13.0") is None


def test_doctor_knows_it(monkeypatch):
    monkeypatch.setattr(torchvision, "problem", lambda _: "torchvision 1 does not fit torch 2: x")
    done = CliRunner().invoke(main, ["doctor", "inductor"])
    assert "note: torchvision 1 does not fit torch 2: x" in done.stderr


def test_an_import_that_fails_because_of_it_is_one_line(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    (tmp_path / "torchvision" / "version.py").write_text("__version__ = '0.28.0+cu10'\n")
    (tmp_path / "mine.py").write_text("def model():\n    import torchvision\n")
    command = [sys.executable, "-m", "backbay", "explain", f"{tmp_path}/mine.py:model"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"backbay: {tmp_path}/mine.py:model raised RuntimeError at ")
    assert ": torchvision 0.28.0+cu10 does not fit torch " in line
