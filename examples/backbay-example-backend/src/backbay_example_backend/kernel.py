"""The operator ``relu_squared``: ``relu(x) ** 2`` by one Triton kernel.

The activation of Primer, and of the nanoGPT speedruns. Read from top to bottom: what is right, how
it is made fast, when, and how torch is told. To make an operator of your own, change the reference
first: the tests hold the kernels to it.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import triton_op, wrap_triton

HAS_TRITON = importlib.util.find_spec("triton") is not None

if HAS_TRITON:
    import triton
    import triton.language as tl

OPERATOR = "backbay_example_backend::relu_squared"

BLOCK = 1024
"""Elements that one program computes."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What the kernels take."""

LARGEST = 2**31 - BLOCK
"""Elements; the kernels' offsets have 32 bits."""


# 1. The reference: what the operator means


def reference(x: Tensor) -> Tensor:
    """Return ``relu(x) ** 2``."""
    return torch.relu(x).square()


def reference_backward(dy: Tensor, x: Tensor) -> Tensor:
    """Return ``2 * x * dy`` where ``x`` is positive, else 0: the gradient by ``x``."""
    return torch.where(x <= 0, 0, 2 * (x * dy))


# 2. The kernels

if HAS_TRITON:

    @triton.jit
    def forward_kernel(x_ptr, y_ptr, n, block: tl.constexpr):
        """Compute ``y`` of ``x``, in float32; rounded once, when it is stored."""
        at = tl.program_id(0) * block + tl.arange(0, block)
        x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
        y = tl.where(x <= 0, 0.0, x * x)  # tl.maximum(x, 0) would lose a NaN
        tl.store(y_ptr + at, y, mask=at < n)

    @triton.jit
    def backward_kernel(dy_ptr, x_ptr, dx_ptr, n, block: tl.constexpr):
        """Compute ``dx`` of ``dy`` and ``x``, likewise."""
        at = tl.program_id(0) * block + tl.arange(0, block)
        x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=at < n).to(tl.float32)
        dx = tl.where(x <= 0, 0.0, 2 * (x * dy))
        tl.store(dx_ptr + at, dx, mask=at < n)


# 3. Launching


def launch(kernel: Any, *inputs: Tensor) -> Tensor:
    """Run a kernel over contiguous tensors of one shape; the result is like them.

    Nothing is checked. Under ``TRITON_INTERPRET=1`` a bare kernel runs on the CPU.
    """
    flat = [x.view(-1) for x in inputs]
    out = torch.empty_like(flat[0])
    n = out.numel()
    if n:
        with torch.cuda.device(out.get_device()):  # Triton launches on the current one; -1 is none
            kernel[((n + BLOCK - 1) // BLOCK,)](*flat, out, n, block=BLOCK)
    return out.view(inputs[0].shape)


# 4. When


def refusal(x: Tensor, devices: tuple[str, ...] = ("cuda",)) -> str | None:
    """Return why the kernels can't take ``x``, or ``None``.

    The operator asks when it is called, and then runs its reference; the pass asks before it puts
    the operator into a graph.
    """
    if x.device.type not in devices:
        return f"the tensor is on {x.device.type}, not on {' or '.join(devices)}"
    if x.dtype not in DTYPES:
        return f"no kernel for {x.dtype}"
    if not x.is_contiguous():
        return "it is not contiguous"
    if x.numel() > LARGEST:
        return f"{x.numel()} elements: at most {LARGEST}"
    return None


# 5. Registration. Compilers see through both kinds: to the kernel, to the reference. Neither needs
# a fake: torch runs the function itself on tensors without values.


def _save_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _vjp(ctx: Any, dy: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return relu_squared_backward(dy, x)


def _backward_vjp(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
    dy, x = ctx.saved_tensors
    return relu_squared_backward(g, x), torch.where(x <= 0, 0, 2 * (g * dy))


if HAS_TRITON:

    @triton_op(OPERATOR, mutates_args=())
    def _forward(x: Tensor) -> Tensor:
        if refusal(x):
            return reference(x)
        return launch(wrap_triton(forward_kernel), x)

    @triton_op(f"{OPERATOR}_backward", mutates_args=())
    def _backward(dy: Tensor, x: Tensor) -> Tensor:
        if refusal(x):
            return reference_backward(dy, x)
        return launch(wrap_triton(backward_kernel), dy.contiguous(), x)

    _forward.register_autograd(_vjp, setup_context=_save_inputs)
    _backward.register_autograd(_backward_vjp, setup_context=_save_inputs)
else:
    torch.library.define(OPERATOR, "(Tensor x) -> Tensor")
    torch.library.impl(OPERATOR, "CompositeImplicitAutograd", reference)
    torch.library.define(f"{OPERATOR}_backward", "(Tensor dy, Tensor x) -> Tensor")
    torch.library.impl(f"{OPERATOR}_backward", "CompositeImplicitAutograd", reference_backward)

_ops = torch.ops.backbay_example_backend

relu_squared: Callable[[Tensor], Tensor] = _ops.relu_squared.default
"""The operator: :func:`reference`, by the kernel where it can."""

relu_squared_backward: Callable[[Tensor, Tensor], Tensor] = _ops.relu_squared_backward.default
"""Its gradient: :func:`reference_backward`, likewise."""
