"""Small programs that are known to fire one rewrite each: a backend that has it must get it right.

Tests hold that they do fire: ours by the report of the pass, Inductor's by its own counter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 (its usual name)

Make = Callable[[torch.device], tuple[torch.Tensor, ...]]


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """A program, and which rewrite it fires."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    """Of its inputs."""
    ours: str = ""
    """A pass of Backbay's."""
    inductors: bool = False
    """Whether Inductor's pattern matcher counts a match."""
    train: bool = False

    def inputs(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Make its inputs."""
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(x, generator=generator).to(device) for x in self.shapes)


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.matmul(q, k.transpose(-2, -1)).div(4.0).softmax(dim=-1)
    return weights.matmul(v)


def _twice_the_same(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).sin() * (x + 1).sin()


def _constants(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(4, device=x.device) * 2.0


def _dead(x: torch.Tensor) -> torch.Tensor:
    x.sin().cos()
    return x * 2


def _positions(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(x.shape[1], device=x.device, dtype=torch.int64).cumsum(0)


TRIGGERS: dict[str, Trigger] = {
    "silu": Trigger(function=_silu, shapes=((3, 4),), ours="rewrite_silu"),
    "silu_trained": Trigger(function=_silu, shapes=((3, 4),), ours="rewrite_silu", train=True),
    "gelu": Trigger(function=_gelu, shapes=((3, 4),), ours="rewrite_gelu"),
    "scalar_chain": Trigger(
        function=lambda x: x * 2 * 4 * 0.5, shapes=((3, 4),), ours="fold_scalar_chain"
    ),
    "same_twice": Trigger(function=_twice_the_same, shapes=((3, 4),), ours="common_subexpressions"),
    "constants": Trigger(function=_constants, shapes=((3, 4),), ours="fold_constants"),
    "dead": Trigger(function=_dead, shapes=((3, 4),), ours="remove_dead_code"),
    "add_to_product": Trigger(
        function=lambda x, y, b: x @ y + b, shapes=((8, 4), (4, 6), (8, 6)), inductors=True
    ),
    "add_to_product_with_row": Trigger(
        function=lambda x, y, b: b + x @ y, shapes=((8, 4), (4, 6), (6,)), inductors=True
    ),
    "two_products": Trigger(
        function=lambda x, y, z, w: x @ y + z @ w,
        shapes=((8, 4), (4, 6), (8, 4), (4, 6)),
        inductors=True,
    ),
    "attention": Trigger(function=_attention, shapes=((2, 2, 8, 16),) * 3, inductors=True),
    "positions": Trigger(function=_positions, shapes=((3, 8),), inductors=True),
    "scaled_softmax": Trigger(
        function=lambda x: F.softmax(x * 3.0, -1), shapes=((3, 8),), inductors=True
    ),
    "batch_of_one": Trigger(function=torch.bmm, shapes=((1, 8, 4), (1, 4, 6)), inductors=True),
    "permuted_twice": Trigger(
        function=lambda x: x.permute(1, 0).permute(1, 0) + 1, shapes=((3, 8),), inductors=True
    ),
    "viewed_twice": Trigger(
        function=lambda x: x.view(8, 3).view(-1).view(3, 8) * 2, shapes=((3, 8),), inductors=True
    ),
    "wider_and_back": Trigger(
        function=lambda x: x.to(torch.float64).to(torch.float32).to(torch.float64) + 1,
        shapes=((3, 8),),
        inductors=True,
    ),
}
"""By the name of their cases."""
