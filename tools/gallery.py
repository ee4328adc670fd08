"""Make the gallery's pages and pictures anew, from runs on this machine.

    python tools/gallery.py [NAME ...] [--chromium PROGRAM]

Each NAME is an entry of `NAMES`; without one, all are made. A run writes a page into
docs/extra/gallery, which the site publishes as it is. The race and the statements of conformance
are some that were kept, of machines with a GPU: their pages are drawn anew from the records. Then
Chromium takes the pictures that the README and the site show.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
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
LARGEST_BYTES = 200_000
RESULTS = ROOT / "benchmarks" / "results"
KEPT_RACE = RESULTS / "2026-11-25-h100" / "race_decoder_tiny.json"
KEPT_STATEMENTS = tuple(
    RESULTS / "2026-11-24-h200" / "conformance" / f"{x}.json" for x in ("backbay", "inductor")
)
TALKING = "examples/which_backend.py:talking"
WIDTH = 100
"""Characters of a line in what is kept as text."""
ON_CPU = ("--device", "cpu")


RUNS = {
    "explain": ("explain", TALKING, "--backend", "inductor", *ON_CPU),
    "diagnose": ("diagnose", TALKING, *ON_CPU),
}
"""What follows `backbay`, for each page."""
NAMES = ("race", "conform", *RUNS)
SHOTS = {
    "race": (1280, 1000),
    "explain": (1280, 1000),
    "diagnose": (1280, 1000),
    "conform": (1280, 800),
}
"""The size of the window when a page's picture is taken, in pixels."""


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
            write_page(read(KEPT_RACE), GALLERY / "race.html")
            draw_table(read(KEPT_RACE), PICTURES / "race_table.svg")
        elif name == "conform":
            statements = [scoreboard.read(x) for x in KEPT_STATEMENTS]
            scoreboard.write_page(statements, GALLERY / "conform.html")
        else:
            run(name, RUNS[name])
        if arguments.chromium:
            photograph(arguments.chromium, GALLERY / f"{name}.html", PICTURES / f"{name}.png")
    large = [x.name for x in sorted(GALLERY.iterdir()) if x.stat().st_size > LARGEST_BYTES]
    print("\n".join(f"{x} is larger than {LARGEST_BYTES:,} bytes" for x in large) or "all is made")
    return 1 if large else 0


def run(name: str, arguments: tuple[str, ...]) -> None:
    """Run a command, and keep its page."""
    shown = ["backbay", *arguments]
    path = GALLERY / f"{name}.html"
    print(f"$ {' '.join(shown)}", flush=True)
    ended = subprocess.run(
        [sys.executable, "-m", *shown, "--html", str(path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if ended.returncode != 0:
        sys.exit(f"{name}: exit code {ended.returncode}")
    page = path.read_text(encoding="utf-8").replace(f"{ROOT}/", "")  # nobody else's folder
    path.write_text(page, encoding="utf-8")


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
