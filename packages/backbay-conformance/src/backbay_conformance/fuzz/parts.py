"""Operators on a part of a larger tensor: they must give what they give on a copy of that part."""

import random
from collections.abc import Callable

import torch

Cut = Callable[[torch.Tensor], torch.Tensor]
Rows = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]
"""Takes a table whose rows rise, and what is looked for in it."""

_CUTS: tuple[Cut, ...] = (
    lambda x: x[1:],
    lambda x: x[:, 2:],
    lambda x: x[2:, 1:-1],
    lambda x: x[1::2],
    lambda x: x[:, 1::2],
    lambda x: x.narrow(0, 3, 2),
    lambda x: x.unfold(1, 4, 2)[1],
)
"""Parts that begin after the memory that they lie in; rows of them rise as well."""
_STEPS: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    lambda part, sought: torch.searchsorted(part, sought[: len(part)]),
    lambda part, sought: torch.searchsorted(part[-1], sought, right=True),
    lambda part, sought: torch.bucketize(sought, part[-1]),
    lambda part, _: part.argmax(),
    lambda part, _: part.flip(0).argsort(0),
    lambda part, _: part.topk(2).indices,
    lambda part, _: part.cumsum(0),
    lambda part, _: part @ part.new_ones(part.shape[1], 3),
    lambda part, _: part.take(torch.arange(part.numel(), device=part.device).flip(0)),
    lambda part, sought: part.index_select(1, (sought[0] > 0).long()),
    lambda part, sought: part.gather(1, (sought[: len(part)] > 0).long()),
    lambda part, sought: torch.nn.functional.embedding((sought > 0).long(), part),
    lambda part, _: part.index_add(0, part.new_zeros(len(part), dtype=torch.int64), part),
    lambda part, _: torch.nn.functional.pad(part, (1, 1), value=2.0),
    lambda part, _: part.roll(1),
    lambda part, sought: torch.cdist(part, part + sought[0, 0]),
    lambda part, _: torch.nn.functional.avg_pool1d(part[None], 2),
    lambda part, _: part.reshape(-1).diff(),
)


def of_parts(seed: int) -> tuple[Rows, Rows]:
    """Draw a part for each operator; return the program that reads it, and that which copies it."""
    rng = random.Random(f"parts {seed}")  # noqa: S311 (nothing secret)
    pairs = [(step, rng.choice(_CUTS)) for step in _STEPS]

    def read(rows: torch.Tensor, sought: torch.Tensor) -> list[torch.Tensor]:
        return [step(cut(rows), sought) for step, cut in pairs]

    def copied(rows: torch.Tensor, sought: torch.Tensor) -> list[torch.Tensor]:
        return [step(cut(rows).clone(), sought) for step, cut in pairs]

    return read, copied


def rising(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the table and what is looked for in it: numbers of which no two are equal."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randperm(7 * 12 + 7 * 5, generator=generator) / 64 - 1
    return numbers[: 7 * 12].reshape(7, 12).sort(1).values, numbers[7 * 12 :].reshape(7, 5)
