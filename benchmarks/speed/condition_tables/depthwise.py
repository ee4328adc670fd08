"""Depthwise convolutions as cuDNN has them, beside ``depthwise_convolutions``' kernel."""

from collections.abc import Iterator

import torch

from backbay_optimizer.kernels import depthwise_convolution as kernel
from speed.condition_tables.timing import compared, micros, normal, row

SHAPES = (
    *((n, 96, 56, 7) for n in (1, 8, 32, 128)),
    *((n, 192, 28, 7) for n in (1, 8, 32, 128)),
    *((n, 384, 14, 7) for n in (1, 8, 32, 128)),
    *((n, 768, 7, 7) for n in (1, 8, 32, 128)),
    *((16, channels, side, 7) for channels, side in ((128, 96), (256, 48), (512, 24), (1024, 12))),
    *((32, channels, side, 7) for channels, side in ((80, 64), (160, 32), (320, 16), (640, 8))),
    *((128, channels, side, 3) for channels, side in ((32, 112), (144, 56), (480, 14), (1152, 7))),
    *((128, channels, side, 5) for channels, side in ((240, 28), (672, 14), (1152, 7))),
)
"""Images, channels, side and filter: ConvNeXt's, of other images, and EfficientNet's."""


def depthwise() -> Iterator[str]:
    """Compare results, and gradients by images, with what is around the kernel."""
    yield row("images", "cuDNN's", "kernel", "ratio", "gradient, cuDNN's", "kernel", "ratio")
    yield f"|{'---|' * 7}"
    for images, channels, side, size in SHAPES:
        x, dy = (
            normal(images, channels, side, side).to(memory_format=torch.channels_last)
            for _ in range(2)
        )
        w, b = normal(channels, 1, size, size), normal(channels)
        how = ([1, 1], [size // 2] * 2)
        yield row(
            f"{images}x{channels}x{side}x{side} by {size}x{size}",
            *compared(
                [
                    micros(lambda: kernel.reference(x, w, b, *how)),  # noqa: B023 (called here)
                    micros(lambda: kernel.depthwise_convolution(x, w, b, *how)),  # noqa: B023
                ]
            ),
            *compared(
                [
                    micros(lambda: kernel.reference_input(dy, x, w, *how)),  # noqa: B023
                    micros(lambda: kernel.depthwise_convolution_input(dy, x, w, *how)),  # noqa: B023
                ]
            ),
        )
