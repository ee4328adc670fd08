"""What a case is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from backbay.proof import Workload

SIZES = ("full", "proof", "tiny")
DTYPE = torch.bfloat16

Build = Callable[[str], Workload]
"""From a size to the workload, on the default device; random numbers are drawn from torch's own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model, one way to run it."""

    name: str
    train: bool
    as_made: bool = False
    """Whether the model keeps the mode that it was made in, even if nothing is trained."""
    build: Build
    shapes: Mapping[str, str]
    """For each size the inputs, in words."""
    masked: bool = False
    """Whether attention has masks that can be taken away by hand, exactly."""
    control: bool = False
    """Whether no rewrite is expected to gain anything: about 1.0 is what should come out."""
    proof: bool = True
    """Whether a proof is possible; a cache that a step writes to can't be had in float64."""

    def about(self, size: str) -> str:
        """Return the inputs of a size in words."""
        return self.shapes[size]


def built(case: Case, size: str, *, device: torch.device, seed: int) -> Workload:
    """Build a case: the same seed gives the same bits."""
    torch.manual_seed(seed)
    with device:
        workload = case.build(size)
    if not case.as_made:
        workload.model.train(case.train)
    return workload


def words(vocabulary: int, *shape: int) -> torch.Tensor:
    """Draw tokens, past those that models take for padding."""
    return torch.randint(4, vocabulary, shape)


def mapping(**values: Any) -> Mapping[str, Any]:
    """Return keyword arguments as a mapping."""
    return values
