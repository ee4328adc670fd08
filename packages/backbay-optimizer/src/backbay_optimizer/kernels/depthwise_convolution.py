"""Depthwise convolution of images with channels last, and the gradient by them, in Triton.

A filter for each channel, as in MobileNet (Howard and others, 2017, arXiv 1704.04861) and ConvNeXt
(Liu and others, 2022, arXiv 2201.03545). That is no matrix product: with ``t`` taps each result
takes ``t`` multiplications and additions, in float32 here, and no tensor core does them. That a row
of pixels is kept in registers for several results is how convolutions without a matrix product
have been computed since Krizhevsky's cuda-convnet; ``depthwise_convolution_device`` says how
images are cut. The gradient by the filters is torch's: cuDNN has it near the limit.

What must move: forward reads ``x`` and writes ``y``, backward reads ``dy`` and writes ``dx``.
Operations: ``2 t`` for each result, in either direction. On an H100, which does 67 TFLOP/s in
float32 and moves 3 TB/s, a filter of 3 by 3 in 16 bits waits for memory, and one of 7 by 7 for
arithmetic: of the instructions that are issued three in five are such operations.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from backbay_optimizer.kernels import has_triton

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What the kernels take."""

MEASURED = (9, 0)
"""Compute capability of the GPU that times and plans are from: an H100."""

SIZE = 7
"""Height and width of filters for which the kernels were measured to be faster than cuDNN's
(``benchmarks/conditions.py``, ``depthwise``)."""

PAYS_FROM = 2**22
"""Elements from which they were, in a graph (``benchmarks/models.py``, ``convnext_t.infer``); alone
they were with half as many, and slower below a million."""

CHANNELS = 32
"""Channels come in so many: of 80, of which a part of a program's is idle, it was as fast."""

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
    return _gradients(dy, x, weight, stride, padding, (True, False))[0]


def _gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    wanted: tuple[bool, bool],
) -> tuple[Tensor, Tensor]:
    how = ([*stride], [*padding], [1, 1], False, [0, 0], x.shape[1], [*wanted, False])
    dx, dweight, _ = torch.ops.aten.convolution_backward.default(dy, x, weight, None, *how)
    return dx, dweight


# 2. How images are cut


class Plan(NamedTuple):
    """How large a program's piece is."""

    across: int
    """Pixels of a strip."""
    block_r: int
    """Strips."""
    block_c: int
    """Channels."""
    warps: int = 4


def plan(width: int, channels: int, stride: int = 1) -> Plan:
    """Return how to cut images that are written with a width: by search on an H100.

    ``stride`` is what ``across`` must be a multiple of.
    """
    found = [x for x in _TIMES if x % stride == 0] or [stride]
    across = min(found, key=lambda x: _TIMES.get(x, 1.0) * x * -(-width // x))
    if channels % 64:
        return Plan(across, 16, 32)
    return Plan(across, 8, 64)


_TIMES = {14: 1.0, 8: 1.1, 7: 1.15, 4: 1.35}
"""Pixels of a strip, to how long each takes, about."""


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


def _flattened(x: Tensor) -> Tensor:
    """Return an image as one row of memory, with channels last.

    The flattening is written as views that say so: a compiler may choose another layout for a
    tensor than the one it was traced with.
    """
    return x.movedim(1, -1).contiguous().view(-1)


def _shaped(flat: Tensor, *sizes: int) -> Tensor:
    return flat.view(*sizes).movedim(-1, 1)


def _taps(weight: Tensor) -> Tensor:
    """Return filters as (taps, channels), float32."""
    return weight.reshape(weight.shape[0], -1).t().float().contiguous()


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
    shape = Geometry.of(x, weight, stride, padding)
    images, _, _, channels, down, right = shape
    y = x.new_empty(images * down * right * channels)
    if y.numel():
        flat = None if bias is None else bias.contiguous().view(-1)
        how = chosen or plan(right, channels)
        tensors = (_flattened(x), _taps(weight), flat, y)
        _run(kernel, shape, (down, right), weight, stride, padding, tensors, how)
    return _shaped(y, images, down, right, channels)


def launch_input(
    kernel: Any,
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    chosen: Plan | None = None,
) -> Tensor:
    """Run the kernel for the gradient by ``x``, likewise; as `reference_input`."""
    shape = Geometry.of(x, weight, stride, padding)
    images, height, width, channels, _, _ = shape
    dx = dy.new_empty(images * height * width * channels)
    if dx.numel():
        how = chosen or plan(width, channels, stride[1])
        tensors = (_flattened(dy), _taps(weight), dx)
        _run(kernel, shape, (height, width), weight, stride, padding, tensors, how)
    return _shaped(dx, images, height, width, channels)


def _run(
    kernel: Any,
    shape: Geometry,
    written: tuple[int, int],
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    tensors: Sequence[Tensor | None],
    how: Plan,
) -> None:
    images, height, width, channels, down, right = shape
    each = -(-written[1] // how.across)
    strips = images * written[0] * each
    constants = {
        "channels": channels,
        "even": written[1] % how.across == 0,
        "size_y": weight.shape[2],
        "size_x": weight.shape[3],
        "stride_y": stride[0],
        "stride_x": stride[1],
        "padding_y": padding[0],
        "padding_x": padding[1],
        "across": how.across,
        "block_r": how.block_r,
        "block_c": how.block_c,
        "num_warps": how.warps,
    }
    result = tensors[-1]
    assert result is not None
    grid = (-(-strips // how.block_r), -(-channels // how.block_c))
    with torch.cuda.device(result.get_device()):  # Triton launches on the current one; -1 is none
        kernel[grid](*tensors, strips, height, width, down, right, each, **constants)


# 4. When


def refusal(x: Tensor, weight: Tensor) -> str | None:
    """Return why the kernels can't take a convolution, or None. Then the reference runs."""
    if x.device.type != "cuda":
        return f"the tensor is on {x.device.type}, not on cuda"
    if not has_triton():
        return "Triton is not installed"
    if x.dtype not in DTYPES or weight.dtype != x.dtype:
        return f"no kernel for {x.dtype} by {weight.dtype}"
    return None


def pays(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> str | None:
    """Return why the operator should not take the place of a convolution, or None."""
    if reason := refusal(x, weight):
        return reason
    if torch.cuda.get_device_capability(x.device) != MEASURED:
        return "it was measured on GPUs of compute capability 9.0"
    if (*weight.shape[2:], *stride, *padding) != (SIZE, SIZE, 1, 1, SIZE // 2, SIZE // 2):
        return "it is not of 7 by 7, with a stride of 1 and a padding of 3: others were not faster"
    if x.shape[1] % CHANNELS:
        return f"{x.shape[1]} channels: they are not a multiple of {CHANNELS}"
    if not PAYS_FROM <= x.numel() < _INT32:
        return f"{x.numel()} elements: it was measured between {PAYS_FROM} and {_INT32}"
    return None


# 5. Registration

_NAMES = ("depthwise_convolution", "depthwise_convolution_input")


def __getattr__(name: str) -> Any:
    """Register the operators when one is first asked for: that imports Triton."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    operators = dict(zip(_NAMES, _operators(), strict=True))
    globals().update(operators)
    return operators[name]


def _laid_out(y: Tensor) -> Tensor:
    """Return images that have their channels last."""
    return y.movedim(1, -1).contiguous().movedim(-1, 1)


@functools.cache
def _operators() -> tuple[Any, Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import (  # noqa: PLC0415
            depthwise_convolution_device as device,
        )

        kernel: Any = device.depthwise_kernel
        input_kernel: Any = device.depthwise_input_kernel
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
            return _laid_out(reference(x, weight, bias, stride, padding))
        return launch(wrap_triton(kernel), x, weight, bias, stride, padding)

    def backward(
        dy: Tensor, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
    ) -> Tensor:
        if refusal(dy, weight):
            return _laid_out(reference_input(dy, x, weight, stride, padding))
        return launch_input(wrap_triton(input_kernel), dy, x, weight, stride, padding)

    made = (
        define("backbay::depthwise_convolution", forward, mutates_args=()),
        define("backbay::depthwise_convolution_input", backward, mutates_args=()),
    )
    made[0].register_autograd(_vjp, setup_context=_save)
    return made


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch gives it)
    x, weight, bias, ctx.stride, ctx.padding = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)


def _vjp(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    how = (ctx.stride, ctx.padding)
    dx = _operators()[1](dy, x, weight, *how) if ctx.needs_input_grad[0] else None
    dweight = _gradients(dy, x, weight, *how, (False, True))[1] if ctx.needs_input_grad[1] else None
    dbias = None
    if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
        dbias = dy.sum((0, 2, 3), dtype=torch.float32).to(ctx.bias_dtype)
    return dx, dweight, dbias, None, None
