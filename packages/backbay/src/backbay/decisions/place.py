"""Where a graph runs, as far as what was measured depends on it. Needs torch."""

import contextlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from backbay.decisions.decision import Place
from backbay.reporting.machine import processor

_TRITONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows", "triton-xpu")
"""Distributions that have it."""


def place_of(example_inputs: Sequence[Any], providers: Mapping[str, str] | None = None) -> Place:
    """Return the place of a graph with these inputs.

    Args:
        example_inputs: the first accelerator among their devices decides, else the CPU.
        providers: name and version of what provides the backend that was chosen.
    """
    devices = [x.device for x in example_inputs if isinstance(x, torch.Tensor)]
    return place_on(next((x for x in devices if x.type != "cpu"), torch.device("cpu")), providers)


def place_on(device: torch.device, providers: Mapping[str, str] | None = None) -> Place:
    """Return the place that a device is."""
    versions = {"torch": str(torch.__version__), **_triton(), **(providers or {})}
    if device.type == "cuda":
        name, driver = torch.cuda.get_device_name(device), f"CUDA {torch.version.cuda}, {_driver()}"
        return Place(device=name, driver=driver, versions=versions)
    if device.type == "cpu":
        return Place(device=processor(), threads=torch.get_num_threads(), versions=versions)
    return Place(device=f"{device.type} of {platform.node()}", versions=versions)


def _triton() -> dict[str, str]:
    """Return Triton's version, as its distribution says it: to import it takes 0.1 s."""
    for name in _TRITONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return {"triton": metadata.version(name)}
    return {}


def _driver() -> str:
    """Return the version of NVIDIA's driver, where Linux tells it."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return "driver unknown"
    return f"driver {next((x for x in first.split() if x[0].isdigit() and '.' in x), 'unknown')}"
