"""LayerNorm and RMSNorm whose gradients are of one read, in Triton.

From Ba, Kiros and Hinton, Layer Normalization, 2016 (arXiv 1607.06450), and Zhang and Sennrich,
Root Mean Square Layer Normalization, 2019 (arXiv 1910.07467). With ``n = (x - mean) * rstd``, where
RMSNorm has no mean, ``y = n * (weight + offset) + bias`` and ``g = dy * (weight + offset)``::

    dx = rstd * (g - <g> - n * <g * n>)        dweight = sum(dy * n)        dbias = sum(dy)

``<>`` is the mean of a row, sums are of all rows, and RMSNorm has no ``<g>``. The first goes along
rows, the others along columns: a compiler makes a kernel of each, and both read all of ``dy`` and
``x``. Here programs take whole rows, and keep their share of the sums in registers until their last
row, as in Triton's tutorial on layer norm and in Liger-Kernel (arXiv 2410.10989). What must move is
``dy`` and ``x``, which are read, and ``dx``: 6 bytes an element in 16 bits. Operations: 13 an
element, and 9 of an RMSNorm, each in float32.

Forward is PyTorch's operators, which a compiler fuses with what stands around. So that backward
needs no kernel beside its own, a norm gives what its readers read more than once: then each of
their gradients arrives apart, and is added where it is read. Copies are for that alone, and
compilers remove them.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from backbay_optimizer.kernels.conditions import DTYPES, has_triton, registers, unfit, widened
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured

COPIES = 3
"""Of a result: as many gradients of it are added in the kernel."""

HELD = 16384
"""Columns of a row that one program can hold."""

COLUMNS = (96, 8192)
"""The fewest and the most that were measured (``row_norm_plans.json``)."""

FEWEST_ELEMENTS = 2**22
"""Likewise: 4096 x 1024."""

FILLED = 0.75
"""Columns for each lane that a row takes, a power of two: 768 of 1024 and 96 of 128 were measured.
"""

_EIGHTS = 8


# 1. The reference


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float, *, is_centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``y``, mean and 1 / standard deviation of rows, which are the last dimension.

    Args:
        x: of any floating-point dtype; those of 16 bits are computed in float32.
        weight: (columns,).
        bias: (columns,), or None for zeros.
        eps: added to the variance, or to the mean square.
        offset: added to the weight: Gemma's norms multiply by 1 + weight.
        is_centred: whether the mean is subtracted: LayerNorm. For RMSNorm it is empty.
    """
    wide = widened(x)
    if is_centred:
        # Two sums, not Welford's algorithm, which Inductor has for a variance and is slower.
        mean = wide.mean(-1, keepdim=True)
        wide = wide - mean
    else:
        mean = wide.new_empty(0)
    rstd = (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    n = wide * rstd
    y = n * _scale(weight, offset)
    if bias is not None:
        y = y + widened(bias)
    return y.to(x.dtype), mean, rstd


def reference_backward(
    dys: Sequence[Tensor],
    x: Tensor,
    weight: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    offset: float,
    extra: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by ``x``, weight and bias, the last two in the dtype of the weight.

    ``dys`` are added, and ``extra`` is added to the first gradient.
    """
    dy = sum(map(widened, dys[1:]), start=widened(dys[0]))
    wide = widened(x)
    n = (wide if mean is None else wide - mean) * rstd
    scaled = dy * _scale(weight, offset)
    less = scaled if mean is None else scaled - scaled.mean(-1, keepdim=True)
    dx = (less - n * (scaled * n).mean(-1, keepdim=True)) * rstd
    if extra is not None:
        dx = dx + widened(extra)
    rows = list(range(x.dim() - 1))
    dweight, dbias = ((t.sum(rows) if rows else t).to(weight.dtype) for t in (dy * n, dy * 1))
    return dx.to(x.dtype), dweight, dbias


def _scale(weight: Tensor, offset: float) -> Tensor:
    return widened(weight) + offset if offset else widened(weight)


# 2. Launching


class Plan(NamedTuple):
    """How rows are shared out."""

    programs: int
    height: int
    """Rows of a tile."""
    warps: int
    stages: int = 1
    """Tiles that are loaded ahead, through shared memory; 1 loads into registers."""


LIMITS = {"programs": (16, 2048), "height": (1, 64), "warps": (1, 32), "stages": (1, 4)}
"""Of plans, where another GPU's is searched."""


def plan(columns: int, bytes_read: int) -> Plan:
    """Return how to share rows out: by search on an H100, which has 132 multiprocessors.

    Args:
        columns: of a row.
        bytes_read: of all tensors of the size of ``x``, for each of its elements.
    """
    width = _power_from(columns)
    programs, elements = (264, 4096) if width <= _SHORT else (132, 8192)
    height = max(1, min(32, elements // width))
    stages = 3
    room = _SHARED // (programs // 132)
    while stages > 1 and stages * height * width * bytes_read > room:
        height, stages = (height // 2, stages) if height > 1 else (height, stages - 1)
    warps = 4 if width * height <= 4096 and width > 128 else 8  # noqa: PLR2004
    return Plan(programs, height, 16 if width > 4096 else warps, stages)  # noqa: PLR2004


_SHORT = 1024
"""Columns up to which a multiprocessor has two programs."""

_SHARED = 200_000
"""Bytes of shared memory of a multiprocessor, of 227 KiB, that tiles loaded ahead may take."""

_TOTALS = (64, 32)
"""Shares and columns of a block of the second kernel."""


def launch_backward(
    kernels: tuple[Any, Any],
    dys: Sequence[Tensor],
    x: Tensor,
    weight: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    offset: float,
    extra: Tensor | None = None,
    has_bias: bool = True,
    chosen: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the kernels, without a dispatcher, a gradient or a check; as `reference_backward`.

    Under ``TRITON_INTERPRET=1`` they run on the CPU. ``kernels`` are that of rows and that of
    totals; ``chosen`` is how to share rows out, by default `plan`. Without a bias its gradient is
    empty.
    """
    columns = x.shape[-1]
    flat = _flattened(x)
    rows = flat.numel() // columns
    read = [x, *dys, *([] if extra is None else [extra])]
    this = Launch(
        run=launch_backward,
        kernels=[kernels],
        given=(dys, x, weight, mean, rstd, offset, extra, has_bias),
        reference=_same_backward,
        limits=LIMITS,
        positive=(rstd,),
    )
    how = chosen or plan_here(plan(columns, sum(t.element_size() for t in read)), this)
    width, multiple = _power_from(columns), _EIGHTS if columns % _EIGHTS == 0 else 1
    dx = torch.empty_like(flat)
    shares = [rstd.new_empty((how.programs, columns), dtype=torch.float32)]
    sums = [weight.new_empty(columns)]
    if has_bias:
        shares.append(torch.empty_like(shares[0]))
        sums.append(torch.empty_like(sums[0]))
    given = [_flattened(t) for t in dys]
    tensors = (
        *(*given, *[None] * (COPIES - len(given))),
        *(_flattened(t) for t in (extra, x, weight, mean, rstd)),
        *(dx, *_padded(shares)),
    )
    is_whole = isinstance(rows, int) and rows % how.height == 0 and width == columns
    with torch.cuda.device(x.get_device()):  # Triton launches on the current one
        kernels[0][(how.programs,)](
            *(*tensors, rows, columns // multiple),
            offset=offset,
            multiple=multiple,
            is_whole=is_whole,
            height=how.height,
            width=width,
            stages=how.stages,
            num_warps=how.warps,
        )
        block_s, block_c = _TOTALS
        kernels[1][(-(-columns // block_c), len(sums))](
            *(*_padded(shares), *_padded(sums), how.programs, columns),
            block_s=block_s,
            block_c=block_c,
        )
    return dx.view(x.shape), sums[0], sums[1] if has_bias else weight.new_empty(0)


def _same_backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `launch_backward` does, by the reference."""
    *rest, has_bias = given
    dx, dweight, dbias = reference_backward(*rest)
    return dx, dweight, dbias if has_bias else dweight.new_empty(0)


def _flattened(x: Tensor | None) -> Any:
    """Return a tensor as one row of memory.

    The flattening is written as views that say so: a compiler may choose another layout for a
    tensor than the one it was traced with.
    """
    return None if x is None else x.contiguous().view(-1)


def _padded(pair: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    return pair[0], pair[1] if len(pair) > 1 else None


def _power_from(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


# 3. When


def refusal(x: Tensor, weight: Tensor) -> str | None:
    """Return why the kernels can't take ``x``, or None. Then the reference runs."""
    if reason := unfit(x):
        return reason
    if weight.dtype not in DTYPES:
        return f"no kernel for weights of {weight.dtype}"
    if not x.numel():
        return "it is empty"
    if x.shape[-1] > HELD:
        return f"{x.shape[-1]} columns: the kernel holds {HELD}"
    return None


def pays(x: Tensor, weight: Tensor) -> str | None:
    """Return why the operator should not take the place of what Inductor makes, or None."""
    # Of symbols what they are now: to compare them would guard on the answer.
    sizes = [n if isinstance(n, int) else n.node.hint for n in x.shape]
    if None in sizes:
        return "only a run tells the number of its rows"
    measured = None if x.dtype != torch.float32 else "it was measured in 16 bits"
    if reason := refusal(x, weight) or measured:
        return reason
    columns = x.shape[-1]
    if not COLUMNS[0] <= columns <= COLUMNS[1] or columns % _EIGHTS:
        return f"{columns} columns: eights of {COLUMNS[0]} to {COLUMNS[1]} were measured"
    if columns < FILLED * _power_from(columns):
        return f"{columns} columns: they leave too many lanes of a power of two idle"
    if math.prod(sizes) < FEWEST_ELEMENTS:
        return f"it has fewer than {FEWEST_ELEMENTS} elements: that was not measured"
    return unmeasured(x)


# 4. Registration

Forward = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]
Backward = Callable[..., tuple[Tensor, Tensor, Tensor]]

row_norm: Forward
"""The operator ``backbay::row_norm``: y of :func:`reference` three times, x, mean and rstd."""

row_norm_backward: Backward
"""The operator ``backbay::row_norm_backward``: :func:`reference_backward`."""

_NAMES = ("row_norm", "row_norm_backward")


@functools.cache
def _operators() -> tuple[Any, Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import row_norm_device as device  # noqa: PLC0415

        rows_kernel: Any = device.row_norm_backward_kernel
        totals_kernel: Any = device.row_norm_totals_kernel
    # Compilers see through a triton_op, to the kernel and to what is pointwise; a custom_op is
    # opaque to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        offset: float,
        is_centred: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        y, mean, rstd = reference(x, weight, bias, eps, offset, is_centred=is_centred)
        y = y.contiguous()
        return y, y.clone(), y.clone(), x.clone(), mean, rstd

    def backward(
        dys: Sequence[Tensor],
        x: Tensor,
        weight: Tensor,
        mean: Tensor | None,
        rstd: Tensor,
        offset: float,
        extra: Tensor | None,
        has_bias: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if refusal(x, weight):
            dx, dweight, dbias = reference_backward(dys, x, weight, mean, rstd, offset, extra)
            return dx.contiguous(), dweight, dbias if has_bias else weight.new_empty(0)
        kernels = wrap_triton(rows_kernel), wrap_triton(totals_kernel)
        return launch_backward(kernels, dys, x, weight, mean, rstd, offset, extra, has_bias)

    made = (
        define("backbay::row_norm", forward, mutates_args=()),
        define("backbay::row_norm_backward", backward, mutates_args=()),
    )
    made[0].register_autograd(_vjp, setup_context=_save)
    return made


__getattr__ = registers(globals(), _NAMES, _operators)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, ctx.offset, ctx.is_centred = inputs
    *_, mean, rstd = output
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)  # zeros would be read like gradients


def _vjp(ctx: Any, *given: Tensor | None) -> tuple[Any, ...]:
    dys, extra = [t for t in given[:COPIES] if t is not None], given[COPIES]
    if not dys:
        return extra, None, None, None, None, None
    x, weight, mean, rstd = ctx.saved_tensors
    mean = mean if ctx.is_centred else None
    how = (ctx.offset, extra, ctx.has_bias)
    dx, dweight, dbias = _operators()[1](dys, x, weight, mean, rstd, *how)
    return dx, dweight, dbias if ctx.has_bias else None, None, None, None
