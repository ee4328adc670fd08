"""What ``pip install backbay`` alone can do, and what the rest says then: a Python without torch.

The packages that Backbay requires are linked into one folder, which is all that Python sees.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import backbay

COMMAND = "import sys; sys.argv[0] = 'backbay'; from backbay.cli import main; main()"
ABSENT = ("torch", "numpy", "matplotlib", "psutil", "safetensors", "triton")
OTHERS = ("backbay-adapters", "backbay-conformance", "backbay-optimizer")
INSTALL = "pip install 'backbay[torch,race]'"


def required(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """Collect a distribution, and what it requires without any extra."""
    distribution = importlib.metadata.distribution(name)
    found[distribution.name] = distribution
    for line in distribution.requires or ():
        requirement = Requirement(line)
        here = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if here and requirement.name not in found:
            required(requirement.name, found)


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """A folder with Backbay's distributions, what the core requires, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    found: dict[str, importlib.metadata.Distribution] = {}
    required("backbay", found)
    for name in OTHERS:
        found[name] = importlib.metadata.distribution(name)
    for distribution in found.values():
        tops = {x.parts[0] for x in distribution.files or () if x.parts[0] not in {"..", "bin"}}
        for top in tops:
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and source.suffix != ".pth" and not (folder / top).exists():
                (folder / top).symlink_to(source)
    for package in ("backbay", *(x.replace("-", "_") for x in OTHERS)):
        if not (folder / package).exists():  # an editable installation
            source = importlib.util.find_spec(package).origin
            (folder / package).symlink_to(Path(source).parent)
    return folder


@pytest.fixture
def run(bare, tmp_path):
    def run(*arguments: str, program: str = COMMAND) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("BACKBAY_", "PYTHON"))}
        return subprocess.run(
            [sys.executable, "-S", "-c", program, *arguments],
            env={**kept, "PYTHONPATH": str(bare)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_nothing_else_is_seen(run):
    program = (
        "import importlib.util as u, backbay;"
        f"print(*(bool(u.find_spec(x)) for x in {ABSENT}), backbay.__name__)"
    )
    assert run(program=program).stdout.split() == ["False"] * len(ABSENT) + ["backbay"]


def test_every_backend_is_listed_and_says_that_torch_is_not_installed(run):
    done = run("list", "--all", "--json")
    assert done.returncode == 0, done.stderr
    backends = {x["name"]: x for x in json.loads(done.stdout)["backends"]}
    assert {x["state"] for x in backends.values()} == {"not_installed"}
    for name in ("inductor", "eager", "backbay", "backbay_fold"):
        row = backends[name]
        assert (row["reason"], row["remedy"]) == ("PyTorch is not installed", "pip install torch")


MANIFEST = 'schema = 1\n[[backend]]\nname = "own"\nsummary = "One of my own"\n'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--version",), backbay.__version__),
        (("--help",), "check-manifest"),
        (("list",), "inductor"),
        (("info", "inductor"), "PyTorch is not installed"),
        (("info", "backbay"), "tune"),
        (("doctor",), "PyTorch is not installed"),
        (("doctor", "inductor", "--json"), "pip install torch"),
        (("doctor", "--python", sys.executable), f"{sys.executable}: Python 3."),
        (("info", "inductor", "--python", sys.executable), "ready as declared"),
        (("lock",), "written"),
        (("check-manifest", "own.toml"), "understood"),
        (("check-manifest", "--schema"), "json-schema.org"),
        (("stubs", "--out", "typings"), "names"),
        (("new", "acme-fast"), "the backend acme-fast"),
    ],
)
def test_what_needs_no_torch_works(run, tmp_path, arguments, said):
    (tmp_path / "own.toml").write_text(MANIFEST)
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_what_was_locked_is_compared(run):
    assert run("lock").returncode == 0
    assert run("lock", "--check").returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("race",),
        ("verify", "--help"),
        ("explain", "decoder"),
        ("conform", "inductor"),
        ("doctor", "--probe"),
    ],
)
def test_what_needs_torch_says_in_one_line_what_to_install(run, arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    what = " ".join(["backbay", arguments[0], *(x for x in arguments if x == "--probe")])
    assert line.startswith(
        f"backbay: {what} needs torch, numpy, matplotlib, psutil, safetensors, which are not"
    )
    assert line.endswith(INSTALL)


@pytest.mark.parametrize(
    "statement",
    [
        "backbay.compile(print)",
        "backbay.compile(print, backend='inductor')",
        "backbay.Workload",
        "backbay.compose",
        "backbay.proof",
        "backbay.race.run()",
        "backbay.verify.run()",
        "backbay.explain.run()",
        "backbay_conformance.conform('inductor')",
    ],
)
def test_python_raises_one_line_that_is_an_import_error_too(run, statement):
    program = f"""
import backbay, backbay_conformance
from backbay.errors import BackbayError, MissingDependency
try:
    {statement}
except ImportError as error:
    assert isinstance(error, MissingDependency) and isinstance(error, BackbayError)
    print(error)
"""
    done = run(program=program)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "not installed: pip install 'backbay[" in line


def test_a_backend_that_is_looked_up_is_not_here(run):
    program = """
import backbay
from backbay.errors import BackendUnavailable
try:
    backbay.lookup_backend("inductor")
except BackendUnavailable as error:
    print(error)
"""
    assert "PyTorch is not installed. What to do: pip install torch" in run(program=program).stdout
