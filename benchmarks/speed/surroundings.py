"""Where a benchmark runs, found out without starting torch's devices."""

import functools
import hashlib
import itertools
import subprocess
from pathlib import Path

import backbay
import backbay_optimizer
from backbay.registry import Environment
from backbay.reporting import machine

_COMPILING = ("backends", "cuda_graphs", "graph", "kernels", "kit", "passes", "tuning")
"""Backbay's packages that decide what is compiled, of the kit and of the optimizer."""


def versions(*extra: str) -> dict[str, str]:
    """Return the versions that times depend on; of Backbay also a digest of what compiles."""
    found = machine.versions(Environment.current(), [], extra)
    digest = code_digest(Path(backbay.__file__).parent, Path(backbay_optimizer.__file__).parent)
    return found | {"backbay": f"{found['backbay']}+{digest}"}


def code_digest(*packages: Path) -> str:
    """Return a short digest of the sources that decide what is compiled."""
    digest = hashlib.sha256()
    for package, folder in itertools.product(packages, _COMPILING):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


@functools.cache
def device_of(device: str) -> str:
    """Return the GPU's name as its driver has it, or the processor's."""
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
