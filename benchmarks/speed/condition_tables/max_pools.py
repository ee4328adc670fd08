"""Maxima over windows in training, as Inductor has them, beside Backbay's."""

import contextlib
import functools
from collections.abc import Iterator
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.backend import backbay
from backbay_optimizer.kernels import max_pool as kernel
from backbay_optimizer.passes import max_pools as max_pools_pass
from speed.condition_tables.timing import at_least, compared, micros, normal, row, trained

SHAPES = (
    *((128, 64, 112), (32, 64, 112), (8, 64, 112), (2, 64, 112), (1, 64, 112), (1, 64, 56)),
    *((128, 192, 56), (32, 192, 56), (128, 480, 28), (32, 480, 28), (4, 480, 28)),
    *((128, 832, 14), (16, 832, 14)),
)
"""Images, channels and side of what is pooled: ResNet's, and GoogLeNet's."""
OTHERS = ((3, 2, 0), (2, 2, 0), (3, 1, 1))
OTHERS_SHAPES = (
    *((1, 64, 56), (1, 64, 112), (2, 64, 112), (8, 64, 112), (128, 64, 112)),
    *((32, 192, 56), (128, 480, 14)),
)
"""Windows of AlexNet, VGG and Inception, and what they are compared with."""


def max_pools() -> Iterator[str]:
    """Compare maxima over windows with their gradients; 3/2/1: of 3 by 3, stride 2, padding 1."""
    yield row("images, window", "limit", "Inductor's", "ours", "ratio")
    yield f"|{'---|' * 5}"
    shapes = [(*shape, (3, 2, 1), torch.bfloat16) for shape in SHAPES]
    shapes += [(*x, window, torch.bfloat16) for window in OTHERS for x in OTHERS_SHAPES]
    shapes += [(32, 192, 56, (3, 2, 1), torch.float16)]
    shapes += [(32, 192, 56, x, torch.float32) for x in ((3, 2, 1), *OTHERS)]
    for images, channels, side, window, dtype in shapes:
        x = normal(images, channels, side, side).to(memory_format=torch.channels_last)
        x = x.to(dtype).requires_grad_()
        y = F.max_pool2d(x.detach(), *window)  # a graph would tie x to this stream
        # The product's input, result and gradients, and what is pooled, with offsets of a byte.
        moved = (6 * x.numel() + 2 * y.numel()) * dtype.itemsize + 2 * y.numel()
        way = functools.partial(_pooled, window=window)
        with _let_loose(window):  # when it should be is what this table is for
            times = [micros(trained(way, [x], how)) for how in ("inductor", backbay)]
        name = f"{images}x{channels}x{side}x{side}, {'/'.join(map(str, window))}"
        name += "" if dtype == torch.bfloat16 else f", {str(dtype).removeprefix('torch.')}"
        yield row(name, at_least(moved), *compared(times))


@contextlib.contextmanager
def _let_loose(window: tuple[int, int, int]) -> Iterator[None]:
    with (
        mock.patch.object(kernel, "PAYS_FROM", 0),
        mock.patch.object(kernel, "FLOAT32_PAYS_FROM", 0),
        mock.patch.object(max_pools_pass, "WINDOWS", (window,)),
        mock.patch.object(max_pools_pass, "SLOWER_IN_FLOAT32", ()),
    ):
        yield


def _pooled(x: Tensor, *, window: tuple[int, int, int]) -> Tensor:
    return F.max_pool2d(x * 1, *window)
