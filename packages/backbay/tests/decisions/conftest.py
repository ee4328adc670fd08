"""Decisions to keep; also imported by the processes that a test starts."""

import pytest

from backbay.decisions import Arm, Decision, Place

PLACE = Place(device="H100", driver="CUDA 13.0", versions={"torch": "2.13.0"})


def made(number=0, **changes):
    given = {
        "workload": f"model-{number}",
        "step": "infer",
        "arm": Arm(backend="inductor", mode="reduce-overhead"),
        "over_eager": 1.5,
        "interval": (1.4, 1.6),
        "graphs": (f"graph-{number}",),
        "place": PLACE,
        "created": f"2026-11-25T00:00:{number % 60:02}+00:00",
    }
    return Decision(**given | changes)


@pytest.fixture
def decision():
    """Return a function that makes a decision; its number tells one from another."""
    return made


@pytest.fixture
def here():
    """Return where decisions are made, unless told otherwise."""
    return PLACE
