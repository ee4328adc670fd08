"""Group norm and SiLU as Inductor compiles them, beside ``group_norm_silu``'s kernels."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels import group_norm_silu as kernel
from speed.condition_tables.timing import (
    Call,
    at_least,
    compared,
    inductors,
    micros,
    normal,
    row,
    trained,
)

SHAPES = (
    *((n, 320, 64) for n in (1, 2, 8, 16)),
    *((n, 640, 32) for n in (2, 8)),
    *((n, 1280, 16) for n in (1, 2, 8)),
    *((8, channels, 64) for channels in (640, 960)),
    *((8, channels, 32) for channels in (320, 960, 1280, 1920)),
    *((8, channels, 16) for channels in (640, 1920, 2560)),
    *((8, channels, 8) for channels in (1280, 2560)),
    *((4, 512, side) for side in (64, 128)),
    *((4, 256, 256), (1, 512, 128), (1, 128, 512), (4, 128, 512)),
)
"""Images, channels and side: of Stable Diffusion's UNet, and of its autoencoder."""

ALONE = (
    *((2, 320, 64), (4, 512, 64), (8, 320, 64), (8, 512, 64), (2, 320, 128), (4, 256, 128)),
    *((1, 256, 256), (1, 128, 512), (256, 256, 16), (128, 512, 14)),
)
"""Likewise, with nothing around the norm."""

GROUPS = 32
_EPS = 1e-5


def group_norms() -> Iterator[str]:
    """Compare results, and results with their gradients, of a sum as a convolution's bias is."""
    ways = ("forward", "with gradients")
    yield row(
        "images", "limit", *(x for way in ways for x in (f"{way}, Inductor's", "kernel", "ratio"))
    )
    yield f"|{'---|' * 8}"
    for images, channels, side in SHAPES:
        x = normal(images, channels, side, side).to(memory_format=torch.channels_last)
        given = (x, *(normal(channels) for _ in range(3)))
        cells = [at_least(2 * 2 * x.numel())]
        cells += compared([micros(way) for way in inductors(_ways(given))])
        wanted = [t.detach().requires_grad_() for t in given]
        cells += compared([micros(trained(way, wanted)) for way in (_torchs, _kernels)])
        yield row(f"{images}x{channels}x{side}x{side}", *cells)


def group_norms_alone() -> Iterator[str]:
    """Compare results with channels first, and all with gradients, for either layout of images."""
    ways = ("forward", "all")
    yield row(
        *("images", "channels", "limit"),
        *(x for way in ways for x in (f"{way}, Inductor's", "kernel", "ratio")),
    )
    yield f"|{'---|' * 9}"
    for images, channels, side in ALONE:
        for name, form in (("first", torch.contiguous_format), ("last", torch.channels_last)):
            x = normal(images, channels, side, side).contiguous(memory_format=form)
            given = (x, normal(channels), normal(channels))
            cells = [name, at_least(2 * 2 * x.numel())]
            alone = [functools.partial(x, *given) for x in (_torchs_alone, _kernels_alone)]
            cells += compared([micros(way) for way in inductors(alone)])
            wanted = [t.detach().requires_grad_() for t in given]
            both = (trained(way, wanted) for way in (_torchs_alone, _kernels_alone))
            cells += compared([micros(way) for way in both])
            yield row(f"{images}x{channels}x{side}x{side}", *cells)


def _torchs_alone(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, GROUPS, weight, bias, _EPS))


def _kernels_alone(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return kernel.group_norm_silu(x, weight, bias, GROUPS, _EPS, channels_last=False)[0]


def _ways(given: tuple[Tensor, ...]) -> tuple[Call, Call]:
    return lambda: _torchs(*given), lambda: _kernels(*given)


def _torchs(x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor) -> Tensor:
    y = F.silu(F.group_norm(x + shift[:, None, None], GROUPS, weight, bias, _EPS))
    return y.contiguous(memory_format=torch.channels_last)  # as the next convolution reads it


def _kernels(x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor) -> Tensor:
    return kernel.group_norm_silu(x, weight, bias, GROUPS, _EPS, shift=shift)[0]
