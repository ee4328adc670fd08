"""A linear layer and the cross entropy of what it gives, without all of that in memory.

Logits of a language model are most of what its training holds at once: 2 GiB in 16 bits for 8192
tokens of 128256 words. Here they are computed for some rows at a time, and so is their gradient, in
their place: what backward needs is small, and multiplied by the loss's gradient there.

Liger Kernel (arXiv:2410.10989) and PyTorch 2.13's ``linear_cross_entropy`` do likewise. Here a
weight's gradient is summed in float32 by cuBLAS, and everything is rounded once, in backward: so
gradients are as exact as those of all logits at once, and a loss that is scaled for float16 works.
With float32 weights, that sum is the gradient, whatever dtype products are computed in.

To compute a part of the columns at a time, twice, as Cut Cross Entropy does (arXiv:2411.09009),
needs no such sum. With cuBLAS it took 1.26 to 1.48 times as long as all logits at once, on an H200
(2026-11-28), where parts of rows take 0.98 to 1.1 times as long.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op

from backbay_optimizer.kernels import softmax
from backbay_optimizer.kernels.conditions import registers, widened

MOST_ROWS = 4096
"""Of a part. With fewer, the sum of the weight's gradient is read and written too often."""

FEWEST_ROWS = 1024
"""Of a part: with fewer, products take longer."""

_PARTS = 4
_ALIGNED = 64
"""Products are slow where rows don't begin at multiples of 16 bytes."""
_BLOCK = 2048
_LEAST_GAIN = 0.8


Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class How(NamedTuple):
    """How losses are computed, beside what they are of."""

    scale: float = 1.0
    """What logits are multiplied by."""
    ignored: int = -100
    """The target of rows that are left out."""
    dtype: torch.dtype = torch.bfloat16
    """What products are computed in, and logits rounded to."""


# 1. The reference


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, how: How) -> Tensor:
    """Return the sum of the cross entropies of rows, in float32 at least, with all logits at once.

    Args:
        x: rows, (N, features).
        weight: (columns, features).
        bias: (columns,), or None.
        target: (N,) the column that is right, int64.
        how: see there.
    """
    bias = None if bias is None else bias.to(how.dtype)
    logits = torch.nn.functional.linear(x.to(how.dtype), weight.to(how.dtype), bias)
    return torch.nn.functional.cross_entropy(
        widened(logits) * how.scale, target, ignore_index=how.ignored, reduction="sum"
    )


# 2. Parts


def rows_at_once(rows: int) -> int:
    """Return the number of rows of a part."""
    most = min(max(-(-rows // _PARTS), FEWEST_ROWS), MOST_ROWS)
    return -(-rows // -(-rows // most)) if rows else 0


class _Sums:
    """What is summed over parts; gradients are those of the sum of losses.

    Each is float32 at least, and has no elements where it isn't wanted.
    """

    def __init__(self, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]) -> None:
        self.of_x, self.of_weight, self.of_bias = wanted
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.loss = x.new_zeros((), dtype=wide)
        self.count = x.new_zeros((), dtype=wide)
        self.dx = x.new_empty(x.shape if self.of_x else 0, dtype=wide)
        self.dweight = x.new_empty(weight.shape if self.of_weight else 0, dtype=wide)
        self.dbias = x.new_zeros(weight.shape[0] if self.of_bias else 0, dtype=wide)

    def results(self) -> Results:
        return self.loss, self.count, self.dx, self.dweight, self.dbias


def _summed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    how: How,
    wanted: tuple[bool, bool, bool],
) -> Results:
    kept = target != how.ignored
    _check(target, kept, weight.shape[0])
    sums = _Sums(x, weight, wanted)
    sums.count += kept.sum()
    if not x.shape[0]:
        sums.dweight.zero_()
    weight = weight.to(how.dtype)
    bias = None if bias is None else bias.to(how.dtype)
    at_once = rows_at_once(x.shape[0])
    columns = weight.shape[0]
    memory = weight.new_empty(at_once, -(-columns // _ALIGNED) * _ALIGNED)[:, :columns]
    for begin in range(0, x.shape[0], max(at_once, 1)):
        part = slice(begin, begin + at_once)
        rows = x[part].to(how.dtype)
        logits = memory[: rows.shape[0]]
        if bias is None:
            torch.mm(rows, weight.t(), out=logits)
        else:
            torch.addmm(bias, rows, weight.t(), out=logits)
        at = torch.where(kept[part], target[part], 0)
        total = _total(logits, how.scale)
        picked = logits.gather(1, at[:, None])[:, 0].to(total.dtype) * how.scale
        sums.loss += torch.where(kept[part], total - picked, 0).sum()
        if not any(wanted):
            continue
        given = kept[part].to(total.dtype) * how.scale
        _differentiate(logits, given, at, total, how.scale)
        if sums.of_x:
            _multiply(sums.dx[part], logits, weight, add=False)
        if sums.of_weight:
            _multiply(sums.dweight, logits.t(), rows, add=begin > 0)
        if sums.of_bias:
            sums.dbias += logits.sum(0, dtype=total.dtype)
    return sums.results()


def _check(target: Tensor, kept: Tensor, columns: int) -> None:
    is_column = (target >= 0) & (target < columns)
    said = f"linear_cross_entropy: a target is not in [0, {columns}), and not what is ignored"
    torch._assert_async((is_column | ~kept).all(), said)  # noqa: SLF001 (it waits for no device)


def _total(logits: Tensor, scale: float) -> Tensor:
    """Return the logarithm of the sum of exponentials of each row."""
    if softmax.refusal(logits) is None:
        from backbay_optimizer.kernels import softmax_device as device  # noqa: PLC0415 (Triton)

        m, s = softmax.launch_statistics(device.softmax_statistics_kernel, logits, scale)
    else:
        m, s = softmax.reference_statistics(logits, scale)
    return (m * scale + s.log())[:, 0]


def _differentiate(
    logits: Tensor, given: Tensor, target: Tensor, total: Tensor, scale: float
) -> None:
    """Put gradients in the place of logits: of losses, times ``given``."""
    if softmax.refusal(logits) is None:
        from backbay_optimizer.kernels import softmax_device as device  # noqa: PLC0415 (Triton)

        launch_gradient(device.cross_entropy_gradient_kernel, logits, given, target, total, scale)
        return
    probability = (widened(logits) * scale - total[:, None]).exp()
    is_target = torch.arange(logits.shape[1], device=logits.device) == target[:, None]
    logits.copy_((probability - is_target.to(total.dtype)) * given[:, None])


def launch_gradient(
    kernel: Any, logits: Tensor, given: Tensor, target: Tensor, total: Tensor, scale: float
) -> None:
    """Run the kernel that puts gradients in the place of logits, whose rows have no gaps in them.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU.
    """
    rows, columns = logits.shape
    with torch.cuda.device(logits.get_device()):  # Triton launches on the current one
        kernel[(rows, -(-columns // _BLOCK))](
            *(logits, given, target, total, columns, logits.stride(0), scale),
            block=_BLOCK,
            num_warps=4,
        )


def _multiply(to: Tensor, one: Tensor, other: Tensor, *, add: bool) -> None:
    """Write a product of matrices, or add it to what is there; computed in the dtype of that."""
    if one.dtype == to.dtype or one.device.type != "cuda":
        one, other = one.to(to.dtype), other.to(to.dtype)
        torch.addmm(to, one, other, beta=int(add), out=to)
    elif add:
        torch.addmm(to, one, other, out_dtype=to.dtype, out=to)
    else:
        torch.mm(one, other, out_dtype=to.dtype, out=to)


# 3. When


def pays(rows: int, weight: Tensor, dtype: torch.dtype, *, of_weight: bool) -> str | None:
    """Return why less memory would not be held, or None.

    Args:
        rows: their number.
        weight: of the linear layer.
        dtype: of logits.
        of_weight: whether its gradient is wanted.
    """
    columns, features = weight.shape
    size = dtype.itemsize
    all_at_once = rows * columns * size
    in_parts = rows_at_once(rows) * columns * size
    if of_weight and weight.dtype.itemsize < torch.float32.itemsize:
        in_parts += columns * features * torch.float32.itemsize
    if in_parts > _LEAST_GAIN * all_at_once:
        return f"{in_parts >> 20} MiB would be held, and {all_at_once >> 20} MiB as it is"
    return None


# 4. Registration

linear_cross_entropy: Callable[..., Results]
"""The operator ``backbay::linear_cross_entropy``: :func:`reference`, with its gradients.

Its arguments are those of `reference`, with each of `How`'s by itself, and whether gradients are
wanted of ``x``, ``weight`` and ``bias``. It returns the sum of losses, the number of rows that
count, and those gradients, which autograd multiplies: all in float32 at least, and with no elements
where they aren't wanted.
"""

_NAMES = ("linear_cross_entropy",)


@functools.cache
def _operators() -> tuple[Any]:
    # Opaque to compilers: what is in memory when is up to what is in here.
    made: Any = custom_op("backbay::linear_cross_entropy", _forward, mutates_args=())
    made.register_fake(_fake)
    made.register_autograd(_vjp, setup_context=_save)
    return (made,)


__getattr__ = registers(globals(), _NAMES, _operators)


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scale: float,
    ignored: int,
    dtype: torch.dtype,
    of_x: bool,
    of_weight: bool,
    of_bias: bool,
) -> Results:
    how = How(scale, ignored, dtype)
    return _summed(x, weight, bias, target, how, (of_x, of_weight, of_bias))


def _fake(x: Tensor, weight: Tensor, *others: Any) -> Results:
    return _Sums(x, weight, others[-3:]).results()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.dtypes = [None if t is None else t.dtype for t in inputs[:3]]
    ctx.wanted = inputs[-3:]
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _vjp(ctx: Any, dloss: Tensor, *_: Any) -> tuple[Any, ...]:
    needed = ctx.needs_input_grad[:3]
    if any(x and not y for x, y in zip(needed, ctx.wanted, strict=True)):
        raise RuntimeError(
            "linear_cross_entropy: an input requires a gradient that was not computed; ask for it "
            "by of_x, of_weight or of_bias, or detach the input"
        )
    count, *gradients = ctx.saved_tensors
    # Where no row counts, nothing depends on the loss, and its mean divides by zero.
    dloss = torch.where(count > 0, dloss, 0)
    each = zip(gradients, ctx.dtypes, needed, strict=True)
    found = [(t * dloss).to(dtype) if is_needed else None for t, dtype, is_needed in each]
    return *found, *(None,) * 7
