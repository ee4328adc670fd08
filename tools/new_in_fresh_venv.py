"""Do what a newcomer does, where nothing is installed: ``backbay new``, install, test, race.

    python tools/new_in_fresh_venv.py [--name acme.relu-fast] [--where DIR] [--log FILE]

Backbay is installed from this checkout as a wheel, at the versions of ``constraints.txt``; then the
package that it writes, with what that package's own ``pyproject.toml`` asks for. Each command is
printed with its output; folders are ``$WORK`` and ``$BACKBAY`` in it. Exit code 1 if one fails.
About 1 GB is downloaded.
"""

import argparse
import datetime as dt
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = "python -m pip --disable-pip-version-check -qq install -c $BACKBAY/constraints.txt"


def main() -> int:
    """Run every command, and return the exit code."""
    arguments = parse_arguments()
    work = (arguments.where or Path(tempfile.mkdtemp(prefix="backbay-new-"))).resolve()
    if (work / arguments.name).exists():
        sys.exit(f"{work / arguments.name} exists: give another --where")
    venv.create(work / ".venv", with_pip=True)
    log = Log(work, arguments.log)
    log.say(f"{dt.date.today()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores")  # noqa: DTZ011 (of here)
    passed = all(log.run(command, folder) for command, folder in commands(arguments.name, work))
    log.say("\nall of it works" if passed else "\nthe last command failed")
    return 0 if passed else 1


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="acme.relu-fast", help="of the backend")
    parser.add_argument("--where", type=Path, metavar="DIR", help="default: a new temporary folder")
    parser.add_argument("--log", type=Path, metavar="FILE", help="written as well as printed")
    return parser.parse_args()


def commands(name: str, work: Path) -> Iterator[tuple[str, Path]]:
    """Yield each command with the folder that it runs in."""
    made = work / name
    ours = ("backbay[race,torch]", "backbay-conformance", "backbay-optimizer")
    yield " ".join([PIP, *(f"'$BACKBAY/packages/{x}'".replace("'", '"') for x in ours)]), work
    yield f"backbay new {name}", work
    yield f"{PIP} -e '.[dev]'", made
    yield "python -m pip --disable-pip-version-check list --format freeze --exclude-editable", made
    yield "ruff check && ruff format --check && mypy", made
    yield f"backbay check-manifest src/*/backends.toml && backbay list && backbay info {name}", made
    yield "python -m pytest -q -p no:warnings", made
    race = f"backbay race examples/mlp.py:mlp --backends eager,inductor,{name}"
    yield f"{race} --seconds 3", made
    yield f"{race} --seconds 3 --train --dtype bfloat16", made


class Log:
    """What is printed, and written without the names of this machine's folders."""

    def __init__(self, work: Path, path: Path | None) -> None:
        self._work = work
        self._path = path
        if path is not None:
            path.write_text("", encoding="utf-8")

    def run(self, command: str, folder: Path) -> bool:
        """Run one command as a user of the environment, and return whether it worked."""
        start = time.monotonic()
        self.say(f"\n$ {command}")
        done = subprocess.run(  # noqa: S602 (the commands are those above)
            command,
            shell=True,
            cwd=folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.say(f"{done.stdout}({time.monotonic() - start:.0f} s)")
        return done.returncode == 0

    def _environment(self) -> dict[str, str]:
        bare = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "BACKBAY"))}
        first = self._work / ".venv" / ("Scripts" if os.name == "nt" else "bin")
        path = f"{first}{os.pathsep}{bare.get('PATH', '')}"
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(self._work / "inductor")}  # as bare as the rest
        return {**bare, **caches, "PATH": path, "BACKBAY": str(ROOT), "COLUMNS": "120"}

    def say(self, text: str) -> None:
        """Print a text, and add it to the log."""
        for folder, name in ((self._work, "$WORK"), (ROOT, "$BACKBAY")):
            text = text.replace(str(folder), name)
        text = "\n".join(line.rstrip() for line in text.split("\n"))
        print(text, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
