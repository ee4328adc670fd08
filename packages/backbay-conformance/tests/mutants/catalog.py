"""All seeded faults, by name."""

import dataclasses
import importlib

from mutants.mutant import Mutant

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
    "held_out_numerics",
    "held_out_integers",
    "held_out_metadata",
    "held_out_training",
    "held_out_mutation",
    "held_out_aliasing",
    "held_out_layout",
    "held_out_running",
    "held_out_context",
)


def _of(file: str) -> list[Mutant]:
    found: list[Mutant] = importlib.import_module(f"mutants.{file}").FAULTS
    held_out = file.startswith(HELD_OUT_PREFIX)
    return [dataclasses.replace(x, held_out=held_out) for x in found]


MUTANTS: dict[str, Mutant] = {x.name: x for file in FILES for x in _of(file)}
