"""Run the calibration and print its table: ``python benchmarks/calibrate.py``."""

import argparse
import sys
import time

import torch

from calibration.programs import FIXING, UNSEEN
from calibration.report import DTYPES, Tally, tally

FIXING_SEEDS = 3
FIRST_UNSEEN_SEED = 40_000


def main() -> int:
    """Print the table; exit with 1 where our own rule misses its bars."""
    given = _parser().parse_args()
    torch.set_num_threads(1)
    device, backends = torch.device(given.device), tuple(given.compile)
    seeds = range(FIRST_UNSEEN_SEED, FIRST_UNSEEN_SEED + given.seeds)
    start, missed = time.perf_counter(), list[str]()
    for title, programs, drawn in (
        (f"fixing: {len(FIXING)} programs, {FIXING_SEEDS} seeds", FIXING, range(FIXING_SEEDS)),
        (f"unseen seeds: the same programs, {len(seeds)} seeds", FIXING, seeds),
        (f"unseen programs: {len(UNSEEN)}, {len(seeds)} seeds", UNSEEN, seeds),
    ):
        counted = tally(programs, drawn, device=device, backends=backends)
        _print(title, counted, missed=given.missed)
        missed += [f"{bar} ({title.partition(':')[0]})" for bar in counted.missed_bars()]
    outcome = "missed bars:" if missed else "every bar holds"
    _say(f"\n{time.perf_counter() - start:.0f} s; {outcome}")
    for bar in missed:
        _say(f"  {bar}")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python benchmarks/calibrate.py")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seeds", type=int, default=10, help="unseen seeds (10)")
    parser.add_argument(
        "--compile",
        nargs="*",
        default=[],
        metavar="BACKEND",
        help="count what these backends give as honest too, for example inductor",
    )
    parser.add_argument("--missed", action="store_true", help="list every fault that was missed")
    return parser


def _print(title: str, counted: Tally, *, missed: bool) -> None:
    sizes = (f"{counted.faults[d]} / {counted.visible[d]}" for d in DTYPES)
    _say(f"\n{title}; faults, all / visible: {', '.join(sizes)}")
    _say(f"{'caught, all / visible':42}{'float32':>17}{'bfloat16':>17}{'honest rejected':>25}")
    for rule in counted.rules():
        full, reduced = (counted.caught(rule, d) for d in DTYPES)
        honest = " / ".join(counted.rejected(rule, d) for d in DTYPES)
        _say(f"{rule:42}{full:>17}{reduced:>17}{honest:>25}")
    for line in counted.exceptions(missed=missed):
        _say(f"  {line}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
