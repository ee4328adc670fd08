"""Programs that take row by row: a batch must give what its two halves give."""

import random
from collections.abc import Callable

import torch

_STEPS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x.sin(),
    lambda x: x.softmax(-1),
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: x.cumsum(-1) * 0.5,
    lambda x: x * x.amax(-1, keepdim=True),
    lambda x: x.flip(-1) + x,
    lambda x: torch.nn.functional.layer_norm(x, (x.shape[-1],), eps=0.5),
    lambda x: x.clamp(min=0.1) * 0.5,
    lambda x: x.reshape(x.shape[0], 2, -1).transpose(-1, -2).flatten(-2) * 1.5,
    lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
    lambda x: x @ x.new_ones(x.shape[-1], x.shape[-1]).tril() * 0.2,
)


def rowwise(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Draw a program that computes each row from that row alone."""
    rng = random.Random(f"rows {seed}")  # noqa: S311 (nothing secret)
    steps = rng.sample(_STEPS, 4)

    def program(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step(x)
        return x

    return program


def in_halves(
    program: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the same program, run on the two halves of its rows."""

    def halves(x: torch.Tensor) -> torch.Tensor:
        middle = x.shape[0] // 2
        return torch.cat([program(x[:middle]), program(x[middle:])])

    return halves
