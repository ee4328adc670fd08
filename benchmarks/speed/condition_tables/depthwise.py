"""Depthwise convolutions as cuDNN has them, beside ``depthwise_convolutions``' kernels."""

from collections.abc import Iterator

import torch
from torch import Tensor

from backbay_optimizer.kernels import depthwise_convolution as kernel
from speed.condition_tables.timing import Call, at_least, compared, micros, normal, row

SHAPES = (
    *((n, 96, 56, 7, 1) for n in (1, 8, 32, 64, 128)),
    *((n, 192, 28, 7, 1) for n in (8, 32, 64)),
    *((n, 384, 14, 7, 1) for n in (8, 32, 64)),
    *((n, 768, 7, 7, 1) for n in (8, 32, 64)),
    *((16, channels, side, 7, 1) for channels, side in ((128, 96), (256, 48), (512, 24))),
    *((32, channels, side, 7, 1) for channels, side in ((160, 32), (320, 16), (640, 8))),
    *((n, 32, 112, 3, 1) for n in (10, 128)),
    *((n, 96, 112, 3, 2) for n in (10, 128)),
    *((n, 144, 56, 3, 1) for n in (10, 32, 128)),
    *((n, 144, 56, 5, 2) for n in (10, 32, 128)),
    *((n, 240, 28, 5, 1) for n in (10, 32, 128)),
    *((n, 240, 28, 3, 2) for n in (32, 128)),
    *((n, 480, 14, 3, 1) for n in (64, 128)),
    *((n, 672, 14, 5, 1) for n in (32, 128)),
    *((n, 672, 14, 5, 2) for n in (32, 128)),
    *((n, 1152, 7, 5, 1) for n in (64, 128)),
    *((n, 1152, 7, 3, 1) for n in (64, 128)),
)
"""Images, channels, side, filter and stride: ConvNeXt's, of other images, and EfficientNet's."""


def depthwise() -> Iterator[str]:
    """Compare results, and each gradient, with what is around the kernel."""
    ways = ("forward", "by images", "by filters and bias")
    yield row(
        "images", "limit", *(x for way in ways for x in (f"{way}, cuDNN's", "kernel", "ratio"))
    )
    yield f"|{'---|' * 11}"
    for images, channels, side, size, stride in SHAPES:
        x = normal(images, channels, side, side).to(memory_format=torch.channels_last)
        w = normal(channels, 1, size, size)
        how = ([stride] * 2, [size // 2] * 2)
        dy = torch.randn_like(kernel.reference(x, w, None, *how))
        cells = [at_least(2 * (x.numel() + dy.numel()))]
        for pair in _ways(x, w, dy, how):
            cells += compared([micros(way) for way in pair])
        yield row(f"{images}x{channels}x{side}x{side} by {size}x{size}, {stride}", *cells)


def _ways(
    x: Tensor, w: Tensor, dy: Tensor, how: tuple[list[int], list[int]]
) -> Iterator[tuple[Call, Call]]:
    def torchs() -> tuple[Tensor, Tensor]:
        fixed = ([1, 1], False, [0, 0], x.shape[1], [False, True, False])
        _, dw, _ = torch.ops.aten.convolution_backward.default(dy, x, w, None, *how, *fixed)
        return dw, dy.sum((0, 2, 3))

    yield (
        lambda: kernel.reference(x, w, None, *how),
        lambda: kernel.depthwise_convolution(x, w, None, *how),
    )
    yield (
        lambda: kernel.reference_input(dy, x, w, *how),
        lambda: kernel.depthwise_convolution_input(dy, x, w, *how),
    )
    yield torchs, lambda: kernel.depthwise_convolution_weight(dy, x, w, *how)
