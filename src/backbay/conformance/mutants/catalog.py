"""All seeded faults, by name."""

import dataclasses
import importlib

from backbay.conformance.mutants.mutant import Mutant

HELD_OUT_PREFIX = "held_out_"
FILES = (
    "numerics",
    "integers",
    "metadata",
    "training",
    "mutation",
    "aliasing",
    "layout",
    "running",
    "context",
)


def _of(file: str) -> list[Mutant]:
    found: list[Mutant] = importlib.import_module(f"backbay.conformance.mutants.{file}").FAULTS
    held_out = file.startswith(HELD_OUT_PREFIX)
    return [dataclasses.replace(x, held_out=held_out) for x in found]


MUTANTS: dict[str, Mutant] = {x.name: x for file in FILES for x in _of(file)}
