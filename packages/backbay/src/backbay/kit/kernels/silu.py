"""SiLU, ``silu(x) = x * sigmoid(x)`` (also called Swish), and its gradient, in Triton.

From Hendrycks and Gimpel, Gaussian Error Linear Units, 2016 (arXiv 1606.08415), who name it, and
Ramachandran et al., Searching for Activation Functions, 2017 (arXiv 1710.05941). The kernels follow
Triton's vector addition tutorial.

It is the plainest kernel there is, and the example for the others: it moves every element once, so
that memory is its limit, and it competes with kernels that reach that limit too. It refuses to fuse
with its neighbours: where a compiler can write the neighbours into the same loop, that is faster.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

BLOCK = 1024
"""Elements that one program streams."""

WARPS = 4
"""Of 32 threads: 8 elements a thread, loaded 16 bytes at a time."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What the kernels take."""

PAYS_FROM = 2**26
"""Elements from which eager's two kernels, ``sigmoid`` and the product, take longer than our one
with its launch: on an H200, bfloat16 and float32. Eager's ``F.silu`` beats it at every size."""


# 1. The reference


def reference(x: Tensor) -> Tensor:
    """Return ``x * sigmoid(x)``, in the dtype, shape and layout of ``x``.

    Types of 16 bits are computed in float32 and rounded once.
    """
    wide = _widened(x)
    return torch.empty_like(x).copy_(wide * torch.sigmoid(wide))


def reference_backward(dy: Tensor, x: Tensor) -> Tensor:
    """Return ``dy * s * (1 + x * (1 - s))`` with ``s = sigmoid(x)``: the gradient by ``x``.

    ``dy`` has the shape and dtype of ``x``; so does the result, in the layout of ``x``.
    """
    wide = _widened(x)
    s = torch.sigmoid(wide)
    return torch.empty_like(x).copy_(_widened(dy) * s * (1 + wide * (1 - s)))


def _second_derivative(g: Tensor, dy: Tensor, x: Tensor) -> Tensor:
    """Return ``g * dy * s * (1 - s) * (2 + x * (1 - 2 * s))``, in operations that torch derives."""
    wide = _widened(x)
    s = torch.sigmoid(wide)
    return (_widened(g) * _widened(dy) * s * (1 - s) * (2 + wide * (1 - 2 * s))).to(x.dtype)


def _widened(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise TypeError(f"silu takes real floating-point tensors, not {x.dtype}: convert it first")
    return x.float() if x.dtype.itemsize < torch.float32.itemsize else x


# 2. The kernels


class Kernels(NamedTuple):
    """Of ``triton.jit``: compiled for each dtype when first launched."""

    forward: Any
    backward: Any


@functools.cache
def kernels() -> Kernels:
    """Import Triton, and make the kernels; they run over memory, whatever the shape.

    Raises:
        ImportError: Triton is not installed.
    """
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: PLC0415
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: PLC0415

    # Whole blocks go without a mask: through one, Triton loads 16 bytes at a time only where it
    # knows that 16 divides the size, and else is up to 3.6 times slower. The size comes as whole
    # blocks and the rest, because Inductor of torch 2.11 compiles no constant above 32 bits; the
    # offsets are 64-bit.
    jit = triton.jit(do_not_specialize=["whole", "rest"])  # one kernel for all sizes

    @jit  # type: ignore[untyped-decorator,unused-ignore]
    def silu_forward_kernel(x_ptr, y_ptr, whole, rest, block: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        program = tl.program_id(0)
        at = program.to(tl.int64) * block
        lane = tl.arange(0, block)
        if program < whole:
            x = tl.load(x_ptr + at + lane).to(tl.float32)
            tl.store(y_ptr + at + lane, x * tl.sigmoid(x))
        else:
            inside = lane < rest
            x = tl.load(x_ptr + at + lane, mask=inside, other=0.0).to(tl.float32)
            tl.store(y_ptr + at + lane, x * tl.sigmoid(x), mask=inside)

    @jit  # type: ignore[untyped-decorator,unused-ignore]
    def silu_backward_kernel(dy_ptr, x_ptr, dx_ptr, whole, rest, block: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, PLR0917
        program = tl.program_id(0)
        at = program.to(tl.int64) * block
        lane = tl.arange(0, block)
        if program < whole:
            x = tl.load(x_ptr + at + lane).to(tl.float32)
            dy = tl.load(dy_ptr + at + lane).to(tl.float32)
            s = tl.sigmoid(x)
            tl.store(dx_ptr + at + lane, dy * s * (1 + x * (1 - s)))
        else:
            inside = lane < rest
            x = tl.load(x_ptr + at + lane, mask=inside, other=0.0).to(tl.float32)
            dy = tl.load(dy_ptr + at + lane, mask=inside, other=0.0).to(tl.float32)
            s = tl.sigmoid(x)
            tl.store(dx_ptr + at + lane, dy * s * (1 + x * (1 - s)), mask=inside)

    return Kernels(silu_forward_kernel, silu_backward_kernel)


# 3. Launching


def launch(x: Tensor) -> Tensor:
    """Run the forward kernel on a dense ``x``, without a dispatcher, a gradient or a check.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU.
    """
    return _stream(kernels().forward, x)


def launch_backward(dy: Tensor, x: Tensor) -> Tensor:
    """Run the gradient's kernel, likewise; ``dy`` may have any layout."""
    return _stream(kernels().backward, _laid_out_like(x, dy), x)


def _stream(kernel: Any, *inputs: Tensor) -> Tensor:
    """Launch over inputs of one dense layout, in the order of memory; the result has it too.

    The flattening is written as views that say so: a compiler may choose another layout for a
    tensor than the one it was traced with.
    """
    flat = [_flattened(x) for x in inputs]
    out = torch.empty_like(flat[0])
    n = out.numel()
    if n:
        with torch.cuda.device(out.get_device()):  # Triton launches on the current one; -1 is none
            kernel[((n + BLOCK - 1) // BLOCK,)](
                *flat, out, n // BLOCK, n % BLOCK, block=BLOCK, num_warps=WARPS
            )
    return out.as_strided(inputs[0].shape, inputs[0].stride())


def _flattened(x: Tensor) -> Tensor:
    order = _memory_order(x)
    if order is None:
        raise ValueError(f"the kernel takes a dense tensor, not strides {x.stride()}: clone it")
    return x.permute(order).view(-1)


def _memory_order(x: Tensor) -> list[int] | None:
    """Return the dimensions, slowest first; ``None`` if elements overlap or leave gaps."""
    if x.is_contiguous():
        return list(range(x.dim()))
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    return order if x.permute(order).is_contiguous() else None


def _laid_out_like(x: Tensor, dy: Tensor) -> Tensor:
    return dy if dy.stride() == x.stride() else torch.empty_like(x).copy_(dy)


# 4. When


def refusal(x: Tensor) -> str | None:
    """Return why the kernels can't take ``x``; ``None`` if they can. Then the reference runs."""
    if x.device.type != "cuda":
        return f"the tensor is on {x.device.type}, not on cuda"
    if not has_triton():
        return "Triton is not installed"
    if x.dtype not in DTYPES:
        return f"no kernel for {x.dtype}"
    if _memory_order(x) is None:
        return f"not dense: strides {tuple(x.stride())} of shape {tuple(x.shape)}"
    return None


def pays(x: Tensor) -> str | None:
    """Return why the operator should not take the place of ``sigmoid(x) * x``; ``None`` if it may.

    That is for a graph that runs as it stands. Where a compiler fuses, leave it the two operations:
    it reaches the same bandwidth, and takes the neighbours along (``benchmarks/silu_gpu.py``).
    """
    if reason := refusal(x):
        return reason
    if x.numel() < PAYS_FROM:
        return f"{x.numel()} elements: below {PAYS_FROM} its launch costs more than it saves"
    return None


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed, without importing it."""
    return importlib.util.find_spec("triton") is not None


# 5. Registration

Forward = Callable[[Tensor], Tensor]
Backward = Callable[[Tensor, Tensor], Tensor]

silu: Forward
"""The operator ``backbay::silu``: :func:`reference`, by the kernel where it can."""

silu_backward: Backward
"""The operator ``backbay::silu_backward``: :func:`reference_backward`, likewise."""


def __getattr__(name: str) -> Any:
    """Register the operators when one is first asked for: that imports Triton."""
    if name not in {"silu", "silu_backward"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    operators = _operators()._asdict()
    globals().update(operators)
    return operators[name]


class _Operators(NamedTuple):
    silu: Any
    silu_backward: Any


@functools.cache
def _operators() -> _Operators:
    made = _Operators(_define_forward(), _define_backward())
    made.silu.register_kernel("cpu")(reference)
    made.silu.register_fake(torch.empty_like)
    made.silu.register_autograd(_silu_vjp, setup_context=_save_inputs)
    made.silu_backward.register_kernel("cpu")(reference_backward)
    made.silu_backward.register_fake(lambda _, x: torch.empty_like(x))
    made.silu_backward.register_autograd(_silu_backward_vjp, setup_context=_save_inputs)
    return made


def _define_forward() -> Any:
    # torch reads the name of the kernel in wrap_triton(...) from the source: its text is part of
    # the key of compiled graphs that are kept on disk.
    kernel: Any = kernels().forward if has_triton() else None

    def silu(x: Tensor) -> Tensor:
        if refusal(x):
            return reference(x)
        return _stream(wrap_triton(kernel), x)

    return _define("backbay::silu", silu)


def _define_backward() -> Any:
    kernel: Any = kernels().backward if has_triton() else None

    def silu_backward(dy: Tensor, x: Tensor) -> Tensor:
        if refusal(x):
            return reference_backward(dy, x)
        return _stream(wrap_triton(kernel), _laid_out_like(x, dy), x)

    return _define("backbay::silu_backward", silu_backward)


def _define(name: str, function: Callable[..., Tensor]) -> Any:
    # Compilers see through a triton_op, to the kernel and to the reference; a custom_op is opaque
    # to them, and asks for no Triton.
    define = triton_op if has_triton() else custom_op
    return define(name, function, mutates_args=())


def _save_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's signature)
    ctx.save_for_backward(*inputs)


def _silu_vjp(ctx: Any, dy: Tensor) -> Any:
    (x,) = ctx.saved_tensors
    return _operators().silu_backward(dy, x)


def _silu_backward_vjp(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
    dy, x = ctx.saved_tensors
    return _operators().silu_backward(g, x), _second_derivative(g, dy, x)
