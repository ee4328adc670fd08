"""Where a benchmark runs, found out without starting torch's devices."""

import argparse
import functools
import signal
import subprocess
import sys

from backbay.race import machine
from backbay.registry import Environment


def versions(*extra: str) -> dict[str, str]:
    """Give the versions that times depend on."""
    return machine.versions(Environment.current(), [], extra)


@functools.cache
def device_of(device: str) -> str:
    """Give the GPU's name as its driver has it, or the processor's."""
    here = machine.machine(device)
    if not device.startswith("cuda"):
        return f"{device} ({here.processor}, {here.cores} cores)"
    index = device.partition(":")[2] or "0"
    query = ["nvidia-smi", f"--id={index}", "--query-gpu=name", "--format=csv,noheader"]
    try:
        asked = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return device
    return asked.stdout.strip()


def ahead_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--ahead``, which both benchmarks have."""
    parser.add_argument(
        "--ahead",
        type=int,
        default=1,
        help="workloads that compile at once; all but one are stopped while that is timed. "
        "With more than one no compile times are kept. Default: 1",
    )


def leave_when_told() -> None:
    """End on SIGTERM as on an exit, with all child processes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
