"""How long races take: this checkout's beside an earlier one's, side by side in one run.

    python benchmarks/race_time.py --before CHECKOUT [--workload decoder] [--device cpu]
        [--backends inductor,backbay] [--seconds 8] [--rounds 3] [--out FILE]

Each race is a fresh process with caches of its own. The two versions take turns. A row has the
medians and the range over rounds: of the whole race, and of its timing, from the line that says
that it begins to the next one. Two promises are checked, and the exit code is 1 if one is broken:
``--quick`` gives an answer within the limit, and timing takes ``--seconds``, or less, to within
20 %. Cores that other processes used meanwhile are in the table: on a busy machine no promise
holds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from backbay.reporting.machine import Load, cores, processor

HERE = Path(__file__).parents[1]
PACKAGES = ("backbay", "backbay-optimizer", "backbay-adapters", "backbay-conformance")
TIMING = "· timing"
KEPT = 1.2
"""Times ``--seconds`` that timing may take."""


@dataclass(frozen=True)
class Raced:
    """One race."""

    whole_s: float
    timing_s: float
    busy: float
    """Cores by other processes."""


@dataclass(frozen=True)
class Case:
    """A question that is put to both versions."""

    name: str
    before: Sequence[str]
    after: Sequence[str]


def main() -> None:
    """Race, print the table, and say whether the promises are kept."""
    asked = parsed()
    shared = [asked.workload, "--device", asked.device]
    arms = ["--backends", asked.backends]
    cases = [
        Case("quick", [*shared, *arms, "--seconds", "5"], [*shared, *arms, "--quick"]),
        Case(
            f"--seconds {asked.seconds:g}",
            *[[*shared, *arms, "--seconds", str(asked.seconds)]] * 2,
        ),
    ]
    checkouts = {"before": asked.before.resolve(), "after": HERE}
    found: dict[tuple[str, str], list[Raced]] = {}
    for _ in range(asked.rounds):
        for case in cases:
            for version, checkout in checkouts.items():
                raced = race(checkout, case.before if version == "before" else case.after)
                found.setdefault((case.name, version), []).append(raced)
    text = "\n".join(lines(found, asked)) + "\n"
    sys.stdout.write(text)
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")
    broken = list(unkept(found, asked))
    sys.stderr.writelines(f"{x}\n" for x in broken)
    sys.exit(1 if broken else 0)


def parsed() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="checkout of the earlier one")
    parser.add_argument("--workload", default="decoder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backends", default="inductor,backbay")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a quick answer")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def race(checkout: Path, arguments: Sequence[str]) -> Raced:
    """Race with the code of a checkout, and return how long it took."""
    folders = [checkout / "packages" / x / "src" for x in PACKAGES]
    folders = [x for x in (checkout / "src", *folders) if x.is_dir()]
    if not folders:
        sys.exit(f"{checkout} is no checkout of Backbay: it has neither src nor packages")
    path = os.pathsep.join(map(str, folders))
    with tempfile.TemporaryDirectory(prefix="backbay-race-time-") as cache:
        load, start = Load(), time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "backbay", "race", *arguments],
            env={**os.environ, "PYTHONPATH": path, "BACKBAY_CACHE": cache},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        stamped = [(time.monotonic(), line) for line in process.stderr]
        busy = load.others()
        if process.wait():
            sys.exit(f"{checkout}: {stamped[-1][1] if stamped else 'no output'}")
        end = time.monotonic()
    times = [*(at for at, _ in stamped), end]
    begins = [i for i, (_, line) in enumerate(stamped) if TIMING in line]
    return Raced(end - start, sum(times[i + 1] - times[i] for i in begins), busy)


def lines(found: dict[tuple[str, str], list[Raced]], asked: argparse.Namespace) -> Iterator[str]:
    """Yield the table, and where it was measured."""
    yield f"`backbay race {asked.workload}`, {asked.backends}, {asked.rounds} rounds"
    yield f"({processor()}, {cores()} cores)"
    yield ""
    yield "| case | version | whole race, s | timing, s | cores by others |"
    yield "|---|---|---|---|---|"
    for (case, version), raced in found.items():
        cells = [worded([x.whole_s for x in raced]), worded([x.timing_s for x in raced])]
        yield f"| {case} | {version} | {' | '.join(cells)} | {worded([x.busy for x in raced])} |"


def worded(values: Sequence[float]) -> str:
    """Return a median and its range."""
    return f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"


def unkept(found: dict[tuple[str, str], list[Raced]], asked: argparse.Namespace) -> Iterator[str]:
    """Yield which promises are broken."""
    for (case, version), raced in found.items():
        if version == "before":
            continue
        whole = statistics.median(x.whole_s for x in raced)
        timing = statistics.median(x.timing_s for x in raced)
        if case == "quick" and whole > asked.limit:
            yield f"quick: {whole:.1f} s, more than {asked.limit:g}"
        if case != "quick" and timing > KEPT * asked.seconds:
            yield f"{case}: timing took {timing:.1f} s"


if __name__ == "__main__":
    main()
