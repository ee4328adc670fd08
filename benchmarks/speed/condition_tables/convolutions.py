"""Convolutions of one pixel: by cuDNN, or as a product."""

from collections.abc import Iterator

import torch
from torch import Tensor

from speed.condition_tables.timing import Call, micros, normal

POINTWISE = (  # images, channels, height and width, channels of the result
    *((128, c, n, k) for c, n, k in ((64, 56, 64), (64, 56, 256), (256, 56, 64), (256, 56, 128))),
    *((128, c, n, k) for c, n, k in ((128, 28, 512), (512, 28, 128), (512, 28, 256))),
    *((128, c, n, k) for c, n, k in ((256, 14, 1024), (1024, 14, 256), (512, 7, 2048))),
    *((128, c, n, k) for c, n, k in ((16, 112, 96), (24, 56, 144), (112, 14, 672), (192, 7, 1152))),
    *((512, c, n, k) for c, n, k in ((24, 56, 72), (80, 14, 480), (160, 7, 960))),
    *((8, 1024, 14, 256), (8, 256, 56, 64), (1, 2048, 7, 512), (1, 256, 56, 64)),
)


def pointwise() -> Iterator[str]:
    """Compare convolutions of one pixel with products."""
    yield "| images, channels, pixels, channels | cuDNN, fused | product, fused | ratio |"
    yield "|---|---|---|---|"
    for images, channels, side, results in POINTWISE:
        x = normal(images, channels, side, side).to(memory_format=torch.channels_last)
        w, bias = normal(results, channels) * channels**-0.5, normal(results)
        rows = x.permute(0, 2, 3, 1).reshape(-1, channels)
        with torch.no_grad():
            both = [micros(x) for x in fused(x, w, bias, rows)]
        shape = f"{images}x{channels}x{side}x{side} to {results}"
        yield f"| {shape} | {both[0]:.1f} | {both[1]:.1f} | {both[1] / both[0]:.2f} |"


def fused(x: Tensor, w: Tensor, bias: Tensor, rows: Tensor) -> tuple[Call, Call]:
    """Return the two ways."""
    kernel = w[:, :, None, None].contiguous(memory_format=torch.channels_last)
    how = ([1, 1], [0, 0], [1, 1], 1)
    return (
        lambda: torch.cudnn_convolution_relu(x, kernel, bias, *how),
        lambda: torch.ops.aten._addmm_activation(bias, rows, w.t()),  # noqa: SLF001
    )
