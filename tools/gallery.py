"""Make the gallery's pages and pictures anew, from runs on this machine.

    python tools/gallery.py [NAME ...] [--chromium PROGRAM]

Each NAME is an entry of `RUNS` or `KEPT`; without one, all are made. A run writes a page, or its
text, into docs/extra/gallery, which the site publishes as it is. The race and the statements of
conformance are some that were kept, of machines with a GPU: their pages are drawn anew from their
records. Then Chromium takes the pictures that the README and the site show.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from backbay.race import Report
from backbay.race.page import write_page
from backbay.race.reading import read
from backbay.race.table import table
from backbay_conformance import scoreboard

ROOT = Path(__file__).resolve().parent.parent
GALLERY = ROOT / "docs" / "extra" / "gallery"
PICTURES = ROOT / "docs" / "pictures"
LARGEST_BYTES = 150_000
RESULTS = ROOT / "benchmarks" / "results"
KEPT = {
    "race": (RESULTS / "2026-11-25-h100" / "race_decoder_tiny.json",),
    "conform": tuple(
        RESULTS / "2026-11-24-h200" / "conformance" / f"{x}.json" for x in ("backbay", "inductor")
    ),
}
"""Records that are drawn."""
TALKING = "examples/which_backend.py:talking"
WIDTH = 100
"""Characters of a line in what is kept as text."""
ON_CPU = ("--device", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A command of the gallery."""

    arguments: tuple[str, ...]
    """What follows `backbay`."""
    writes_page: bool = True
    """Whether it takes ``--html``; else what it prints is kept."""


RUNS = {
    "explain": Run(arguments=("explain", TALKING, "--backend", "inductor", *ON_CPU)),
    "diagnose": Run(arguments=("diagnose", TALKING, *ON_CPU), writes_page=False),
}
NAMES = (*KEPT, *RUNS)
SHOTS = {"race": (1280, 1000), "explain": (1280, 1000), "conform": (1280, 800)}
"""Pages of which a picture is taken, and the size of the window, in pixels."""


def main() -> int:
    """Run, take pictures, and say what is too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--chromium", default=shutil.which("chromium"), metavar="PROGRAM")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no such run: {', '.join(sorted(unknown))}")
    for folder in (GALLERY, PICTURES):
        folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or NAMES:
        if name == "race":
            (race,) = map(read, KEPT[name])
            write_page(race, GALLERY / "race.html")
            draw_table(race, PICTURES / "race_table.svg")
        elif name == "conform":
            scoreboard.write_page([*map(scoreboard.read, KEPT[name])], GALLERY / "conform.html")
        else:
            run(name, RUNS[name])
        if arguments.chromium and name in SHOTS:
            photograph(arguments.chromium, GALLERY / f"{name}.html", PICTURES / f"{name}.png")
    large = [x.name for x in sorted(GALLERY.iterdir()) if x.stat().st_size > LARGEST_BYTES]
    print("\n".join(f"{x} is larger than {LARGEST_BYTES:,} bytes" for x in large) or "all is made")
    return 1 if large else 0


def run(name: str, wanted: Run) -> None:
    """Run a command, and keep its page or its text."""
    shown = ["backbay", *wanted.arguments]
    page = ("--html", str(GALLERY / f"{name}.html")) if wanted.writes_page else ()
    print(f"$ {' '.join(shown)}", flush=True)
    ended = subprocess.run(
        [sys.executable, "-m", *shown, *page],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": str(WIDTH)},  # as wide as a page shows it
    )
    if ended.returncode != 0:
        sys.exit(f"{name}: exit code {ended.returncode}")
    if not wanted.writes_page:
        (GALLERY / f"{name}.txt").write_text(ended.stdout, encoding="utf-8")


def draw_table(race: Report, path: Path) -> None:
    """Draw a race's table as a terminal shows it."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(table(race))
    path.write_text(console.export_svg(title="backbay race"), encoding="utf-8")


def photograph(chromium: str, page: Path, picture: Path) -> None:
    """Take a picture of the top of a page."""
    width, height = SHOTS[page.stem]
    with tempfile.TemporaryDirectory() as profile:
        command = (
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-background-networking", f"--user-data-dir={profile}"),
            *(f"--window-size={width},{height}", f"--screenshot={picture}", page.as_uri()),
        )
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
