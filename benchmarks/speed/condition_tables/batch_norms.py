"""Batch norms in training, as Inductor has them, beside Backbay's."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.backend import backbay
from backbay_optimizer.kernels import batch_norm as kernel
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
    *((64, 112, "relu"), (64, 56, "relu"), (256, 56, "none"), (128, 28, "relu")),
    *((512, 28, "none"), (1024, 14, "none"), (2048, 7, "none")),
    *((96, 112, "silu"), (144, 56, "silu"), (240, 28, "silu"), (672, 14, "silu")),
)
"""Channels, side and activation of ResNet-50's batch norms, and EfficientNet-B0's."""

SMALL = ((256, 14, 2), (64, 56, 4), (512, 7, 8), (24, 56, 16))
"""Channels, side and images of smaller ones."""

IMAGES = 128
_EPS = 1e-5


def batch_norms() -> Iterator[str]:
    """Compare statistics, the gradient's sums, and all of a batch norm with its gradients."""
    parts = ("statistics", "sums", "all")
    yield row("images", *(x for y in parts for x in (f"{y}, limit", "Inductor's", "ours", "ratio")))
    yield f"|{'---|' * 13}"
    shapes = [(IMAGES, *x) for x in SHAPES]
    shapes += [(images, channels, side, "relu") for channels, side, images in SMALL]
    for images, channels, side, activation in shapes:
        x = _image(images, channels, side)
        cells: list[str] = []
        for tensors, pair in zip((1, 2, 8), _ways(x, activation), strict=True):
            cells += [at_least(tensors * x.numel() * 2)]
            cells += compared([micros(way) for way in pair])
        yield row(f"{images}x{channels}x{side}x{side}, {activation}", *cells)


def _image(images: int, channels: int, side: int) -> Tensor:
    return normal(images, channels, side, side).to(memory_format=torch.channels_last)


def _ways(x: Tensor, activation: str) -> Iterator[tuple[Call, Call]]:
    from torch.library import wrap_triton  # noqa: PLC0415 (it imports Triton)

    from backbay_optimizer.kernels import batch_norm_device as device  # noqa: PLC0415

    statistics: Any = wrap_triton(device.batch_norm_statistics_kernel)
    sums: Any = wrap_triton(device.batch_norm_sums_kernel)
    weight, bias, dy = normal(x.shape[1]), normal(x.shape[1]), torch.randn_like(x)
    mean, variance = kernel.reference_statistics(x)
    rest = (dy, x, mean, (variance + _EPS).rsqrt(), weight, bias, activation)
    for reference, launch in (
        (lambda: kernel.reference_statistics(x), lambda: kernel.launch_statistics(statistics, x)),
        (lambda: kernel.reference_sums(*rest), lambda: kernel.launch_sums(sums, *rest)),
    ):
        (plain,) = inductors([reference])
        (ours,) = inductors([launch])
        yield plain, ours
    given = [t.requires_grad_() for t in (x, weight, bias)]
    whole = functools.partial(_whole, activation=activation)
    plain, ours = (trained(whole, given, backend) for backend in ("inductor", backbay))
    yield plain, ours


def _whole(x: Tensor, weight: Tensor, bias: Tensor, *, activation: str) -> Tensor:
    y = F.batch_norm(x, None, None, weight, bias, training=True, eps=_EPS)
    if activation == "none":
        return y
    return F.relu(y) if activation == "relu" else F.silu(y)
