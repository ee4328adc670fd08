"""Follow the site's pages as a reader would: from wheels, in a fresh environment, block by block.

    python tools/as_a_reader.py [PAGE ...] [--where DIR] [--install REQUIREMENT ...]

Wheels of all distributions are built from this checkout and installed with PyTorch in a new virtual
environment, which has nothing else of the checkout. Each PAGE (default: every tutorial, and every
how-to page but the one on installing) is followed in a folder of its own:

- a block whose first line is a comment with a file's name becomes that file;
- `sh` blocks are run when they are met, and must end with 0, or with N where ``# exit code N``
  stands behind a command;
- other `python` blocks and notebook cells are one program, which runs at the end of the page;
- `console`, `text` and `yaml` blocks show something, and are not run.

Exit code 1 where something did not go as the page says.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from built_distributions import DISTRIBUTIONS, built

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    *("tutorials/which_backend", "tutorials/race_in_python", "tutorials/write_a_backend"),
    *("howto/speed_up_a_script", "howto/compile_parts", "howto/find_graph_breaks"),
    *("howto/find_what_is_wrong", "howto/check_first", "howto/ci_gate", "howto/cluster"),
    *("howto/add_a_kernel", "howto/device", "howto/agents", "howto/other_environment"),
)
"""The pages of docs/ that are followed, in this order."""
TAKEN = {"tutorials/which_backend": ("examples/which_backend.py",)}
"""Files of the repository that a page tells the reader to take."""
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
FILE = re.compile(r"# (?P<name>[\w.-]+\.(?:py|toml))\n")
EXPECTED = re.compile(r"  # exit code (?P<code>\d+)$", re.MULTILINE)
SHOWN = {"console", "text", "yaml", "pycon"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of code on a page."""

    line: int
    kind: str
    """Its language; ``python`` for a notebook's cell."""
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file that it is, or None."""
        named = FILE.match(self.text)
        return named["name"] if named else None

    @property
    def exit_code(self) -> int:
        """How its commands end, as the page says."""
        said = EXPECTED.search(self.text)
        return int(said["code"]) if said else 0


def main() -> int:
    """Follow the pages, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="as howto/device")
    parser.add_argument("--where", type=Path, metavar="DIR", help="default: a temporary folder")
    parser.add_argument(
        "--install",
        nargs="*",
        default=["ray", "pytest"],
        metavar="REQUIREMENT",
        help="what pip installs beside the wheels, which pages ask for  [default: ray pytest]",
    )
    arguments = parser.parse_args()
    where = (arguments.where or Path(tempfile.mkdtemp(prefix="as-a-reader-"))).resolve()
    programs = environment(where / "environment", where / "dist", arguments.install)
    problems = [
        problem
        for page in arguments.pages or PAGES
        for problem in followed(page, where / page.replace("/", "-"), programs)
    ]
    print("\n".join(problems) or "every page goes as it says")
    return 1 if problems else 0


def environment(home: Path, dist: Path, further: Sequence[str]) -> Path:
    """Return where the programs of a new environment are that has the wheels; one is kept."""
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    if (programs / "backbay").exists():
        return programs
    wheels = {x.name: str(built(x, dist)[0]) for x in DISTRIBUTIONS}
    core = wheels.pop("backbay")
    venv.create(home, with_pip=True)
    pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *constraints, f"{core}[race,torch]", *further], check=True)
    subprocess.run([*pip, *constraints, *wheels.values()], check=True)
    return programs


def followed(page: str, folder: Path, programs: Path) -> Iterator[str]:
    """Follow one page, and yield what does not go as it says."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for taken in TAKEN.get(page, ()):
        (folder / taken).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / taken, folder / taken)
    path = ROOT / "docs" / f"{page}.md"
    program = []
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            program.append(block.text)
        elif block.kind == "sh":
            command = ["bash", "-euo", "pipefail", "-c", block.text]
            yield from run(command, f"{page}:{block.line}", folder, programs, block.exit_code)
        elif block.kind not in SHOWN:
            yield f"{page}:{block.line}: a block of {block.kind!r}, which is neither run nor shown"
    if program:
        (folder / "page.py").write_text("\n".join(program), encoding="utf-8")
        command = [str(programs / "python"), "page.py"]
        yield from run(command, f"{page}: its Python", folder, programs, 0)


def blocks(page: str) -> Iterator[Block]:
    """Yield a page's blocks of code, in order."""
    for found in FENCE.finditer(page):
        kind = "python" if found["kind"].startswith("{code-cell}") else found["kind"]
        line = page.count("\n", 0, found.start()) + 2
        yield Block(line=line, kind=kind, text=textwrap.dedent(found["text"]))


def run(
    command: Sequence[str], what: str, folder: Path, programs: Path, expected: int
) -> Iterator[str]:
    """Run a block as it stands, say how it ended, and yield what is wrong with that."""
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    here = {**os.environ, "PATH": path, "MPLBACKEND": "Agg"}
    here.pop("PYTHONPATH", None)
    start = time.monotonic()
    ended = subprocess.run(
        command,
        cwd=folder,
        env=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = "ok" if ended.returncode == expected else f"exit code {ended.returncode}"
    print(f"{what}: {said}, {time.monotonic() - start:.0f} s", flush=True)
    if ended.returncode != expected:
        last = textwrap.indent("\n".join(ended.stdout.splitlines()[-25:]), "    ")
        yield f"{what}: exit code {ended.returncode}, where the page says {expected}:\n{last}"


if __name__ == "__main__":
    sys.exit(main())
