"""Call a fused kernel for decomposed attention with a bias or a mask, on CUDA.

::

    before:  scores = torch.matmul(q, k.transpose(-2, -1)) + bias  # T5's relative positions
             torch.matmul(F.softmax(scores.float(), dim=-1).to(q.dtype), v)
    after:   F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)

Inductor has patterns for some spellings of it, few of which add anything to the scores. Otherwise
scores and weights, which are many times as large as the rest, are written and read at each step.

Nothing else may read them, and no element may be dropped. A query that sees no key, because all of
its row is minus infinity, gives NaN when it is written out, and zero in a fused kernel; so NaN is
added to such rows of a bias. One whose row is the lowest number gives the mean of all values.

In training no gradient goes through what is filled in. Where that is all of a query's scores, the
query and its row of the bias become zero: the same mean, of which kernels know the gradient. They
get it wrong where the lowest number has absorbed the sum that they keep, so also where it is added.

Which kernel pays was measured, with gradients and without. cuDNN's backward gave NaN, where it is
given a mask, for some lengths that are no multiple of its block
(https://github.com/pytorch/pytorch/issues/196678), so it is not used for any such length.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.backends.cuda import can_use_cudnn_attention, can_use_efficient_attention
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import _disable_current_modes

from backbay.graph import effects
from backbay.graph.aliases import Memory, disturbed
from backbay.graph.constant import NotConstantError, constant_value
from backbay.graph.rewrite import call_before, cast_before, layout
from backbay.graph.values import is_ordinary, value_of
from backbay.kit.passes import EIGHTS, NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.kernels import windowed_attention as kernel
from backbay_optimizer.passes import attention, decomposed_attention, mask_kinds
from backbay_optimizer.passes.decomposed_attention import Fill, Order, Written, written_out

BLOCK = 128
"""Queries, and keys, of a block of cuDNN's kernel. Of fewer keys it computes as many."""
FEWEST_BLOCKS = {"inference": 48, "training": 96}
"""Of queries, of all heads and sequences together, from which a fused kernel is faster. Measured on
an H200: 48 blocks took 0.91 of the time in inference, and 1.25 in training, 96 took 0.85."""
FINITE = -1e30
"""Kernels take bfloat16's lowest number for minus infinity, as they scale it by log2(e). This one
they add: a row of it weighs all keys alike, as it does when it is written out."""

_MATRIX, _RANKS = 2, (3, 4)


@dataclass(frozen=True, kw_only=True)
class FusedAttention(Rewrite[Written]):
    """Call a fused kernel for attention that is written out with a bias or a mask; for CUDA."""

    summary = "on CUDA, attention that is written out with a bias or a mask is one call"
    requires = Requires(
        devices=("cuda",),
        because="kernels were measured on CUDA",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="kernels take 16 bits",
    )
    sources = (attention, effects, mask_kinds, decomposed_attention, kernel)
    in_checkpoints = True
    removes_dead_code = True

    def sites(self, graph_module: GraphModule, context: PassContext) -> Iterator[Written]:  # noqa: ARG002 (the base's)
        """Yield decomposed attention, nothing of which is read elsewhere."""
        return written_out(graph_module)

    def replacement(self, site: Written, context: PassContext) -> Replacement:
        """Return the call, laid out as the product that it replaces."""
        place, attend = site.node, _kernel(site)
        if value_of(place).requires_grad:
            _check_backward(site, context)
        dtype, bias = value_of(site.scores).dtype, _bias(site, context)
        operands = (site.query, site.keys, site.value)
        query, keys, value = (_ordered(x.node, x.order, place) for x in operands)
        if (hidden := _hidden(site)) is not None:
            query = call_before(place, torch.masked_fill, query, hidden, 0.0)
        key = call_before(place, torch.transpose, keys, -2, -1)
        three = [cast_before(place, x, dtype) for x in (query, key, value)]
        is_flat = value_of(query).dim() != max(_RANKS)
        if is_flat:
            three = [call_before(place, torch.unsqueeze, x, 0) for x in three]
        made = call_before(place, attend, *three, bias, scale=site.scale)
        if is_flat:
            made = call_before(place, torch.squeeze, made, 0)
        result = _ordered(made, site.order, place)
        if layout(value_of(result)) != layout(value_of(place)):
            result = _laid_out(result, place)
        return Replacement({place: result}, site.inside)


fused_attention = FusedAttention()


# 1. Whether it is taken, and by which kernel


def _kernel(found: Written) -> Callable[..., Any]:
    if found.drops:
        raise NotApplicable("it drops elements, and would draw other ones")
    _check_values(found)
    why = disturbed(found.scores, found.node, found.reads, inside=found.inside)
    if why is not None:
        raise NotApplicable(why)
    query, keys, value = _operands(found)
    attend = _fastest(found, query, int(keys.shape[-1]))
    if query.is_cuda:
        _check_is_taken(attend, found, [query, keys.mT, value])
    return attend


def _check_backward(found: Written, context: PassContext) -> None:
    """See to it that what backward reads, where products may have copied it, is as it was."""
    graph = found.node.graph
    memory = context.kept(("memory", graph), lambda: Memory(graph))
    if any(map(memory.mutated, found.reads)):
        raise NotApplicable("something writes what it reads, and backward may read it after that")


def _operands(found: Written) -> list[torch.Tensor]:
    """Return the values of query, transposed keys, and value."""
    return [
        value_of(x.node) if x.order is None else value_of(x.node).permute(x.order)
        for x in (found.query, found.keys, found.value)
    ]


def _check_values(found: Written) -> None:
    values = [value_of(x) for x in (*found.reads, *found.inside)]
    if not all(map(is_ordinary, values)):
        raise NotApplicable("not all of it are ordinary tensors that are known")
    if not all(isinstance(n, int) for x in values for n in x.shape):
        raise NotApplicable("how many queries or keys there are is a symbol")
    dtype, scores = value_of(found.node).dtype, value_of(found.scores)
    if scores.dtype != dtype:
        raise NotApplicable(f"its products are of {scores.dtype} and {dtype}: kernels take 16 bits")
    query, keys, value = _operands(found)
    if query.dim() not in _RANKS or not query.dim() == keys.dim() == value.dim():
        raise NotApplicable("its tensors have not three or four dimensions")
    batch = query.shape[:-2]
    summed = query.shape[-1] == keys.shape[-2] and keys.shape[-1] == value.shape[-2]
    alike = summed and keys.shape[:-2] == batch == value.shape[:-2]
    if not alike or not query.numel() * keys.numel():
        raise NotApplicable("its tensors are repeated on the way, or empty")
    for change in found.changes:
        _check_change(change, scores)
    numbers = {x.number for x in found.changes if isinstance(x, Fill)}
    if _fills_in_training(found) and (len(numbers) > 1 or found.added):
        raise NotApplicable(
            f"{min(numbers)} is filled in, and not alone: a query that sees no key would get a "
            "gradient"
        )


def _fills_in_training(found: Written) -> bool:
    fills = [x for x in found.changes if isinstance(x, Fill)]
    is_trained = bool(value_of(found.node).requires_grad)
    return is_trained and any(math.isfinite(x.number) for x in fills)


def _check_change(change: Node | Fill, scores: torch.Tensor) -> None:
    if isinstance(change, Fill):
        if value_of(change.where).dtype != torch.bool:
            raise NotApplicable(f"{change.where.name} says where to fill, and is not boolean")
        if change.number > mask_kinds.HIDDEN:
            raise NotApplicable(
                f"{change.number} is filled in: a kernel would add it to the scores"
            )
    elif value_of(change).dtype != scores.dtype:
        raise NotApplicable(f"{change.name} is {value_of(change).dtype}, and would be rounded")
    value = value_of(change.where if isinstance(change, Fill) else change)
    fits = all(a in {1, b} for a, b in zip(value.shape[::-1], scores.shape[::-1], strict=False))
    if not _MATRIX <= value.dim() <= scores.dim() or not fits:
        raise NotApplicable("what is added has one dimension, or does not fit into the scores")


def _fastest(found: Written, query: torch.Tensor, keys: int) -> Callable[..., Any]:
    """Return the kernel that is faster than what Inductor makes of it; measured on an H200."""
    is_trained, queries = bool(value_of(found.node).requires_grad), query.shape[-2]
    blocks = math.prod(query.shape[:-2]) * math.ceil(queries / BLOCK)
    if blocks < FEWEST_BLOCKS["training" if is_trained else "inference"]:
        raise NotApplicable(f"{blocks} blocks of queries are too few to keep a fused kernel busy")
    if not is_trained:
        return F.scaled_dot_product_attention if keys >= BLOCK else kernel.EFFICIENT
    in_blocks = queries % BLOCK == 0 and keys % BLOCK == 0
    if in_blocks and not any(value_of(x).requires_grad for x in found.added):
        return F.scaled_dot_product_attention
    if keys % EIGHTS:
        return kernel.EFFICIENT
    raise NotApplicable(
        f"{keys} keys, with gradients: the kernel that is right there is no faster than Inductor"
    )


def _check_is_taken(attend: Any, found: Written, tensors: list[torch.Tensor]) -> None:
    """See to it that the kernel that was measured is the one that runs."""
    if tensors[0].dim() != max(_RANKS):
        tensors = [x[None] for x in tensors]
    dtype = value_of(found.scores).dtype
    query, key, value = (x.to(dtype) for x in tensors)
    bias = query.new_empty(1, 1, query.shape[2], key.shape[2]) if found.changes else None
    asked = attention.asked(query, key, value, bias)
    if attend is kernel.EFFICIENT:
        if not can_use_efficient_attention(asked):
            raise NotApplicable("the memory-efficient kernel does not take it, or is switched off")
        return
    if not _is_cudnn_first(query.device) or not can_use_cudnn_attention(asked):
        raise NotApplicable("cuDNN's kernel does not take it, or is not the first choice")


def _is_cudnn_first(device: torch.device) -> bool:
    """Whether attention with a mask asks cuDNN's kernel first; FlashAttention takes none."""
    _choose_once(device)
    numbers: Any = SDPBackend  # its stub does not say that they are
    order: list[int] = getattr(torch._C, "_get_sdp_priority_order", list)()  # noqa: SLF001 (there is no other)
    masked = [x for x in order if x != int(numbers.FLASH_ATTENTION)]
    return masked[:1] == [int(numbers.CUDNN_ATTENTION)]


@functools.cache
def _choose_once(device: torch.device) -> None:
    """Have PyTorch choose a kernel: on a Hopper GPU it puts cuDNN first only when it first does."""
    with _disable_current_modes():
        some = torch.empty(1, 1, 1, EIGHTS, device=device, dtype=torch.bfloat16)
        torch._fused_sdp_choice(some, some, some)  # noqa: SLF001 (it says nothing before)


# 2. What takes its place


def _ordered(node: Node, order: Order, place: Node) -> Node:
    return node if order is None else call_before(place, torch.permute, node, order)


def _laid_out(result: Node, place: Node) -> Node:
    """Copy a result into memory that is laid out as a product's, which has no gaps."""
    strides = value_of(place).stride()
    order = sorted(range(len(strides)), key=lambda x: -strides[x])
    back = tuple(order.index(x) for x in range(len(order)))
    is_plain = order == sorted(order)
    dense = result if is_plain else _ordered(result, tuple(order), place)
    copied = call_before(place, torch.clone, dense, memory_format=torch.contiguous_format)
    return copied if is_plain else _ordered(copied, back, place)


def _bias(found: Written, context: PassContext) -> Node | None:
    """Return the sum of all that is added and filled in, as kernels take it; None of nothing.

    Layers that add the same share it.
    """
    changes, dtype = found.changes, value_of(found.scores).dtype
    kind = ("biases", changes, dtype, _fills_in_training(found))
    known = context.kept(kind, list[Node])
    known[:] = [x for x in known if not x._erased]  # noqa: SLF001 (of what was taken back)
    if known and disturbed(known[-1], found.node, found.changed) is None:
        return known[-1]
    place, total, whole = found.node, None, context.whole
    assert whole is not None
    for change in changes:
        if isinstance(change, Fill):
            total = _filled(total, change, place, dtype)
            continue
        one = _thin(whole, change, place)
        if one is not None:
            total = one if total is None else call_before(place, torch.add, total, one)
    if total is None:
        return None
    if (hidden := _hidden(found)) is not None:
        total = call_before(place, torch.masked_fill, total, hidden, 0.0)
    known.append(_understood(total, place))
    return known[-1]


def _thin(whole: GraphModule, change: Node, place: Node) -> Node | None:
    """Return what is added without what is known to say nothing; None where all of it is zero.

    Models add a mask of zeros, or repeat one for each sequence: a sum with it would be as large as
    the scores.
    """
    try:
        value = constant_value(whole, change, most_bytes=mask_kinds.MOST_BYTES)
    except NotConstantError:
        return change
    if not bool(value.any()):
        return None
    if value.dim() != max(_RANKS) or value.shape[0] == 1 or bool((value != value[:1]).any()):
        return change
    return call_before(place, torch.narrow, change, 0, 0, 1)


def _hidden(found: Written) -> Node | None:
    """Return which queries have all their scores filled in; None where that changes no gradient."""
    if not _fills_in_training(found):
        return None
    place = found.node
    first, *rest = (_filled_where(x, place) for x in found.changes if isinstance(x, Fill))
    for other in rest:
        first = call_before(place, torch.logical_or, first, other)
    return call_before(place, torch.all, first, -1, keepdim=True)


def _filled_where(fill: Fill, place: Node) -> Node:
    return fill.where if fill.holds else call_before(place, torch.logical_not, fill.where)


def _filled(total: Node | None, fill: Fill, place: Node, dtype: torch.dtype) -> Node:
    where, number = _filled_where(fill, place), fill.number
    if math.isfinite(number):  # the lowest of float32 is minus infinity in others
        number = max(number, torch.finfo(dtype).min)
    if total is None:
        total = call_before(place, torch.zeros_like, where, dtype=dtype)
        return call_before(place, torch.masked_fill, total, where, number)
    return call_before(place, torch.where, where, number, total)


def _understood(bias: Node, place: Node) -> Node:
    """Return a bias that means the same to a kernel as where it is added to scores."""
    plain = call_before(place, torch.ops.aten.detach.default, bias)
    highest = call_before(place, torch.amax, plain, -1, keepdim=True)
    nan = call_before(place, torch.mul, highest, 0.0)  # of minus infinity; of other numbers, zero
    if torch.finfo(value_of(bias).dtype).min < FINITE:
        hides = call_before(place, torch.isneginf, plain)
        finite = call_before(place, torch.clamp, bias, min=FINITE)
        bias = call_before(place, torch.where, hides, plain, finite)
    return call_before(place, torch.add, bias, nan)
