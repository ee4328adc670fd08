"""A linear layer and the cross entropy of what it gives, without all of that in memory.

Logits of a language model are most of what its training holds at once: 2 GiB in 16 bits for 8192
tokens of 128256 words. Here they are computed for some rows at a time, and so is their gradient, in
their place: what backward needs is small, and multiplied by the loss's gradient there.

Liger Kernel (arXiv:2410.10989) and PyTorch 2.13's ``linear_cross_entropy`` do likewise. Here
gradients of inputs are summed in float32 by cuBLAS, and rounded once, in backward: so they are as
exact as those of all logits at once. With float32 weights that sum is the gradient, whatever dtype
products are computed in. The gradient of logits in float16 is scaled by a power of two, since only
backward knows what the caller scales the loss by.

Operations: 6 for each row, input and column, as of all logits at once. What moves more than there:
for each part of the rows the weight is read twice, and the sum of its gradient, in float32, is
written, and read but for the first; backward reads the gradients of rows and weight once more.
Logits in 16 bits are written, read for their sum, read and overwritten by their gradient, and read
twice for products and once for the bias, as ever.

To compute a part of the columns at a time, twice, as Cut Cross Entropy does (arXiv:2411.09009),
needs no such sum. With cuBLAS it took 1.24 to 1.48 times as long as all logits at once, on an H200,
where parts of rows take 0.81 to 1.06 times as long (``linear_losses_by_columns.txt`` and
``linear_losses.md`` of 2026-11-28).

On other GPUs no plan is searched for the kernel of the gradient, nor for softmax's statistics here.
Plans are searched while a graph is compiled, and these kernels are launched when it runs, by an
operator that compilers don't look into. The gradient also overwrites its logits: each launch of a
search would need a copy of them, which moves as many bytes as the kernel, where the operator is
asked for to save memory.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels import softmax
from backbay_optimizer.kernels.conditions import SECOND_DIMENSION, registers, widened

MOST_ROWS = 4096
"""Of a part. With fewer, the sum of the weight's gradient is read and written too often."""

FEWEST_ROWS = 1024
"""Of a part: with fewer, products take longer."""

_PARTS = 4
_ALIGNED = 64
"""Columns are computed in multiples of it: products are slow where rows begin anywhere."""
_BLOCK = 2048
"""Columns of a program of the gradient's kernel, on any GPU."""
MOST_COLUMNS = SECOND_DIMENSION * _BLOCK
"""Of logits that this kernel takes, whose programs are the second dimension of a grid."""
_MOST_LEFT = 0.8
"""Of the memory that is held at once otherwise."""
_LARGEST = 15
"""The power of two that gradients of logits may reach in float16."""

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
    logits = F.linear(x.to(how.dtype), weight.to(how.dtype), bias)
    return F.cross_entropy(
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

    def __init__(
        self, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool], columns: int
    ) -> None:
        of_x, of_weight, of_bias = wanted
        how: Any = {"dtype": torch.promote_types(weight.dtype, torch.float32)}
        self.loss = x.new_zeros((), **how)
        self.count = x.new_zeros((), **how)
        self.dx = x.new_empty(x.shape if of_x else 0, **how)
        self.dweight = x.new_empty((columns, weight.shape[1]) if of_weight else 0, **how)
        self.dbias = x.new_zeros(columns if of_bias else 0, **how)

    def results(self, columns: int) -> Results:
        """Return them without what is behind the columns."""
        return self.loss, self.count, self.dx, self.dweight[:columns], self.dbias[:columns]


class _Layer(NamedTuple):
    """A linear layer in the dtype of its products, with zeros behind its columns."""

    weight: Tensor
    bias: Tensor | None
    columns: int


def _summed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    how: How,
    wanted: tuple[bool, bool, bool],
) -> Results:
    rows, columns = x.shape[0], weight.shape[0]
    _check(target, how.ignored, rows, columns)
    bias = None if bias is None else _padded(bias.to(how.dtype))
    layer = _Layer(_padded(weight.to(how.dtype)), bias, columns)
    sums = _Sums(x, weight, wanted, len(layer.weight))
    if not rows:
        sums.dweight.zero_()
    for begin in range(0, rows, at_once := max(rows_at_once(rows), 1)):
        # What a part needs is freed with it, and the next one has the same memory.
        _add(sums, slice(begin, begin + at_once), x, target, layer, how)
    return sums.results(columns)


def _padded(of_columns: Tensor) -> Tensor:
    """Return what has an element or a row for each column with zeros behind it, if it needs any."""
    missing = -of_columns.shape[0] % _ALIGNED
    if not missing:
        return of_columns
    return torch.cat([of_columns, of_columns.new_zeros(missing, *of_columns.shape[1:])])


def _add(sums: _Sums, part: slice, x: Tensor, target: Tensor, layer: _Layer, how: How) -> None:
    x, target = x[part].to(how.dtype), target[part]
    logits = F.linear(x, layer.weight, layer.bias)
    kept = target != how.ignored
    at = torch.where(kept, target, 0)
    total = _total(logits[:, : layer.columns], how.scale)
    # On CUDA this asserts that targets are columns.
    picked = logits[:, : layer.columns].gather(1, at[:, None])[:, 0].to(total.dtype) * how.scale
    sums.loss += torch.where(kept, total - picked, 0).sum()
    sums.count += kept.sum()
    if not any(t.numel() for t in (sums.dx, sums.dweight, sums.dbias)):
        return
    scaled = _scaling(how)
    given = kept.to(total.dtype) * (how.scale * scaled)
    _differentiate(logits, given, at, total, layer.columns, how.scale)
    if sums.dx.numel():
        _multiply(sums.dx[part], logits, layer.weight, 1 / scaled, add=False)
    if sums.dweight.numel():
        _multiply(sums.dweight, logits.t(), x, 1 / scaled, add=part.start > 0)
    if sums.dbias.numel():
        sums.dbias += logits.sum(0, dtype=total.dtype) / scaled


def _scaling(how: How) -> float:
    """Return by what gradients of logits are multiplied while they are in their dtype."""
    if how.dtype != torch.float16:
        return 1.0
    return float(2.0 ** (_LARGEST - math.ceil(math.log2(how.scale))))


def _check(target: Tensor, ignored: int, rows: int, columns: int) -> None:
    if target.shape != (rows,):
        raise ValueError(f"linear_cross_entropy: {rows} rows and targets of {tuple(target.shape)}")
    if target.device.type != "cpu" or not target.numel():
        return
    kept = target[target != ignored]
    wrong = kept[(kept < 0) | (kept >= columns)]
    if wrong.numel():
        raise IndexError(f"Target {wrong[0]} is out of bounds.")


def _total(logits: Tensor, scale: float) -> Tensor:
    """Return the logarithm of the sum of exponentials of each row."""
    if softmax.refusal(logits) is None:
        from backbay_optimizer.kernels import softmax_device as device  # noqa: PLC0415 (Triton)

        kernel = device.softmax_statistics_kernel
        m, log_s = softmax.launch_statistics(kernel, logits, scale, is_log=True)
    else:
        m, s = softmax.reference_statistics(logits, scale)
        log_s = s.log()
    return (m * scale + log_s)[:, 0]


def _differentiate(
    logits: Tensor, given: Tensor, target: Tensor, total: Tensor, columns: int, scale: float
) -> None:
    """Put gradients of losses times ``given`` in the place of logits, zeros behind the columns."""
    if softmax.refusal(logits) is None and logits.shape[1] <= MOST_COLUMNS:
        from backbay_optimizer.kernels import softmax_device as device  # noqa: PLC0415 (Triton)

        kernel = device.cross_entropy_gradient_kernel
        launch_gradient(kernel, logits, given, target, total, columns, scale)
        return
    probability = (widened(logits) * scale - total[:, None]).exp()
    column = torch.arange(logits.shape[1], device=logits.device)
    probability -= (column == target[:, None]).to(total.dtype)
    logits.copy_((probability * given[:, None]).masked_fill(column >= columns, 0))


def launch_gradient(
    kernel: Any,
    logits: Tensor,
    given: Tensor,
    target: Tensor,
    total: Tensor,
    columns: int,
    scale: float,
) -> None:
    """Run the kernel that puts gradients in the place of logits, which lie in one piece.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU.
    """
    rows, width = logits.shape
    with torch.cuda.device(logits.get_device()):  # Triton launches on the current one
        kernel[(rows, -(-width // _BLOCK))](
            *(logits, given, target, total, columns, width, scale), block=_BLOCK, num_warps=4
        )


def _multiply(to: Tensor, one: Tensor, other: Tensor, factor: float, *, add: bool) -> None:
    """Write a product of matrices and a number, or add it; computed in the dtype of where to."""
    how: dict[str, Any] = {"beta": int(add), "alpha": factor, "out": to}
    if one.dtype == to.dtype or one.device.type != "cuda":
        torch.addmm(to, one.to(to.dtype), other.to(to.dtype), **how)
    else:
        torch.addmm(to, one, other, out_dtype=to.dtype, **how)


# 3. When


def pays(rows: int, weight: Tensor, dtype: torch.dtype, *, of_weight: bool) -> str | None:
    """Return why not much less memory would be held, or None.

    What is held at once, with gradients: within 3 % of what ``linear_losses.py`` measured.

    Args:
        rows: their number.
        weight: of the linear layer.
        dtype: of logits.
        of_weight: whether its gradient is wanted.
    """
    (columns, features), wide = weight.shape, torch.float32.itemsize
    logits, copy = (n * columns * dtype.itemsize for n in (rows, features))
    is_cast = weight.dtype != dtype
    gradient = weight.numel() * weight.dtype.itemsize if of_weight else 0
    total = weight.numel() * wide if of_weight else 0
    as_it_is = logits + is_cast * copy + (copy if of_weight else 0)
    part = rows_at_once(rows) * columns * dtype.itemsize
    forward = part + total + (is_cast or columns % _ALIGNED > 0) * copy
    in_parts = max(forward, total + gradient) + rows * features * wide
    if in_parts > _MOST_LEFT * as_it_is:
        return f"{in_parts >> 20} MiB would be held, and {as_it_is >> 20} MiB as it is"
    return None


# 4. Registration

linear_cross_entropy: Callable[..., Results]
"""The operator ``backbay::linear_cross_entropy``: :func:`reference`, with its gradients.

Its arguments are those of `reference`, with each of `How`'s by itself, and whether gradients are
wanted of ``x``, ``weight`` and ``bias``. It returns the sum of losses, the number of rows that
count, and those gradients, which autograd multiplies: all in float32 at least, and with no elements
where they aren't wanted.
"""

linear_cross_entropy_backward: Callable[..., Tensor]
"""The operator ``backbay::linear_cross_entropy_backward``: such a gradient times the loss's."""

_NAMES = ("linear_cross_entropy", "linear_cross_entropy_backward")


@functools.cache
def _operators() -> tuple[Any, Any]:
    # Opaque to compilers: what is in memory when is up to what is in here. So is backward, which
    # has no gradient: it would lack what the first gradients depend on.
    forward: Any = custom_op("backbay::linear_cross_entropy", _forward, mutates_args=())
    forward.register_fake(_fake)
    backward: Any = custom_op("backbay::linear_cross_entropy_backward", _times, mutates_args=())
    backward.register_fake(_fake_times)
    forward.register_autograd(_vjp, setup_context=_save)
    return forward, backward


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
    return _Sums(x, weight, others[-3:], weight.shape[0]).results(weight.shape[0])


def _times(gradient: Tensor, dloss: Tensor, count: Tensor, like: Tensor) -> Tensor:
    # Where no row counts, nothing depends on the loss, and its mean divides by zero.
    factor = torch.where(count > 0, dloss, 0)
    return torch.mul(gradient, factor, out=torch.empty_like(gradient, dtype=like.dtype))


def _fake_times(gradient: Tensor, dloss: Tensor, count: Tensor, like: Tensor) -> Tensor:  # noqa: ARG001 (as the operator)
    return torch.empty_like(gradient, dtype=like.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.wanted = inputs[-3:]
    given = [t for t, is_wanted in zip(inputs[:3], ctx.wanted, strict=True) if is_wanted]
    # The inputs are saved so that AOTAutograd sees, as ever, that gradients depend on them.
    ctx.save_for_backward(*output[1:], *given)
    ctx.mark_non_differentiable(*output[1:])


def _vjp(ctx: Any, dloss: Tensor, *_: Any) -> tuple[Any, ...]:
    needed = ctx.needs_input_grad[:3]
    if any(x and not y for x, y in zip(needed, ctx.wanted, strict=True)):
        raise RuntimeError(
            "linear_cross_entropy: an input requires a gradient that was not computed; ask for it "
            "by of_x, of_weight or of_bias, or detach the input"
        )
    count, *gradients = ctx.saved_tensors[:4]
    given = iter(ctx.saved_tensors[4:])
    found: list[Tensor | None] = []
    for gradient, is_wanted, is_needed in zip(gradients, ctx.wanted, needed, strict=True):
        like = next(given) if is_wanted else None
        times = _operators()[1]
        found.append(times(gradient, dloss, count, like) if is_needed else None)
    return *found, *(None,) * 7
