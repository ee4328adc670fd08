"""Attention with a mask that is a window: with the mask, or by the kernel for windows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from backbay_optimizer.kernels.windowed_attention import OPERATOR as WINDOWED
from backbay_optimizer.passes.mask_kinds import Window
from backbay_optimizer.passes.windowed_attention import blocks
from speed.condition_tables.timing import Call, micros, normal
from speed.pattern_cases.attention import repeated

WINDOWS = (  # sequences, heads, heads of keys, queries, width, keys back, keys ahead
    *((2, 4, 1, s, 256, w - 1, 0) for s in (1024, 2048, 4096) for w in (128, 512) if w < s),
    *((1, 32, 8, s, 128, s // n - 1, 0) for s in (2048, 8192) for n in (8, 4, 2)),
    *((n, 12, 12, s, 64, 64, 64) for n, s in ((32, 256), (16, 512), (16, 1024), (2, 8192))),
    *((8, 12, 12, s, 64, 128, 128) for s in (512, 1024, 2048)),
)


def windows() -> Iterator[str]:
    """Compare a mask that is a window with the kernel that takes windows."""
    names = ("sequences, heads, heads of keys, queries, width", "window", "of all blocks")
    times = ("mask", "kernel", "ratio")
    yield f"| {' | '.join((*names, *times, *(f'training: {x}' for x in times)))} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for *shape, back, ahead in WINDOWS:
        window, length = Window(back, ahead), shape[3]
        share = f"{blocks(window, length, length):.2f}"
        cells = [", ".join(map(str, shape)), f"{back} back, {ahead} ahead", share]
        for train in (False, True):
            mask, kernel = (micros(y) for y in attending(shape, window, train=train))
            cells += [f"{mask:.1f}", f"{kernel:.1f}", f"{kernel / mask:.2f}"]
        yield f"| {' | '.join(cells)} |"


def attending(shape: Sequence[int], window: Window, *, train: bool) -> tuple[Call, Call]:
    """Return the two ways; in training with their gradients."""
    batch, heads, shared, length, width = shape
    query, key, value = (
        normal(batch, length, n, width).transpose(1, 2).requires_grad_(train)
        for n in (heads, shared, shared)
    )
    cotangent = torch.randn_like(query)

    def with_mask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        places = torch.arange(length, device="cuda")
        back = places[:, None] - places
        seen = (back <= window.left) & (back >= -window.right)
        wide = repeated(key, heads // shared), repeated(value, heads // shared)
        return F.scaled_dot_product_attention(query, *wide, attn_mask=seen)

    def without(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result: Tensor = WINDOWED(query, key, value, window.left, window.right)
        return result

    def called(way: Callable[..., Tensor]) -> Call:
        torch.compiler.reset()
        compiled = torch.compile(way, dynamic=False)

        def call() -> Any:
            result = compiled(query, key, value)
            return torch.autograd.grad(result, (query, key, value), cotangent) if train else result

        return call

    return called(with_mask), called(without)
