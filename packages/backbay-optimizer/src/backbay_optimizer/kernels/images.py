"""Images as kernels read and write them: one row of memory, channels last."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def flattened(x: Tensor) -> Tensor:
    """Return images as one row of memory, with channels last.

    The flattening is written as views that say so: a compiler may choose another layout for a
    tensor than the one it was traced with.

    Args:
        x: (N, C, ...), in any layout.
    """
    return x.movedim(1, -1).contiguous().view(-1)


def new_images(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """Return memory for images with channels last, which an operator may return.

    It is no view. Where an operator's result is one inside of it, and a view of the result leaves
    the compiled graph beside it, AOTAutograd makes that from the result by all views that led to
    it, those of the operator included (``docs/upstream.md``).

    Args:
        like: has the device, and the dtype unless another is given. AOTAutograd takes two calls
            that are alike for one, and has a result copied then. In a forward it is no tensor of
            the graph, but ``x.new_empty(0)``, of which no two are alike. In a backward that would
            be saved for it, so there it is the gradient; one of two operators whose results are
            added, and so have the same, is copied.
        shape: (N, C, ...).
        dtype: of the images.
    """
    _, channels, *sides = shape
    strides = [channels * math.prod(sides[i + 1 :]) for i in range(len(sides))]
    every = channels * math.prod(sides), 1, *strides
    # By torch.empty and a memory format Inductor would fill it.
    return like.new_empty_strided(tuple(shape), every, dtype=dtype)


def laid_out(x: Tensor) -> Tensor:
    """Return images with their channels last, copied if they are not; a copy is no view, either."""
    known = _FORMATS.get(x.dim())
    if known is None:
        return new_images(x, x.shape).copy_(x)
    return x.contiguous(memory_format=known)


_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Torch's names for it, by the number of dimensions."""
