"""Depthwise convolution of images with channels last, and its gradients, in Triton.

A filter for each channel, as in MobileNet (Howard and others, 2017, arXiv 1704.04861) and ConvNeXt
(Liu and others, 2022, arXiv 2201.03545). That is no matrix product: with ``t`` taps each result
takes ``t`` multiplications and additions, in float32 here, and no tensor core does them. That a row
of pixels is kept in registers for several results is how convolutions without a matrix product
have been computed since Krizhevsky's cuda-convnet; that a filter goes down the image with a window
of rows is the line buffer of image processors (Hameed and others, 2010, ISCA, "Understanding
sources of inefficiency in general-purpose chips"). ``depthwise_convolution_device`` says how images
are cut.

What must move: the forward reads ``x`` and writes ``y``, the gradient by ``x`` reads ``dy`` and
writes ``dx``, and those by the filters and the bias, which are one kernel, read ``x`` and ``dy``.
Operations: ``2 t`` for each result, in each of the three. On an H100, which does 67 TFLOP/s in
float32 and moves 3 TB/s, filters of 3 by 3 and 5 by 5 in 16 bits wait for memory, and those of 7 by
7 for arithmetic.

Gradients by filters are summed without atomics: each program writes its part, and the parts are
summed afterwards. So they are the same bits each time.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured
from backbay_optimizer.kernels.images import flattened, laid_out, new_images

Measured = Mapping[tuple[int, int], tuple[int, int]]
"""Size and stride of filters that are faster than cuDNN's, to what channels must be a multiple of,
and from how many elements on (``benchmarks/conditions.py``, ``depthwise``)."""

INFERRED: Measured = {(7, 1): (32, 2**22)}
"""Without gradients."""

TRAINED: Measured = {
    (7, 1): (32, 2**21),
    (5, 1): (16, 2**22),
    (5, 2): (16, 2**22),
    (3, 1): (16, 2**22),
    (3, 2): (16, 2**22),
}
"""With gradients: most of what is saved is theirs."""

_INT32 = 2**31


# 1. The reference


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Return the convolution of (N, C, H, W) by filters (C, 1, height, width), as torch has it."""
    return torch.conv2d(x, weight, bias, stride, padding, 1, x.shape[1])


def reference_input(
    dy: Tensor, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Return the gradient by ``x``, of which only the shape is read, as torch has it."""
    return _gradients(dy, x, weight, stride, padding, (True, False, False))[0]


def reference_weight(
    dy: Tensor, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the gradients by ``weight``, of which only the shape is read, and by a bias."""
    _, dweight, dbias = _gradients(dy, x, weight, stride, padding, (False, True, True))
    return dweight, dbias


def _gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    channels = x.shape[1]
    how = ([*stride], [*padding], [1, 1], False, [0, 0], channels, [*wanted])
    dx, dweight, dbias = torch.ops.aten.convolution_backward.default(
        dy, x, weight, [channels], *how
    )
    return dx, dweight, dbias


# 2. How images are cut


class Plan(NamedTuple):
    """How large a program's piece is. A program is one warp."""

    across: int
    """Pixels of a strip."""
    block_r: int
    """Strips."""
    block_c: int
    """Channels."""
    chunks: int
    """Parts that the rows of an image are cut into."""
    programs: int
    """How many programs the gradient by filters has at most, if each has a strip."""


LIMITS = {"block_r": (1, 8), "block_c": (16, 64), "chunks": (1, 16)}
"""Of plans, where another GPU's is searched."""


_FILLING = 1056
"""Programs that fill the GPU: images that are fewer are cut into chunks of rows."""


def plan(
    images: int,
    height: int,
    width: int,
    channels: int,
    taps: int,
    stride: int = 1,
    *,
    filling: int = 2 * _FILLING,
) -> Plan:
    """Return how to cut images that are written or summed: by searches on an H100 and an H200.

    Args:
        images: how many.
        height: rows of an image.
        width: pixels of a row.
        channels: of a pixel.
        taps: of a filter.
        stride: what ``across`` must be a multiple of.
        filling: programs from which each of them may do more.
    """
    steps = -(-width // stride)
    across = min(_TIMES, key=lambda x: _TIMES[x] * x * -(-steps // x))
    strips = images * -(-steps // across)
    is_much = channels % 64 == 0 and strips * channels // 64 >= filling
    elements = 64 if taps <= _SMALL or is_much else 32
    fitting = [x for x in (64, 32, 16) if x <= elements and channels % x == 0]
    block_c = fitting[0] if fitting else 32
    block_r = elements // block_c
    whole = max(1, -(-strips // block_r) * -(-channels // block_c))
    chunks = max(1, min(-(-_FILLING // whole), height // _LEAST_ROWS))
    return Plan(across * stride, block_r, block_c, chunks, _PROGRAMS.get(int(taps), _FILLING))


_SMALL = 25
"""Taps up to which a thread has two channels: more need many registers, which pays where there are
enough programs."""

_TIMES = {7: 1.0, 8: 1.02, 4: 1.3}
"""Pixels of a strip, to how long each takes, about."""

_LEAST_ROWS = 8
"""Of a chunk, whose first rows are also read for the one above."""

_PROGRAMS = {9: 2112, 25: 1056, 49: 1584}
"""Programs of the gradient by filters, by taps: with more there is more to be summed at the end."""


# 3. Launching


class Geometry(NamedTuple):
    """Numbers that every launch needs."""

    images: int
    height: int
    width: int
    channels: int
    out_height: int
    out_width: int

    @classmethod
    def of(
        cls, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
    ) -> "Geometry":
        """Return those of a convolution."""
        images, channels, height, width = x.shape
        down = (height + 2 * padding[0] - weight.shape[2]) // stride[0] + 1
        right = (width + 2 * padding[1] - weight.shape[3]) // stride[1] + 1
        return cls(images, height, width, channels, down, right)


def _taps(weight: Tensor) -> Tensor:
    """Return filters as (taps, channels)."""
    return weight.reshape(weight.shape[0], -1).t()


def _steps(size: int, stride: int, padding: int, read: int, written: int) -> tuple[int, int]:
    """Return the first step, down an image, in which a read row meets a written one, and how many.

    Rows of the results that meet padding alone have steps, too: a bias has a gradient by them.
    """
    late = -(-size // stride) - 1
    first = min(padding // stride, late)
    return first, max(written, min(written + late, (read - 1 + padding) // stride + 1)) - first


def launch(
    kernel: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    chosen: Plan | None = None,
) -> Tensor:
    """Run the forward kernel, without a dispatcher, a gradient or a check; as `reference`.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU. ``chosen`` is how to cut, by default `plan`.
    """
    like = x.new_empty(0)
    return _convolved(kernel, x, weight, _taps(weight), bias, stride, padding, chosen, like)


def _convolved(
    kernel: Any,
    x: Tensor,
    weight: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    chosen: Plan | None,
    like: Tensor | None = None,
) -> Tensor:
    shape = Geometry.of(x, weight, stride, padding)
    images, height, _, channels, down, right = shape
    # Of a gradient memory is made like that itself: new_images says why.
    y = new_images(x if like is None else like, (images, channels, down, right))
    if y.numel():
        flat = None if bias is None else bias.contiguous().view(-1)
        this = Launch(
            run=_convolved,
            kernels=[kernel],
            given=(x, weight, taps, bias, stride, padding),
            reference=_same,
            limits=LIMITS,
        )
        how = chosen or plan_here(plan(images, down, right, channels, taps.shape[0]), this)
        rows = -(-down // how.chunks)
        begin, steps = 0, rows + -(-weight.shape[2] // stride[0]) - 1
        if how.chunks == 1:
            begin, steps = _steps(weight.shape[2], stride[0], padding[0], height, down)
        tensors = (flattened(x), taps.contiguous(), flat, y)
        pieces = (rows, begin, steps)
        _run(kernel, shape, right, -(-down // rows), weight, stride, padding, tensors, pieces, how)
    return y


def _same(
    x: Tensor,
    weight: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """Return what `_convolved` does, by the reference."""
    return reference(x, taps.t().reshape(weight.shape), bias, stride, padding)


def launch_input(
    kernel: Any,
    strided_kernel: Any,
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    chosen: Plan | None = None,
) -> Tensor:
    """Return the gradient by ``x``, likewise; as `reference_input`.

    Without a stride that is a convolution of ``dy``, by filters that are turned round.
    """
    size_y, size_x = weight.shape[2:]
    beyond = (size_y - 1 - padding[0], size_x - 1 - padding[1])
    if [*stride] == [1, 1]:
        taps = _taps(weight).flip(0)
        return _convolved(kernel, dy, weight, taps, None, stride, beyond, chosen)
    shape = Geometry.of(x, weight, stride, padding)
    images, height, width, channels, _, _ = shape
    dx = new_images(dy, (images, channels, height, width))
    if dx.numel():
        first = padding[0] // stride[0]
        steps = (height - 1 + padding[0]) // stride[0] + 1 - first
        this = Launch(
            run=launch_input,
            kernels=[kernel, strided_kernel],
            given=(dy, x, weight, stride, padding),
            reference=reference_input,
            limits=LIMITS,
        )
        by_default = plan(images, steps, width, channels, size_y * size_x, stride[1])
        how = chosen or plan_here(by_default, this)
        rows = -(-steps // how.chunks)
        tensors = (flattened(dy), _taps(weight).contiguous(), dx)
        chunks, pieces = -(-steps // rows), (rows, first)
        _run(strided_kernel, shape, width, chunks, weight, stride, padding, tensors, pieces, how)
    return dx


def launch_weight(
    kernel: Any,
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    chosen: Plan | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients by filters and bias, likewise; as `reference_weight`."""
    shape = Geometry.of(x, weight, stride, padding)
    images, height, _, channels, down, right = shape
    count = weight.shape[2] * weight.shape[3]
    total = x.new_zeros(count + 1, channels, dtype=torch.float32)
    if x.numel() and dy.numel():
        this = Launch(
            run=launch_weight,
            kernels=[kernel],
            given=(dy, x, weight, stride, padding),
            reference=reference_weight,
            limits={**LIMITS, "programs": (132, 8448)},
        )
        by_default = plan(images, down, right, channels, count, filling=_FILLING)
        how = chosen or plan_here(by_default, this)
        first, steps = _steps(weight.shape[2], stride[0], padding[0], height, down)
        rows = -(-steps // how.chunks)
        chunks = -(-steps // rows)
        blocks = -(-(images * chunks * -(-right // how.across)) // how.block_r)
        each = -(-blocks * -(-channels // how.block_c) // how.programs)
        programs = -(-blocks // each)
        partial = total.new_empty(programs, count + 1, channels)
        tensors, pieces = (flattened(dy), flattened(x), partial), (rows, first, each)
        _run(kernel, shape, right, chunks, weight, stride, padding, tensors, pieces, how, programs)
        total = partial.sum(0)
    # A copy: of one tap and in float32 the two would share memory, which operators must not return.
    dweight = total[:-1].t().to(weight.dtype, copy=True, memory_format=torch.contiguous_format)
    return dweight.view(weight.shape), total[-1].to(weight.dtype)


def _run(
    kernel: Any,
    shape: Geometry,
    cut: int,
    chunks: int,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    tensors: Sequence[Tensor | None],
    pieces: Sequence[int],
    how: Plan,
    programs: int | None = None,
) -> None:
    """Launch programs: one for each block of strips, unless there is a number of them."""
    images, height, width, channels, down, right = shape
    each = -(-cut // how.across)
    strips = images * chunks * each
    constants = {
        "channels": channels,
        "even": cut % how.across == 0,
        "size_y": weight.shape[2],
        "size_x": weight.shape[3],
        "stride_y": stride[0],
        "stride_x": stride[1],
        "padding_y": padding[0],
        "padding_x": padding[1],
        "across": how.across,
        "block_r": how.block_r,
        "block_c": how.block_c,
        "num_warps": 1,
    }
    result = tensors[-1]
    assert result is not None
    rows = -(-strips // how.block_r) if programs is None else programs
    grid = (rows, -(-channels // how.block_c))
    with torch.cuda.device(result.get_device()):  # Triton launches on the current one; -1 is none
        kernel[grid](
            *tensors, strips, height, width, down, right, each, chunks, *pieces, **constants
        )


# 4. When


def refusal(x: Tensor, weight: Tensor) -> str | None:
    """Return why the kernels can't take a convolution, or None. Then the reference runs."""
    if reason := unfit(x, weight):
        return reason
    if x.shape[1] * (x.shape[2] + _MARGIN) * (x.shape[3] + _MARGIN) >= _INT32:
        return "an image has too many elements: offsets in one have 32 bits"
    return None


_MARGIN = 64
"""Rows and columns beyond an image whose addresses are computed, though nothing is read there."""


def pays(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    measured: Measured = INFERRED,
) -> str | None:
    """Return why the operator should not take the place of a convolution, or None."""
    if reason := refusal(x, weight):
        return reason
    size, step = weight.shape[2], stride[0]
    alike = (size, size, step, step, size // 2, size // 2)
    if (*weight.shape[2:], *stride, *padding) != alike or (size, step) not in measured:
        faster = ", ".join(f"{n} by {n} with a stride of {m}" for n, m in measured)
        return f"its filter is not of {faster}, with half as much padding: others were not faster"
    multiple, least = measured[size, step]
    if x.shape[1] % multiple:
        return f"{x.shape[1]} channels: they are not a multiple of {multiple}"
    if not least <= x.numel() < _INT32:
        return f"{x.numel()} elements: it was measured between {least} and {_INT32}"
    return unmeasured(x)


# 5. Registration

_NAMES = (
    "depthwise_convolution",
    "depthwise_convolution_input",
    "depthwise_convolution_weight",
)


@functools.cache
def _operators() -> tuple[Any, Any, Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import (  # noqa: PLC0415
            depthwise_convolution_device as device,
        )

        kernel: Any = device.depthwise_kernel
        input_kernel: Any = device.depthwise_input_kernel
        weight_kernel: Any = device.depthwise_weight_kernel
    # Compilers see through a triton_op, to the kernel and to the reference; a custom_op is opaque
    # to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
    ) -> Tensor:
        if refusal(x, weight):
            return laid_out(reference(x, weight, bias, stride, padding))
        return launch(wrap_triton(kernel), x, weight, bias, stride, padding)

    def by_input(
        dy: Tensor, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
    ) -> Tensor:
        if refusal(x, weight):
            return laid_out(reference_input(dy, x, weight, stride, padding))
        kernels = wrap_triton(kernel), wrap_triton(input_kernel)
        return launch_input(*kernels, dy, x, weight, stride, padding)

    def by_weight(
        dy: Tensor, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        if refusal(x, weight):
            return reference_weight(dy, x, weight, stride, padding)
        return launch_weight(wrap_triton(weight_kernel), dy, x, weight, stride, padding)

    made = (
        define("backbay::depthwise_convolution", forward, mutates_args=()),
        define("backbay::depthwise_convolution_input", by_input, mutates_args=()),
        define("backbay::depthwise_convolution_weight", by_weight, mutates_args=()),
    )
    made[0].register_autograd(_vjp, setup_context=_save)
    return made


__getattr__ = registers(globals(), _NAMES, _operators)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch gives it)
    x, weight, bias, ctx.stride, ctx.padding = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight)


def _vjp(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    how = (ctx.stride, ctx.padding)
    _, by_input, by_weight = _operators()
    dx = dweight = dbias = None
    if ctx.needs_input_grad[0]:
        dx = by_input(dy, x, weight, *how)
    if any(ctx.needs_input_grad[1:3]):
        dweight, dbias = by_weight(dy, x, weight, *how)
    dbias = dbias if ctx.biased else None
    return dx, dweight, dbias, None, None
