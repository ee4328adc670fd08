"""A program's source, run: what is printed is what is tested."""

import itertools
import linecache
from typing import TYPE_CHECKING, Any

import torch

from backbay_conformance.fuzz.program import Program
from backbay_conformance.fuzz.source import source
from backbay_conformance.subject import as_module

if TYPE_CHECKING:
    from collections.abc import Callable

_numbers = itertools.count()


def built(program: Program) -> torch.nn.Module:
    """Make the program's module; buffers and parameters are new."""
    names = _executed(program)
    with torch.random.fork_rng(devices=[]):
        return as_module(names["Program"]() if program.owned else names["program"])


def inputs_of(program: Program, n: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Make the inputs at a size, on a device; every time the same."""
    make: Callable[..., tuple[torch.Tensor, ...]] = _executed(program)["inputs"]
    if device.type == "meta":
        return make(n, lambda x: x)
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        return make(n, lambda x: x.to(device))


def _executed(program: Program) -> dict[str, Any]:
    text = source(program)
    name = f"<program {program.seed} of the fuzzer, {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"torch": torch}  # no __name__: Dynamo would import it
    exec(compile(text, name, "exec"), names)  # noqa: S102 (the grammar wrote it)
    return names
