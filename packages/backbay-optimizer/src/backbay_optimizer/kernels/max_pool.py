"""Maxima over windows of images with channels last, and their gradient, in Triton.

Forward writes which of a window's places was the largest, in one byte, beside the maximum. Backward
gathers: each pixel of the gradient asks the windows that have it whether they took it. What must
move is ``x``, ``y`` and the offsets forward, and ``dy``, the offsets and ``dx`` backward. A result
is two comparisons for each place of its window but the first, since a NaN is the largest; a pixel's
gradient is a comparison and an addition for each window that it lies in, of 3x3 with a stride of 2
for 1, 2 or 4. Nothing is added with
atomics, so results are the same bits each time.

Both ideas are Inductor's: its prim ``_low_memory_max_pool_with_offsets`` keeps a byte for each
window, and the gradient that it lowers to gathers. Here the byte is read as it is, where Inductor
makes an index into the image of it for every pixel that asks.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit, widened
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured
from backbay_optimizer.kernels.images import flattened, laid_out, new_images

PAYS_FROM = 800_000
"""Elements from which it is used in 16 bits: with windows of 3 by 3, 1x64x112x112 takes 0.70 to
0.78 of the time on an H200, of 2 by 2, 0.96; 1x64x56x56 0.90 to 1.14 (``conditions.py
max_pools``)."""
FLOAT32_PAYS_FROM = 19_000_000
"""In float32 32x192x56x56 takes 0.61 to 0.64 of it; fewer elements were not measured."""

LARGEST = 127
"""Places of a window: an offset is a byte."""

_EIGHTS = 8
"""Channels that are read at once: kernels know that there is a multiple of them."""
_BLOCK = 1024
"""Elements that a program writes forward, and of each window that it reads backward: by search on
an H200."""
_SMALL_BLOCK, _SMALL = 512, 2**26
"""Forward, of images with fewer elements: up to 9 % faster by that search."""
_MOST_AT_ONCE = 16
"""Windows that a pixel may be in, and pixels of a cell: a program holds all of them."""
_INT32 = 2**31
_MANY_PIXELS = "it has too many pixels: their numbers have 32 bits"


# 1. The reference


def reference(
    x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the maxima of (N, C, H, W) as torch has them, and the place of each in its window."""
    window = ([*size], [*stride], [*padding])
    # On CUDA with channels last, torch says the image's first pixel where all are minus infinity.
    y, indices = F.max_pool2d(x.contiguous(), *window, return_indices=True)
    down = torch.arange(y.shape[2], device=x.device)[:, None] * stride[0] - padding[0]
    right = torch.arange(y.shape[3], device=x.device) * stride[1] - padding[1]
    row, column = indices // x.shape[3] - down, indices % x.shape[3] - right
    return y, (row * size[1] + column).to(torch.int8)


def reference_backward(
    dy: Tensor,
    offsets: Tensor,
    height: int,
    width: int,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """Return the gradient of images of a height and width, by the places of the maxima."""
    place = offsets.long()
    down = torch.arange(dy.shape[2], device=dy.device)[:, None] * stride[0] - padding[0]
    right = torch.arange(dy.shape[3], device=dy.device) * stride[1] - padding[1]
    at = (down + place // size[1]) * width + right + place % size[1]
    wide = widened(dy)
    dx = wide.new_zeros(*dy.shape[:2], height * width)
    dx = dx.scatter_add(2, at.flatten(2), wide.flatten(2))
    return dx.view(*dy.shape[:2], height, width).to(dy.dtype)


# 2. Launching


class Plan(NamedTuple):
    """What a program writes."""

    block_p: int
    """Pixels forward, and cells backward, whose windows it also reads; `_BLOCK` at most."""
    block_c: int
    """Channels of each."""
    warps: int = 4


LIMITS = {"block_p": (4, 256), "block_c": (8, 128), "warps": (1, 16)}
"""Of plans, where another GPU's is searched."""


def plan(channels: int, elements: int) -> Plan:
    """Return what a program of so many elements writes."""
    block_c = next((x for x in (64, 32, 16, 8) if channels % x == 0), 64)
    return Plan(elements // block_c, block_c)


def launch(
    kernel: Any,
    x: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    chosen: Plan | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the forward kernel, without a dispatcher, a gradient or a check; as `reference`.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU. ``chosen`` is what a program writes, by default
    `plan`.
    """
    this = Launch(
        run=launch,
        kernels=[kernel],
        given=(x, size, stride, padding),
        reference=reference,
        limits=LIMITS,
    )
    images, channels, height, width = x.shape
    down, right = _sides(x, size, stride, padding)
    sizes = (images, channels, down, right)
    y, offsets = (new_images(x.new_empty(0), sizes, t) for t in (x.dtype, torch.int8))
    shape = (images * down * right, height, width, down, right)
    elements = _SMALL_BLOCK if x.numel() < _SMALL else _BLOCK
    how = chosen or plan_here(plan(channels, elements), this)
    _run(kernel, (flattened(x), y, offsets), shape, channels, (size, stride, padding), how)
    return y, offsets


def launch_backward(
    kernel: Any,
    dy: Tensor,
    offsets: Tensor,
    height: int,
    width: int,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    chosen: Plan | None = None,
) -> Tensor:
    """Return the gradient, likewise; as `reference_backward`."""
    images, channels, down, right = dy.shape
    window = (size, stride, padding)
    drawn = Offsets((images, channels, height, width), window, dy.dtype, dy.device)
    this = Launch(
        run=_launch_drawn_backward,
        kernels=[kernel],
        given=(dy, drawn, height, width, *window),
        reference=_same_drawn_backward,
        limits=LIMITS,
    )
    how = chosen or plan_here(plan(channels, _BLOCK), this)
    dx = new_images(dy, (images, channels, height, width))
    rows, columns = (
        -(-(n + p) // s) for n, s, p in zip((height, width), stride, padding, strict=True)
    )
    shape = (images * rows * columns, height, width, down, right)
    tensors = (flattened(dy), flattened(offsets), dx)
    _run(kernel, tensors, shape, channels, window, how)
    return dx


@dataclass(frozen=True)
class Offsets:
    """What a search asks for in the place of offsets, of which only some lie in the image."""

    shape: tuple[int, ...]
    """Of the images."""
    window: tuple[Sequence[int], Sequence[int], Sequence[int]]
    dtype: torch.dtype
    device: torch.device = field(repr=False)
    """Not a part of what plans are kept by: they are another's of the same name, too."""

    @functools.cached_property
    def places(self) -> Tensor:
        """Those of the maxima of images that are any numbers."""
        at = torch.arange(math.prod(self.shape), dtype=torch.int32, device=self.device)
        images = (at % _DIVISOR * _FACTOR % _DIVISOR).to(self.dtype).view(self.shape)
        return laid_out(reference(images, *self.window)[1])


_FACTOR, _DIVISOR = 7919, 251
"""Multiples of the first, modulo the second, take each of its values, and not in order."""


def _launch_drawn_backward(kernel: Any, dy: Tensor, drawn: Offsets, *others: Any) -> Tensor:
    return launch_backward(kernel, dy, drawn.places, *others)


def _same_drawn_backward(dy: Tensor, drawn: Offsets, *others: Any) -> Tensor:
    """Return what `_launch_drawn_backward` does, by the reference."""
    return reference_backward(dy, drawn.places, *others)


def _sides(
    x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> tuple[int, int]:
    """Return how many windows there are down and right."""
    down, right = (
        (n + 2 * p - k) // s + 1
        for n, k, s, p in zip(x.shape[2:], size, stride, padding, strict=True)
    )
    return down, right


def _run(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    shape: tuple[int, ...],
    channels: int,
    window: tuple[Sequence[int], Sequence[int], Sequence[int]],
    how: Plan,
) -> None:
    """Launch a program for each block of pixels or cells, of which ``shape`` has the number."""
    size, stride, padding = window
    multiple = _EIGHTS if channels % _EIGHTS == 0 else 1
    pixels, *sides = shape
    largest = max(x.numel() for x in tensors)
    constants = {
        **dict(zip(("height", "width", "out_height", "out_width"), sides, strict=True)),
        "is_large": bool(largest + _BLOCK * channels >= _INT32),
        "size_y": size[0],
        "size_x": size[1],
        "stride_y": stride[0],
        "stride_x": stride[1],
        "padding_y": padding[0],
        "padding_x": padding[1],
        "multiple": multiple,
        "block_p": how.block_p,
        "block_c": how.block_c,
        "num_warps": how.warps,
    }
    grid = (-(-pixels // how.block_p), -(-channels // how.block_c))
    with torch.cuda.device(tensors[-1].get_device()):  # Triton launches on the current one
        kernel[grid](*tensors, pixels, channels // multiple, **constants)


# 3. When


def refusal(x: Tensor) -> str | None:
    """Return why the kernels can't take ``x``, or None. Then the reference runs."""
    if reason := unfit(x):
        return reason
    if not x.numel():
        return "it is empty"
    return None if _countable(x.shape[0] * x.shape[2] * x.shape[3]) else _MANY_PIXELS


def _countable(pixels: int) -> bool:
    """Return whether numbers of pixels have 32 bits, as kernels want."""
    return pixels < _INT32 - _BLOCK


def pays(x: Tensor) -> str | None:
    """Return why the operator should not take the place of a maximum in training, or None."""
    if reason := refusal(x):
        return reason
    if x.shape[1] % _EIGHTS:
        return f"{x.shape[1]} channels: they are not a multiple of {_EIGHTS}"
    least = FLOAT32_PAYS_FROM if x.dtype == torch.float32 else PAYS_FROM
    if x.numel() < least:
        return f"{x.numel()} elements: below {least} it was not shown to gain anything"
    return unmeasured(x)


# 4. Registration

max_pool: Callable[..., tuple[Tensor, Tensor]]
"""The operator ``backbay::max_pool``: :func:`reference`."""

max_pool_backward: Callable[..., Tensor]
"""The operator ``backbay::max_pool_backward``: :func:`reference_backward`."""

_NAMES = ("max_pool", "max_pool_backward")


@functools.cache
def _operators() -> tuple[Any, Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import max_pool_device as device  # noqa: PLC0415

        kernel: Any = device.max_pool_kernel
        backward_kernel: Any = device.max_pool_backward_kernel
    # Compilers see through a triton_op, to the kernel and to the reference; a custom_op is opaque
    # to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def forward(
        x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        if size[0] * size[1] > LARGEST:
            raise ValueError(f"a window has {size[0] * size[1]} places: at most {LARGEST} fit")
        sides = _sides(x, size, stride, padding)
        if refusal(x) or not _countable(x.shape[0] * sides[0] * sides[1]):
            y, offsets = reference(x, size, stride, padding)
            return laid_out(y), laid_out(offsets)
        return launch(wrap_triton(kernel), x, size, stride, padding)

    def backward(
        dy: Tensor,
        offsets: Tensor,
        height: int,
        width: int,
        size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
    ) -> Tensor:
        window = (height, width, size, stride, padding)
        # Rows and columns of the padding count: cells have pixels there.
        pixels = dy.shape[0] * (height + padding[0]) * (width + padding[1])
        windows = -(-size[0] // stride[0]) * -(-size[1] // stride[1])
        is_small = max(windows, stride[0] * stride[1]) <= _MOST_AT_ONCE
        if refusal(dy) or not is_small or not _countable(pixels):
            return laid_out(reference_backward(dy, offsets, *window))
        return launch_backward(wrap_triton(backward_kernel), dy, offsets, *window)

    made = (
        define("backbay::max_pool", forward, mutates_args=()),
        define("backbay::max_pool_backward", backward, mutates_args=()),
    )
    made[0].register_autograd(_vjp, setup_context=_save)
    return made


__getattr__ = registers(globals(), _NAMES, _operators)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, *ctx.window = inputs
    ctx.sides = x.shape[2:]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _vjp(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    (offsets,) = ctx.saved_tensors
    return _operators()[1](dy, offsets, *ctx.sides, *ctx.window), None, None, None
