"""Run the tests of the registry against several releases of torch.

    python tools/torch_versions.py 2.11.0 [2.15.0 ...] [--where DIR] [--index URL]

For each release: a virtual environment ``DIR/torch-RELEASE`` with that torch, the core and the
optimizer, then pytest in it. One that is there already and works is used again. A CPU build from
PyTorch's own index is tried first (about 0.2 GB to download). Where that index is out of reach
PyPI's build does: on Linux about 2.5 GB, as the loader wants most of the CUDA libraries even where
there is no GPU; what it does not want is left out. Exit code 1 if anything failed.
"""

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CORE, OPTIMIZER = (ROOT / "packages" / x for x in ("backbay", "backbay-optimizer"))
TESTS = ("packages/backbay/tests/registry", "packages/backbay/tests/cli/test_list_info.py")
NEEDED = ("hypothesis", "jsonschema", "pytest", "pytest-timeout")
"""What the tests import, beside what the core asks for itself."""

LEFT_OUT = ("cuda-bindings",)
"""What torch's Linux build asks for and imports on a GPU only.

triton is the same and stays: without it torch logs a warning that no user of that build sees.
"""

EXTRAS_LEFT_OUT = ("cusolver", "nvtx")
"""Extras of cuda-toolkit whose libraries are loaded on first use, on a GPU."""

PROBE = """
import torch
assert torch.__version__.split("+")[0] == {release!r}, torch.__version__
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
"""


class CannotSetUp(Exception):  # noqa: N818 (reads as what it says)
    """No environment for a release; the text is the last of what the installer said."""


def main() -> int:
    """Test every release, print a last line for each, and return the exit code."""
    arguments = parse_arguments()
    where = arguments.where or Path(tempfile.mkdtemp(prefix="torch-versions-"))
    print(f"environments in {where}", flush=True)
    verdicts = [
        verdict(release, where.resolve() / f"torch-{release}", arguments.index)
        for release in arguments.releases
    ]
    print()
    for line, _ in verdicts:
        print(line)
    return 0 if all(passed for _, passed in verdicts) else 1


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("releases", nargs="+", metavar="RELEASE", help="as 2.15.0")
    parser.add_argument("--where", type=Path, metavar="DIR", help="default: a new temporary folder")
    parser.add_argument("--index", default=CPU_INDEX, metavar="URL", help="tried before PyPI")
    return parser.parse_args()


def verdict(release: str, folder: Path, index: str) -> tuple[str, bool]:
    """Set up one release and test it: the line to print last, and whether all was well."""
    try:
        python = set_up(release, folder, index)
    except CannotSetUp as error:
        return f"torch {release}: not tested: {error}", False
    return run_tests(release, python)


def set_up(release: str, folder: Path, index: str) -> Path:
    """Return the interpreter of an environment with this torch and these packages.

    Raises:
        CannotSetUp: torch could not be installed, or does not compile once it is.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists() or complaint(release, python):
        print(f"installing torch {release}", flush=True)
        venv.create(folder, with_pip=True)
        install_torch(release, python, index)
        pip(python, *torchs_requirements(python))
    # Again each time: their entry points may have changed. The optimizer would bring another torch.
    pip(python, *NEEDED, "-e", f"{CORE}[race]")
    pip(python, "--no-deps", "-e", str(OPTIMIZER))
    if said := complaint(release, python):
        raise CannotSetUp(said)
    return python


def install_torch(release: str, python: Path, index: str) -> None:
    """Install torch alone: from the given index, or else from wherever pip looks by itself."""
    torch = ("--no-deps", f"torch=={release}")
    try:
        pip(python, "--retries", "0", "--timeout", "15", "--index-url", index, *torch)
    except CannotSetUp:
        pip(python, *torch)


def torchs_requirements(python: Path) -> Iterator[str]:
    """Yield what the installed torch asks for, less what no test needs."""
    found = next(site_packages(python).glob("torch-*.dist-info"))
    for requirement in importlib.metadata.Distribution.at(found).requires or ():
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if name not in LEFT_OUT and "extra ==" not in requirement:
            yield without_extras(requirement)


def without_extras(requirement: str) -> str:
    """Take the extras that are left out from ``name[extra,extra]==version``."""
    before, bracket, rest = requirement.partition("[")
    if not bracket:
        return requirement
    extras, _, after = rest.partition("]")
    kept = [extra for extra in extras.split(",") if extra.strip() not in EXTRAS_LEFT_OUT]
    return f"{before}[{','.join(kept)}]{after}"


def site_packages(python: Path) -> Path:
    """Ask an interpreter where its packages are."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.check_output([python, "-c", code], text=True).strip())


def pip(python: Path, *arguments: str) -> None:
    """Run ``pip install``.

    Raises:
        CannotSetUp: pip failed.
    """
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        *arguments,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise CannotSetUp(last_line(ended.stderr))


def complaint(release: str, python: Path) -> str:
    """Return what keeps an environment from compiling with this torch; empty if it does."""
    command: list[str | Path] = [python, "-c", PROBE.format(release=release)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if ended.returncode == 0 else last_line(ended.stderr)


def last_line(text: str) -> str:
    """Return the last line of what a command said."""
    return text.strip().rpartition("\n")[2] or "no message"


def run_tests(release: str, python: Path) -> tuple[str, bool]:
    """Run the tests, show what pytest says, and return the line to print last."""
    print(f"testing with torch {release}", flush=True)
    ended = subprocess.run(
        [python, "-m", "pytest", *TESTS, "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(ended.stdout, flush=True)
    summary = last_line(ended.stdout)
    passed, failed, errors = (counted(summary, word) for word in ("passed", "failed", "error"))
    line = f"torch {release}: {passed} passed, {failed + errors} failed"
    return line, ended.returncode == 0


def counted(summary: str, word: str) -> int:
    """Read a number from pytest's last line: ``2 failed, 31 passed in 4.5s``."""
    found = re.search(rf"(\d+) {word}", summary)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    sys.exit(main())
