"""The gradient of an embedding's table as Inductor computes it, beside ``embeddings``'s kernels."""

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from backbay_optimizer.kernels import embedding as kernel
from backbay_optimizer.kernels import embedding_device as device
from speed.condition_tables.timing import (
    Call,
    at_least,
    compared,
    in_turns,
    inductors,
    micros,
    normal,
    row,
)

SHAPES = (
    *((50257, 768, 16384), (50257, 768, 50257), (30522, 768, 4096), (32000, 4096, 8192)),
    *((128256, 4096, 4096), (128256, 4096, 16384), (151936, 896, 8192)),
    *((1000000, 64, 8192), (300000, 64, 8192), (200000, 128, 65536), (100000, 256, 16384)),
    *((40000, 512, 16384), (1000000, 16, 8192), (1000000, 16, 65536), (500000, 32, 65536)),
)
"""Words, columns and tokens."""

GROUPS = (
    *((26, 100000, 64, 8192), (26, 30000, 64, 8192), (26, 10000, 64, 8192), (8, 100000, 128, 8192)),
    *((3, 100000, 64, 8192), (100, 10000, 64, 2048), (8, 200000, 16, 65536), (4, 30000, 256, 8192)),
)
"""Tables, words of each, columns and tokens of each."""

DRAWN = {"uniform": 0.0, "Zipf's": -1.0, "one word": -50.0}
"""Exponents of ranks, by how tokens are drawn; the last draws the first word each time."""

READINGS = tuple(
    {"at_once": at_once, "stages": stages, "staged_from": tokens}
    for at_once, stages, tokens in (
        *((64, 1, 0), (64, 4, 0), (64, 4, 256)),
        *((64, 4, 512), (64, 4, 1024), (128, 4, 512)),
    )
)
"""How a word is read that comes often."""


SHORT = ((1000000, 16, 8192), (1000000, 64, 8192), (100000, 64, 8192), (100000, 256, 16384))
"""Words, columns and tokens of short rows."""

CUTS = ((512, 1), (1024, 2), (2048, 4), (4096, 4), (4096, 8))
"""Elements that a program writes at once, and its warps."""


def embeddings() -> Iterator[str]:
    """Compare gradients by the table, of 16 bits."""
    yield row("words, columns, tokens", "tokens are", "limit", "Inductor's", "kernels", "ratio")
    yield f"|{'---|' * 6}"
    for words, width, tokens in SHAPES:
        dy = normal(tokens, width)
        for name, exponent in DRAWN.items():
            index = _drawn(words, tokens, exponent)
            ways = [functools.partial(way, dy, index, words) for way in (_inductors, _ours)]
            limit = at_least(2 * width * (words + tokens))
            cells = compared([micros(way) for way in inductors(ways)])
            yield row(f"{words}, {width}, {tokens}", name, limit, *cells)


def embedding_groups() -> Iterator[str]:
    """Compare gradients by many tables of one width, of 16 bits."""
    named = ("tables, words, columns, tokens", "tokens are")
    yield row(*named, "limit", "Inductor's", "kernels", "ratio")
    yield f"|{'---|' * 6}"
    for tables, words, width, tokens in GROUPS:
        dys = [normal(tokens, width) for _ in range(tables)]
        for name, exponent in DRAWN.items():
            indices = [_drawn(words, tokens, exponent) for _ in range(tables)]
            ways = [functools.partial(x, dys, indices, words) for x in (_each_apart, _together)]
            limit = at_least(2 * tables * width * (words + tokens))
            cells = compared([micros(way) for way in inductors(ways)])
            yield row(f"{tables}, {words}, {width}, {tokens}", name, limit, *cells)


def embedding_plans() -> Iterator[str]:
    """Compare how the rows of a word are read that comes often."""
    names = ("{at_once} at once; {stages} stages from {staged_from}".format(**x) for x in READINGS)
    yield row("words, columns, tokens", "tokens are", "fill", *names)
    yield f"|{'---|' * (3 + len(READINGS))}"
    for words, width, tokens in SHAPES:
        plans = [kernel.plan(width)._replace(**x) for x in READINGS]
        yield from _with_plans(words, width, tokens, plans)


def embedding_short_plans() -> Iterator[str]:
    """Compare how short rows are cut: written one after the other, four at a time, or at once."""
    names = [f"{elements}, {warps} warps" for elements, warps in CUTS]
    names += [f"{x}, as many columns as there are" for x in names]
    yield row("words, columns, tokens", "tokens are", "fill", "one by one", *names)
    yield f"|{'---|' * (4 + len(names))}"
    for words, width, tokens in SHORT:
        usual = kernel.plan(width)
        plans = [usual._replace(together=4, warps=max(1, usual.block // 256), short=0)]
        for block in (usual.block, width):
            plans += [
                usual._replace(block=block, together=elements // block, warps=warps)
                for elements, warps in CUTS
            ]
        yield from _with_plans(words, width, tokens, plans)


def _with_plans(words: int, width: int, tokens: int, plans: Sequence[kernel.Plan]) -> Iterator[str]:
    """Yield a row for each way to draw tokens: a fill with zeros, and the kernels by each plan."""
    kernels = (
        *(device.embedding_count_kernel, device.embedding_place_kernel),
        *(device.embedding_order_kernel, device.embedding_add_kernel),
    )
    dy = normal(tokens, width)
    table = dy.new_empty(words, width)
    for name, exponent in DRAWN.items():
        given = (kernels, [dy], [_drawn(words, tokens, exponent)], [words], [-1])
        calls: list[Call] = [table.zero_]
        calls += [functools.partial(kernel.launch, *given, chosen=x) for x in plans]
        yield row(f"{words}, {width}, {tokens}", name, *(f"{x:.1f}" for x in in_turns(calls)))


def _drawn(words: int, tokens: int, exponent: float) -> Tensor:
    ranks = torch.arange(1, words + 1, dtype=torch.float64, device="cuda")
    return torch.multinomial(ranks.pow(exponent), tokens, replacement=True)


def _inductors(dy: Tensor, index: Tensor, words: int) -> Tensor:
    table: Tensor = torch.ops.aten.embedding_dense_backward(
        dy, index, words, padding_idx=-1, scale_grad_by_freq=False
    )
    return table


def _ours(dy: Tensor, index: Tensor, words: int) -> Tensor:
    return _together([dy], [index], words)[0]


def _each_apart(dys: Sequence[Tensor], indices: Sequence[Tensor], words: int) -> list[Tensor]:
    return [_inductors(x, y, words) for x, y in zip(dys, indices, strict=True)]


def _together(dys: Sequence[Tensor], indices: Sequence[Tensor], words: int) -> list[Tensor]:
    return kernel.embeddings_backward(dys, indices, [words] * len(dys), [-1] * len(dys))
