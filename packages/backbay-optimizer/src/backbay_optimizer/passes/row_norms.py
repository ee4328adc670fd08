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

An RMSNorm may be written out, as transformers' models do: in single precision, with a weight, or
one plus a weight, before or after the cast back.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import effects
from backbay.graph.aliases import Memory, disturbed
from backbay.graph.match import first_input, is_call
from backbay.graph.region import between
from backbay.graph.rewrite import bound, call_before
from backbay.graph.values import is_ordinary, storages, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import row_norm as kernel

_LAYER_NORMS = (F.layer_norm, torch.layer_norm)
_RMS_NORMS = (F.rms_norm, torch.rms_norm)
_ROOTS = (torch.rsqrt, "rsqrt")
_SUMS = (operator.add, torch.add, "add")
_FACTORS = (operator.mul, torch.mul, torch.multiply, "mul", "multiply")
_POWERS = (operator.pow, torch.pow, "pow")
_SQUARES = (torch.square, "square")
_MEANS = (torch.mean, "mean")
_CASTS = ("to", "float", "type", "type_as", "half", "bfloat16")
_VIEWS = ("view", "reshape", "flatten", "contiguous", operator.getitem, torch.flatten)
_PRODUCTS = (
    *(F.linear, torch.addmm, torch.matmul, operator.matmul, torch.mm, torch.bmm, "matmul", "mm"),
    *(torch.conv1d, torch.conv2d, torch.conv3d, F.scaled_dot_product_attention),
)
_SIZES = (getattr, "size", "dim", "numel")
_LIKE = ("type_as", "view_as", "expand_as")
"""Of their second argument, they read dtype or size."""
_PAIR = 2


@dataclass(kw_only=True)
class _Norm:
    """A norm of rows."""

    node: Node
    """What it gives."""
    first: Node
    """Its first part."""
    x: Any
    weight: Any
    bias: Any = None
    eps: Any
    offset: float = 0.0
    is_centred: bool = False
    parts: list[Node] = field(default_factory=list)
    """Of one that is written out, what is read by no other."""
    casts: list[Node] = field(default_factory=list)
    """Of ``x`` to single precision: others may read them."""
    factors: list[Node] = field(default_factory=list)
    """What is made of the weight: others may read it."""


@dataclass(frozen=True, kw_only=True)
class RowNorms(Rewrite[_Norm]):
    """Take the gradients of LayerNorm and RMSNorm in one read, in Triton; for CUDA."""

    summary = "on CUDA, gradients of LayerNorm and RMSNorm read each row once, in training"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it was measured in 16 bits",
    )
    targets = (*_LAYER_NORMS, *_RMS_NORMS, *_ROOTS)
    sources = (kernel, conditions.device_code(kernel), conditions)

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Rewrite norms, then have their readers read copies of their own."""
        count = super().run(graph_module, context)
        if count:
            for call in graph_module.graph.find_nodes(op="call_function", target=_operator()):
                _hand_out(call)
            graph_module.recompile()
        return count

    def site(self, call: Call, context: PassContext) -> _Norm | None:  # noqa: ARG002 (of those that ask)
        """Return a norm; None for a square root of something else."""
        node = call.node
        if is_call(node, _ROOTS):
            return _written_out(node)
        is_centred = is_call(node, _LAYER_NORMS)
        names = ("input", "normalized_shape", "weight", *(["bias"] if is_centred else []), "eps")
        given = {"eps": 1e-5 if is_centred else None, **bound(node, names)}
        if len(given["normalized_shape"]) != 1:
            raise NotApplicable("it is of more than one dimension")
        return _Norm(
            node=node,
            first=node,
            x=given["input"],
            weight=given.get("weight"),
            bias=given.get("bias"),
            eps=given["eps"],
            is_centred=is_centred,
        )

    def replacement(self, site: _Norm, context: PassContext) -> Replacement:
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


# 1. Norms that are written out


def _written_out(root: Node) -> _Norm | None:
    """Return the RMSNorm that a reciprocal square root is of, or None."""
    total = first_input(root)
    mean, eps = _operands(total, _SUMS)
    if isinstance(eps, Node):
        mean, eps = eps, mean
    if not is_call(mean, _MEANS) or type(eps) is not float:
        return None
    given = bound(mean, ("input", "dim", "keepdim", "dtype"))
    last = value_of(mean).dim() - 1
    dims = given["dim"] if isinstance(given.get("dim"), list | tuple) else [given.get("dim")]
    if list(dims) not in ([-1], [last]) or given.get("keepdim") is not True:
        return None
    square = given["input"]
    wide = _squared(square)
    normal = next(iter(root.users), None)
    if wide is None or not is_call(normal, _FACTORS):
        return None
    assert normal is not None
    x = _without_cast(wide)
    one, other = _operands(normal, _FACTORS)
    source = other if one is root else one
    if _without_cast(source) is not x:
        return None
    casts = [*dict.fromkeys(y for y in (wide, source) if y is not x)]
    parts = [square, mean, total, root, normal]
    if value_of(normal).dtype != torch.float32 or any(
        value_of(y).dtype != torch.float32 for y in parts
    ):
        raise NotApplicable("it is not computed in single precision")
    norm = _Norm(
        node=normal,
        first=min([*casts, *parts]),
        x=x,
        weight=None,
        eps=eps,
        parts=parts,
        casts=casts,
    )
    _scaled(norm)
    for part in norm.parts:
        if any(y not in norm.parts and y is not norm.node for y in part.users):
            raise NotApplicable("something else reads a part of it")
    return norm


def _scaled(norm: _Norm) -> None:
    """Go on behind what is normalised, to its product with a weight, and to the cast back."""
    dtype = value_of(norm.x).dtype
    while True:
        reader = next(iter(norm.node.users), None)
        if reader is None or len(norm.node.users) != 1:
            break
        if _is_cast(reader) and first_input(reader) is norm.node:
            if value_of(reader).dtype not in {dtype, torch.float32}:
                break
        elif norm.weight is None and is_call(reader, _FACTORS):
            one, other = _operands(reader, _FACTORS)
            factor = other if one is norm.node else one
            norm.weight, norm.offset = _weight_of(factor)
            if isinstance(factor, Node) and factor is not norm.weight:
                norm.factors = between(factor, [norm.weight])
        else:
            break
        norm.parts.append(reader)
        norm.node = reader
    if norm.weight is None:
        raise NotApplicable("it has no weight")
    norm.parts.remove(norm.node)


def _weight_of(node: Any) -> tuple[Any, float]:
    """Return what a factor is of, without casts to single precision, and the number added."""
    bare = _without_cast(node)
    one, other = _operands(bare, _SUMS)
    if isinstance(other, Node) and not isinstance(one, Node):
        one, other = other, one
    if isinstance(one, Node) and type(other) in {int, float}:
        return _without_cast(one), float(other)
    return bare, 0.0


def _operands(node: Any, targets: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return both operands of a call of one of some functions; None twice where it is none."""
    if not is_call(node, targets) or node.kwargs or len(node.args) != _PAIR:
        return None, None
    return node.args[0], node.args[1]


def _squared(node: Any) -> Node | None:
    """Return what a node is the square of."""
    if is_call(node, _SQUARES):
        found = first_input(node)
    elif is_call(node, _POWERS):
        found, exponent = _operands(node, _POWERS)
        found = found if exponent == _PAIR else None
    else:
        found, other = _operands(node, _FACTORS)
        found = found if found is other else None
    return found if isinstance(found, Node) else None


def _without_cast(node: Any) -> Any:
    """Return what a cast to single precision is of, or what is no such cast."""
    if not _is_cast(node) or value_of(node).dtype != torch.float32:
        return node
    return first_input(node)


def _is_cast(node: Any) -> bool:
    """Whether a node gives the same numbers in another floating-point dtype, or in its own."""
    if not is_call(node, _CASTS):
        return False
    one, other = value_of(node), value_of(first_input(node))
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return one.is_floating_point() and other.is_floating_point() and one.device == other.device


# 2. Whether it is taken


def _check(norm: _Norm, memory: Memory) -> None:
    """Check that the operator gives the same, as fast."""
    given = [norm.x, norm.weight, *([] if norm.bias is None else [norm.bias])]
    if not all(isinstance(y, Node) and is_ordinary(value_of(y)) for y in given):
        raise NotApplicable("it has no weight, or takes what is no ordinary tensor")
    if type(norm.eps) is not float:
        raise NotApplicable("its epsilon is not given")
    _check_values(*(value_of(y) for y in (norm.node, *given)))
    if not all(value_of(y).requires_grad for y in (*norm.parts, *norm.casts, *norm.factors)):
        raise NotApplicable("its gradient is cut off on the way")
    if any(memory.mutated(y) for y in (*given, *norm.casts, norm.node)):
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
    return _is_cast(node) and value_of(node).dtype == value_of(first_input(node)).dtype


def _check_reader(node: Node) -> None:
    """Check that the gradient that comes from a reader is in memory anyway.

    What Inductor computes in its own kernel for a norm's gradient would have to be written first.
    """
    if node.op == "output" or is_call(node, (*_PRODUCTS, *_SUMS, *_LAYER_NORMS, *_RMS_NORMS)):
        return
    if isinstance(node.target, OpOverload) and node.target.namespace == "backbay":
        return
    is_norms = _is_cast(node) and any(_squared(x) is node for x in node.users)
    if is_norms or _squared(node) is not None:  # of another norm that is written out
        return
    raise NotApplicable(f"Inductor computes with it what comes from {node.name}")


# 3. Who reads which copy


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
