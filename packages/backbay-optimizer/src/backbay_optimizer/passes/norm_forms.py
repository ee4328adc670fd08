"""LayerNorm and RMSNorm of the last dimension, as graphs of Dynamo's have them.

An RMSNorm may be written out, as transformers' models do: in single precision, with a weight, or
one plus a weight, before or after the cast back.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.match import first_input, is_call
from backbay.graph.region import between
from backbay.graph.rewrite import bound
from backbay.graph.values import value_of
from backbay.kit.passes import NotApplicable

LAYER_NORMS = (F.layer_norm, torch.layer_norm)
RMS_NORMS = (F.rms_norm, torch.rms_norm)
ROOTS = (torch.rsqrt, "rsqrt")
SUMS = (operator.add, torch.add, "add")
FACTORS = (operator.mul, torch.mul, torch.multiply, "mul", "multiply")
_POWERS = (operator.pow, torch.pow, "pow")
_SQUARES = (torch.square, "square")
_MEANS = (torch.mean, "mean")
_CASTS = ("to", "float", "double", "type", "type_as", "half", "bfloat16")
_PAIR = 2


@dataclass(kw_only=True)
class Norm:
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


def norm_of(node: Node) -> Norm | None:
    """Return the norm that is called, or that a reciprocal square root is of; None of another.

    Raises:
        NotApplicable: it is a norm of another kind.
    """
    if is_call(node, ROOTS):
        return _written_out(node)
    is_centred = is_call(node, LAYER_NORMS)
    names = ("input", "normalized_shape", "weight", *(["bias"] if is_centred else []), "eps")
    given = {"eps": 1e-5 if is_centred else None, **bound(node, names)}
    dims = given.get("normalized_shape", ())
    if not isinstance(dims, Sequence) or len(dims) != 1:  # a node, where its size is a symbol
        raise NotApplicable("it is not of one dimension, whose size is a number")
    return Norm(
        node=node,
        first=node,
        x=first_input(node),
        weight=given.get("weight"),
        bias=given.get("bias"),
        eps=given["eps"],
        is_centred=is_centred,
    )


def _written_out(root: Node) -> Norm | None:
    total = first_input(root)
    mean, eps = operands(total, SUMS)
    if not is_call(mean, _MEANS):
        mean, eps = eps, mean
    if not is_call(mean, _MEANS):
        return None
    given = bound(mean, ("input", "dim", "keepdim", "dtype"))
    last = value_of(mean).dim() - 1
    dims = given["dim"] if isinstance(given.get("dim"), list | tuple) else [given.get("dim")]
    if list(dims) not in ([-1], [last]) or given.get("keepdim") is not True:
        return None
    square = first_input(mean)
    wide = squared(square)
    normal = next(iter(root.users), None)
    if wide is None or not is_call(normal, FACTORS):
        return None
    assert normal is not None
    x = without_cast(wide)
    one, other = operands(normal, FACTORS)
    source = other if one is root else one
    if without_cast(source) is not x:
        return None
    if type(eps) is not float:
        raise NotApplicable("its epsilon is no number, as with dynamic=True")
    casts = [*dict.fromkeys(y for y in (wide, source) if y is not x)]
    parts = [square, mean, total, root, normal]
    if value_of(normal).dtype != torch.float32 or any(
        value_of(y).dtype != torch.float32 for y in parts
    ):
        raise NotApplicable("it is not computed in single precision")
    norm = Norm(
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


def _scaled(norm: Norm) -> None:
    """Go on behind what is normalised, to its product with a weight, and to the cast back."""
    dtype = value_of(norm.x).dtype
    while True:
        reader = next(iter(norm.node.users), None)
        if reader is None or len(norm.node.users) != 1:
            break
        if is_cast(reader) and first_input(reader) is norm.node:
            if value_of(reader).dtype not in {dtype, torch.float32}:
                break
        elif norm.weight is None and is_call(reader, FACTORS):
            one, other = operands(reader, FACTORS)
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
    bare = without_cast(node)
    one, other = operands(bare, SUMS)
    if isinstance(other, Node) and not isinstance(one, Node):
        one, other = other, one
    if isinstance(one, Node) and type(other) in {int, float}:
        return without_cast(one), float(other)
    return bare, 0.0


def operands(node: Any, targets: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return both operands of a call of one of some functions; None twice where it is none."""
    if not is_call(node, targets) or node.kwargs or len(node.args) != _PAIR:
        return None, None
    return node.args[0], node.args[1]


def squared(node: Any) -> Node | None:
    """Return what a node is the square of."""
    if is_call(node, _SQUARES):
        found = first_input(node)
    elif is_call(node, _POWERS):
        found, exponent = operands(node, _POWERS)
        found = found if exponent == _PAIR else None
    else:
        found, other = operands(node, FACTORS)
        found = found if found is other else None
    return found if isinstance(found, Node) else None


def without_cast(node: Any) -> Any:
    """Return what a cast to single precision is of, or what is no such cast."""
    if not is_cast(node) or value_of(node).dtype != torch.float32:
        return node
    return first_input(node)


def is_cast(node: Any) -> bool:
    """Whether a node gives the same numbers in another floating-point dtype, or in its own."""
    if not is_call(node, _CASTS):
        return False
    one, other = value_of(node), value_of(first_input(node))
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return one.is_floating_point() and other.is_floating_point() and one.device == other.device
