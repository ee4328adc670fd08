"""Build every distribution, check what is in it, and run it in a fresh environment.

    python tools/built_distributions.py [--out DIR] [--no-install]

Wheels and source distributions are built from this checkout, without isolation: Hatchling must be
installed. A wheel has every tracked file of its package and nothing else; both have a licence, and
metadata that says whose it is. Then the wheels are installed in a new environment with what the
core requires, which is no PyTorch, and `backbay list`, `doctor` and `new` run there. Exit code 1
if anything is not as it should be.
"""

import argparse
import email.parser
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = sorted(x.parent for x in ROOT.glob("packages/*/pyproject.toml"))
SOURCE_FILES = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
METADATA_FILES = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
FIELDS = ("Author", "License-Expression", "Project-URL", "Requires-Python", "Summary")


def main() -> int:
    """Build, check and install, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: a temporary folder")
    parser.add_argument("--no-install", action="store_true", help="build and check only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backbay-built-") as folder:
        out = (arguments.out or Path(folder) / "dist").resolve()
        problems = [x for source in DISTRIBUTIONS for x in checked(source, *built(source, out))]
        if not problems and not arguments.no_install:
            problems = list(installed(sorted(out.glob("*.whl")), Path(folder)))
    print("\n".join(problems) or "all distributions are as they should be")
    return 1 if problems else 0


def built(source: Path, out: Path) -> tuple[Path, Path]:
    """Return a distribution's new wheel and its source distribution."""
    before = set(out.glob("*"))
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
    made = {x.suffix: x for x in out.glob("*") if x not in before}
    return made[".whl"], made[".gz"]


def checked(source: Path, wheel: Path, archive: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel and a source distribution."""
    command = ["git", "ls-files", "src"]
    listed = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    tracked = {x.removeprefix("src/") for x in listed.stdout.splitlines()}
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (described,) = {x.partition("/")[0] for x in names if ".dist-info/" in x}
        metadata = email.parser.Parser().parsestr(packed.read(f"{described}/METADATA").decode())
    yield from differences(wheel, names, tracked | {f"{described}/{x}" for x in METADATA_FILES})
    yield from undeclared(wheel, metadata)
    with tarfile.open(archive) as packed_source:
        files = {x.name.partition("/")[2] for x in packed_source.getmembers() if x.isfile()}
    wanted = SOURCE_FILES | {f"src/{x}" for x in tracked}
    yield from differences(archive, files - {".gitignore"}, wanted)  # Hatchling needs it


def differences(built: Path, names: set[str], wanted: set[str]) -> Iterator[str]:
    """Yield what a distribution has and should not have, and the other way round."""
    yield from (f"{built.name}: has {x}, which should not be in it" for x in sorted(names - wanted))
    yield from (f"{built.name}: lacks {x}" for x in sorted(wanted - names))


def undeclared(wheel: Path, metadata: Message) -> Iterator[str]:
    """Yield the fields that the metadata of a wheel lacks."""
    yield from (f"{wheel.name}: its metadata has no {x}" for x in FIELDS if not metadata[x])


def installed(wheels: list[Path], folder: Path) -> Iterator[str]:
    """Install wheels in a new environment, and yield what does not run there."""
    home = folder / "environment"
    venv.create(home, with_pip=True)
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    python, backbay = str(programs / "python"), str(programs / "backbay")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    (core,) = (str(x) for x in wheels if x.name.startswith("backbay-"))
    others = [str(x) for x in wheels if str(x) != core]
    absent = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is not None)"
    commands = [
        [*pip, "-c", str(ROOT / "constraints.txt"), core],
        [python, "-c", absent],
        [*pip, "--no-deps", *others],
        [backbay, "list", "--all"],
        [backbay, "doctor"],
        [backbay, "new", "acme-fast", "--directory", "acme-fast"],
        [backbay, "check-manifest", "acme-fast/src/acme_fast/backends.toml"],
    ]
    for command in commands:
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        said = " ".join([Path(command[0]).name, *command[1:]]).replace(str(folder), "$WORK")
        print(f"$ {said}")
        if ended.returncode != 0:
            yield f"{said}: exit code {ended.returncode}: {(ended.stdout + ended.stderr).strip()}"
            return
    for name in ("backbay_openvino", "backbay "):
        listed = subprocess.run([backbay, "list"], capture_output=True, text=True, check=True)
        if name not in listed.stdout:
            yield f"backbay list: does not list {name.strip()}"


if __name__ == "__main__":
    sys.exit(main())
