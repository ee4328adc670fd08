"""Conditions that many patterns have."""

import torch

from backbay.graph.match import Condition, Match
from backbay.graph.values import value_of


def is_floating_point(position: int = 0) -> Condition:
    """Demand that an input of the pattern is a tensor of real floating-point numbers."""

    def condition(match: Match) -> str | None:
        given = match.inputs[position]
        value = value_of(given)
        if not isinstance(value, torch.Tensor):
            return f"input {position} is {given}, not a tensor that is known"
        if not value.is_floating_point():
            return f"input {position} is {value.dtype}, not floating point"
        return None

    return condition
