"""Strided convolutions as Inductor runs them, beside what ``space_to_depth`` makes of them."""

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from backbay.kit.backend import Backend
from backbay_optimizer.passes.space_to_depth import space_to_depth
from speed.condition_tables.timing import compared, micros, normal, row, trained

_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


class Stem(NamedTuple):
    """A convolution."""

    images: int
    channels: int
    sides: tuple[int, ...]
    results: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: int = 0

    def __str__(self) -> str:
        shape, kernel, stride = map(_times, (self[:2] + self.sides, self.kernel, self.stride))
        return (
            f"{shape} to {self.results}, kernel {kernel}, stride {stride}, padding {self.padding}"
        )

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """Convolve."""
        convolve = torch.conv2d if len(self.kernel) == 2 else torch.conv3d  # noqa: PLR2004
        return convolve(x, w, None, self.stride, self.padding)


def _times(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))


def square(images: int, channels: int, side: int, results: int, *how: int) -> Stem:
    """Return a convolution of square images: kernel, stride and padding."""
    kernel, stride, padding = how
    sides = ((side, side), (kernel, kernel), (stride, stride))
    return Stem(images, channels, sides[0], results, *sides[1:], padding)


STEMS = (
    *(square(n, 3, 224, 64, 7, 2, 3) for n in (1, 2, 8, 32, 128)),
    *(square(n, 3, 224, 32, 3, 2, 1) for n in (1, 8, 128)),
    *(square(n, 3, 224, 16, 3, 2, 1) for n in (8, 128, 512)),
    square(8, 1, 224, 64, 7, 2, 3),
    square(8, 6, 224, 64, 7, 2, 3),
    square(8, 4, 256, 64, 3, 2, 1),
    square(8, 3, 256, 96, 11, 4, 2),
    square(32, 3, 224, 64, 7, 4, 3),
)
PATCHES = (
    *(square(n, 3, 224, 96, 4, 4, 0) for n in (1, 8, 128)),
    *(square(n, 3, 224, 768, 16, 16, 0) for n in (1, 8, 128)),
    square(32, 3, 224, 1024, 14, 14, 0),
    square(32, 3, 224, 768, 32, 32, 0),
    square(1, 3, 1024, 768, 16, 16, 0),
    square(8, 4, 128, 320, 2, 2, 0),
    square(8, 1, 224, 768, 16, 16, 0),
    square(64, 3, 32, 192, 4, 4, 0),
    *(Stem(n, 3, (2, 14, 14), 1280, (2, 14, 14), (2, 14, 14)) for n in (256, 4096)),
    Stem(8, 3, (16, 224, 224), 768, (2, 16, 16), (2, 16, 16)),
)


class Folding(Backend):
    """Inductor, after one pass."""

    passes = (space_to_depth,)


def stems() -> Iterator[str]:
    """Compare kernels that overlap with folded ones, in inference and training."""
    yield from _compared(STEMS)


def patches() -> Iterator[str]:
    """Compare patches likewise."""
    yield from _compared(PATCHES)


def _compared(shapes: Sequence[Stem]) -> Iterator[str]:
    yield row("images", "channels", "for", "Inductor's", "folded", "ratio")
    yield f"|{'---|' * 6}"
    for stem in shapes:
        x = normal(stem.images, stem.channels, *stem.sides)
        w = normal(stem.results, stem.channels, *stem.kernel)
        last = [y.to(memory_format=_LAYOUTS[y.dim()]) for y in (x, w)]
        for layout, given in (("first", [x, w]), ("last", last)):
            for what, wanted in (("inference", ()), ("training", (1,)), ("both gradients", (0, 1))):
                inputs = [y.detach().requires_grad_(n in wanted) for n, y in enumerate(given)]
                yield row(stem, layout, what, *compared(times(stem, inputs)))


def times(stem: Stem, inputs: list[Tensor]) -> list[float]:
    """Time a convolution, and what the pass makes of it wherever it can."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return F.relu(stem(x, w))

    with mock.patch.object(sys.modules[space_to_depth.run.__module__], "_check"):
        calls = (trained(program, inputs, backend=x) for x in ("inductor", Folding()))
        return [micros(call) for call in calls]
