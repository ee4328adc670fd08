"""Compute the gradients of LayerNorm and RMSNorm in one kernel, on CUDA.

::

    before:  y = F.layer_norm(x, (n,), weight, bias, 1e-5)
             x + F.linear(y, one) * F.linear(y, other)
    after:   y, again, _, same, *_ = torch.ops.backbay.row_norm(x, weight, bias, 1e-5, 0.0, True)
             same + F.linear(y, one) * F.linear(again, other)

Forward stays PyTorch's operators, which Inductor fuses as ever. Backward is a kernel that reads all
that is large once, where Inductor reads it twice unless there are many more rows than columns. What
Inductor would have added before and behind it (gradients of several readers, and that of a residual
branch) is added in the kernel. Each reader has a copy of its own for that, which Inductor removes.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import effects
from backbay.graph.aliases import Memory, disturbed
from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import call_before
from backbay.graph.values import is_ordinary, storages, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import row_norm as kernel
from backbay_optimizer.passes import norm_forms
from backbay_optimizer.passes.norm_forms import (
    LAYER_NORMS,
    RMS_NORMS,
    ROOTS,
    SUMS,
    Norm,
    is_cast,
    norm_of,
    squared,
)

_VIEWS = ("view", "reshape", "flatten", "contiguous", operator.getitem, torch.flatten)
_PRODUCTS = (
    *(F.linear, torch.addmm, torch.matmul, operator.matmul, torch.mm, torch.bmm, "matmul", "mm"),
    *(torch.conv1d, torch.conv2d, torch.conv3d, F.scaled_dot_product_attention),
)
_SIZES = (getattr, "size", "dim", "numel")
_LIKE = ("type_as", "view_as", "expand_as")
"""Of their second argument, they read dtype or size."""


@dataclass(frozen=True, kw_only=True)
class RowNorms(Rewrite[Norm]):
    """Take the gradients of LayerNorm and RMSNorm in one read, in Triton; for CUDA."""

    summary = "on CUDA, gradients of LayerNorm and RMSNorm read each row once, in training"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it was measured in 16 bits",
    )
    targets = (*LAYER_NORMS, *RMS_NORMS, *ROOTS)
    sources = (kernel, conditions.device_code(kernel), conditions, norm_forms)

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Rewrite norms, then have their readers read copies of their own."""
        count = super().run(graph_module, context)
        if count:
            for call in graph_module.graph.find_nodes(op="call_function", target=_operator()):
                _hand_out(call)
            graph_module.recompile()
        return count

    def site(self, call: Call, context: PassContext) -> Norm | None:  # noqa: ARG002 (of those that ask)
        """Return a norm; None for a square root of something else."""
        return norm_of(call.node)

    def replacement(self, site: Norm, context: PassContext) -> Replacement:
        """Return a call of the operator."""
        graph = site.node.graph
        _check(site, context.kept(("memory", graph), lambda: Memory(graph)))
        for reader in _readers(site.node):
            _check_reader(reader)
        for reader in _readers(site.x):
            if reader not in {site.node, *site.parts, *site.casts}:
                _check_reader(reader)
        how = (site.weight, site.bias, site.eps, site.offset, site.is_centred)
        call = call_before(site.node, _operator(), site.x, *how)
        made = call_before(site.node, operator.getitem, call, 0)
        return Replacement({site.node: made}, [*site.parts, *site.casts, site.node])


row_norms = RowNorms()


def _operator() -> OpOverload[..., Any]:
    assert callable(kernel.row_norm)  # registers it: torch.ops has it only after that
    return torch.ops.backbay.row_norm.default


# 1. Whether it is taken


def _check(norm: Norm, memory: Memory) -> None:
    """Check that the operator gives the same, as fast."""
    given = [norm.x, norm.weight, *([] if norm.bias is None else [norm.bias])]
    if not all(isinstance(y, Node) and is_ordinary(value_of(y)) for y in given):
        raise NotApplicable("it has no weight, or takes what is no ordinary tensor")
    if type(norm.eps) is not float:
        raise NotApplicable("its epsilon is not given")
    _check_values(*(value_of(y) for y in (norm.node, *given)))
    if not all(value_of(y).requires_grad for y in (*norm.parts, *norm.casts, *norm.factors)):
        raise NotApplicable("its gradient is cut off on the way")
    if any(memory.mutated(y) for y in (*given, *norm.casts, *norm.factors, norm.node)):
        raise NotApplicable("something writes what it reads or gives")
    if why := disturbed(norm.first, norm.node, given, inside=norm.parts):
        raise NotApplicable(why)


def _check_values(result: Tensor, x: Tensor, weight: Tensor, *bias: Tensor) -> None:
    vectors = (weight, *bias)
    if not all(y.requires_grad for y in (result, x, *vectors)):
        raise NotApplicable("a gradient is not wanted of all that it takes")
    if result.dtype != x.dtype:
        raise NotApplicable(f"it takes {x.dtype}, and gives {result.dtype}")
    columns = x.shape[-1]
    if type(columns) is not int or any(
        tuple(y.shape) != (columns,) or y.stride() != (1,) for y in vectors
    ):
        raise NotApplicable("its weight is not one number for each column")
    if not _has_no_gaps(x):
        raise NotApplicable("its rows do not lie one behind the other")
    if reason := kernel.pays(x, weight):
        raise NotApplicable(reason)


def _has_no_gaps(x: Tensor) -> bool:
    wanted: list[Any] = [1]
    for n in reversed(x.shape[1:]):
        wanted.insert(0, n * wanted[0])
    # As text: comparing symbols would guard on the answer.
    return str(tuple(wanted)) == str(tuple(x.stride()))


def _readers(node: Node) -> Iterator[Node]:
    """Return what reads a node, with what reads views of it that are all of it in its place."""
    for user in node.users:
        if is_call(user, _SIZES) or (is_call(user, _LIKE) and first_input(user) is not node):
            continue
        is_idle = effects.is_dropout(user) and not effects.drops(user)
        is_like = is_call(user, _VIEWS) or is_idle or _is_idle_cast(user)
        if is_like and _count(user) == _count(node):
            yield from _readers(user)
        else:
            yield user


def _count(node: Node) -> str:
    value = value_of(node)
    # As text: comparing symbols would guard on the answer.
    return str(value.numel()) if isinstance(value, Tensor) else ""


def _is_idle_cast(node: Node) -> bool:
    return is_cast(node) and value_of(node).dtype == value_of(first_input(node)).dtype


def _check_reader(node: Node) -> None:
    """Check that the gradient that comes from a reader is in memory anyway.

    What Inductor computes in its own kernel for a norm's gradient would have to be written first.
    """
    if node.op == "output" or is_call(node, (*_PRODUCTS, *SUMS, *LAYER_NORMS, *RMS_NORMS)):
        return
    if isinstance(node.target, OpOverload) and node.target.namespace == "backbay":
        return
    is_norms = is_cast(node) and any(squared(x) is node for x in node.users)
    if is_norms or squared(node) is not None:  # of another norm that is written out
        return
    raise NotApplicable(f"Inductor computes with it what comes from {node.name}")


# 2. Who reads which copy


def _hand_out(call: Node) -> None:
    """Have readers of a norm and of its input read copies, whose gradients arrive apart."""
    (y,) = [x for x in call.users if x.args[1] == 0]
    for number, reader in enumerate(_apart(y)):
        if number:
            _read_copy(call, reader, y, min(number, kernel.COPIES - 1))
    x: Any = first_input(call)
    for reader in _apart(x):
        if call < reader:
            _read_copy(call, reader, x, kernel.COPIES)


def _apart(node: Node) -> list[Node]:
    """Return readers that give nothing in the same memory, in the order of the graph."""
    own = storages(node)
    if own is None:
        return []
    users = sorted(x for x in node.users if x.op != "output")
    found = [(x, storages(x)) for x in users]
    return [x for x, theirs in found if theirs is not None and own.isdisjoint(theirs)]


def _read_copy(call: Node, reader: Node, old: Node, number: int) -> None:
    known = [x for x in call.users if x.args[1] == number]
    copy = known[0] if known else call_before(call.next, operator.getitem, call, number)
    reader.replace_input_with(old, copy)
