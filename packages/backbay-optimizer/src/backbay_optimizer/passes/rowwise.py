"""Which part of its inputs an operator of Dynamo's graph needs for a part of its result.

A part is a slice for each dimension. What works element by element, row by row or moves dimensions
about needs no more than the same part; what mixes rows is not known here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverloadPacket
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.effects import is_pure
from backbay.graph.rewrite import bound
from backbay.graph.values import are_numbers, value_of

Part = tuple[slice, ...]
WHOLE = slice(None)


class MixedError(Exception):
    """An operator needs more of an input than a part; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an operator is called with for a part of its result."""

    parts: Mapping[str, Part]
    """Of inputs by name, what is needed of each; of the others, all."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Arguments by name that are other ones."""
    saves: bool = True
    """Whether a compiler would have computed all of it: what is pointwise is only computed where
    it is read."""


Rule = Callable[[dict[str, Any], Part], Needs]
"""Given the arguments by name, and the part."""


@dataclass(frozen=True)
class Operator:
    """A rule, and the names of the arguments."""

    names: tuple[str, ...]
    rule: Rule
    only: Any = None
    """The function that it is of, where that may draw random numbers and the rule sees to it."""


def needs(node: Node, part: Part) -> Needs:
    """Return what a node needs for a part of its result.

    Raises:
        MixedError: more than a part of something, or that is not known.
    """
    operator = _operator(node)
    if operator is None or not (is_pure(node) or node.target is operator.only):
        raise MixedError(f"{_name(node)} is not known to work row by row")
    if any(value_of(x) is None for x in (node, *node.all_input_nodes)):
        raise MixedError(f"{_name(node)} has an input of which nothing is known")
    given = arguments(node, operator)
    if operator is _POINTWISE:  # by a name, which reductions share: max of two, and max of one
        _check_broadcast(value_of(node), given)
    return operator.rule(given, part)


def arguments(node: Node, operator: Operator | None = None) -> dict[str, Any]:
    """Return a node's arguments by name.

    Raises:
        MixedError: there are more than are known.
    """
    operator = operator or _operator(node)
    assert operator is not None
    names = operator.names
    if names[-1].startswith("*"):
        return {names[-1][1:]: node.args[len(names) - 1 :], **bound(node, names[:-1])}
    if len(node.args) > len(names):
        raise MixedError(f"{_name(node)} has more arguments than are known")
    return bound(node, names)


def called(given: dict[str, Any], node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments by name as a node has them: by position as far as its own were."""
    operator = _operator(node)
    assert operator is not None
    given, names = dict(given), operator.names
    if names[-1].startswith("*"):
        rest = given.pop(names[-1][1:])
        first = tuple(given.pop(x) for x in names[:-1] if x in given)
        if operator is _SHAPE and node.op == "call_function":  # only methods take sizes one by one
            return (*first, rest), given
        return (*first, *rest), given
    positional = tuple(given.pop(x) for x in names[: len(node.args)])
    return positional, given


def _name(node: Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    return getattr(node.target, "__name__", str(node.target))


def multiplies(node: Node) -> bool:
    """Return whether a node is a product of matrices."""
    return _operator(node) in {_BY_NAME["linear"], _BY_NAME["matmul"]}


def _operator(node: Node) -> Operator | None:
    if node.op not in {"call_function", "call_method"}:
        return None
    name = _name(node)
    found = _BY_NAME.get(name)
    return found if found is not None else _POINTWISE if _is_pointwise(name) else None


_PYTHONS = {"truediv": "div", "and_": "bitwise_and", "or_": "bitwise_or", "invert": "bitwise_not"}


def _is_pointwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, _PYTHONS.get(name, name), None)
    if not isinstance(packet, OpOverloadPacket):
        return False
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call] # torch has no stub
    return any(torch.Tag.pointwise in getattr(packet, x).tags for x in names)


def _pointwise(given: dict[str, Any], part: Part) -> Needs:
    parts = {}
    for name, value in given.items():
        tensor = value_of(value)
        if isinstance(tensor, torch.Tensor):
            if not isinstance(value, Node):
                raise MixedError("a tensor is no node of the graph")
            parts[name] = _broadcast(tensor, part)
        elif isinstance(value, tuple | list):
            raise MixedError("it takes several tensors at once")
    return Needs(parts=parts, saves=False)


def _check_broadcast(result: Any, given: dict[str, Any]) -> None:
    inputs = [x for x in map(value_of, given.values()) if isinstance(x, torch.Tensor)]
    rank = max((x.dim() for x in inputs), default=0)
    if not isinstance(result, torch.Tensor) or result.dim() != rank:
        raise MixedError("its result has not the dimensions of its inputs")
    for i, size in enumerate(reversed(result.shape)):
        # Sizes as text: comparing symbols would guard on the answer.
        if str(size) not in {str(x.shape[-1 - i]) for x in inputs if x.dim() > i}:
            raise MixedError("its result has not the sizes of its inputs")


def _broadcast(tensor: torch.Tensor, part: Part) -> Part:
    """Return the part of a tensor that is broadcast to a shape, for a part of that shape."""
    if tensor.dim() > len(part):
        raise MixedError("its result has fewer dimensions than an input")
    along = part[len(part) - tensor.dim() :]
    is_one = [isinstance(n, int) and n == 1 for n in tensor.shape]
    return tuple(WHOLE if one else cut for one, cut in zip(is_one, along, strict=True))


def _whole(part: Part, dims: set[int], what: str) -> None:
    rank = len(part)
    if any(part[x] != WHOLE for x in {d % rank for d in dims}):
        raise MixedError(f"{what} goes along a dimension of which a part is taken")


def _linear(given: dict[str, Any], part: Part) -> Needs:
    _whole(part, {-1}, "a matrix product")
    parts, bias = {"input": part}, value_of(given.get("bias"))
    if isinstance(bias, torch.Tensor):
        parts["bias"] = _broadcast(bias, part)
    return Needs(parts=parts)


def _matmul(given: dict[str, Any], part: Part) -> Needs:
    sizes = [value_of(given[x]).dim() for x in ("input", "other")]
    if sizes[1] != 2 or sizes[0] != len(part):  # noqa: PLR2004 (a matrix)
        raise MixedError("a product of several matrices each")
    return _linear(given, part)


def _norm(given: dict[str, Any], part: Part) -> Needs:
    _whole(part, set(range(-len(given["normalized_shape"]), 0)), "a norm")
    return Needs(parts={"input": part})


def _softmax(given: dict[str, Any], part: Part) -> Needs:
    if not isinstance(given.get("dim"), int):
        raise MixedError("a softmax without its dimension")
    _whole(part, {given["dim"]}, "a softmax")
    return Needs(parts={"input": part})


def _reduction(given: dict[str, Any], part: Part) -> Needs:
    dim = given.get("dim")
    dims = {dim} if isinstance(dim, int) else set(dim or ())
    if not dims or given.get("keepdim") is not True:
        raise MixedError("a reduction that moves dimensions")
    over = {d % len(part) for d in dims}
    return Needs(parts={"input": tuple(WHOLE if i in over else x for i, x in enumerate(part))})


def _transpose(given: dict[str, Any], part: Part) -> Needs:
    one, other = (given[x] for x in ("dim0", "dim1"))
    if not isinstance(one, int) or not isinstance(other, int):
        raise MixedError("a transposition of unknown dimensions")
    turned = list(part)
    turned[one], turned[other] = turned[other], turned[one]
    return Needs(parts={"input": tuple(turned)}, saves=False)


def _reshape(given: dict[str, Any], part: Part) -> Needs:
    before = value_of(given["input"]).shape
    sizes = _sizes(given["shape"], before)
    cut = max((i for i, x in enumerate(part) if x != WHOLE), default=-1)
    if len(sizes) != len(part) or not are_numbers(before[: cut + 1]):
        raise MixedError("a reshape of unknown sizes")
    kept = [len(range(n)[x]) for n, x in zip(before, part[: cut + 1], strict=False)]
    if len(before) <= cut or any(
        size != n and not (size == -1 and i > cut)
        for i, (size, n) in enumerate(zip(sizes, before[: cut + 1], strict=False))
    ):
        raise MixedError("a reshape joins dimensions of which a part is taken")
    wanted = (*kept, *sizes[cut + 1 :])
    own = (*part[: cut + 1], *[WHOLE] * (len(before) - cut - 1))
    return Needs(parts={"input": own}, others={"shape": wanted}, saves=False)


def _sizes(shape: Any, before: torch.Size) -> tuple[Any, ...]:
    """Return the sizes that a reshape asks for; -1 is left where others are symbols."""
    only = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    sizes = tuple(only)
    if sizes.count(-1) != 1 or not are_numbers((*sizes, *before)):
        return sizes
    rest = math.prod(x for x in sizes if x != -1)
    return tuple(before.numel() // rest if x == -1 and rest else x for x in sizes)


def _getitem(given: dict[str, Any], part: Part) -> Needs:
    index = given["index"] if isinstance(given["index"], tuple) else (given["index"],)
    if not all(isinstance(x, slice) for x in index):
        raise MixedError("a selection that moves dimensions")
    for taken, own in zip(part, index, strict=False):
        if WHOLE not in (taken, own) and own != slice(0, None):
            raise MixedError("a selection of a selection")
    return Needs(parts={"input": part}, saves=False)


def _dropout(given: dict[str, Any], part: Part) -> Needs:
    if given.get("training", True) is not False:
        raise MixedError("dropout draws for each element")
    return Needs(parts={"input": part}, saves=False)


def _attention(given: dict[str, Any], part: Part) -> Needs:
    _whole(part, {x for x in range(len(part)) if x != len(part) - 2}, "attention")
    if given.get("dropout_p", 0.0) != 0:
        raise MixedError("attention's dropout draws for each pair")
    others = {}
    if given.get("is_causal"):
        queries, keys = (value_of(given[x]).shape[-2] for x in ("query", "key"))
        # The last query looks at every key, where there are as many.
        if part[-2] != slice(-1, None) or str(queries) != str(keys):
            raise MixedError("what a causal query looks at depends on where it stands")
        others["is_causal"] = False
    parts = {"query": part}
    if given.get("attn_mask") is not None:
        mask = value_of(given["attn_mask"])
        parts["attn_mask"] = _broadcast(mask, (*part[:-1], WHOLE))
    return Needs(parts=parts, others=others)


def _unary(given: dict[str, Any], part: Part) -> Needs:
    further = [x for name, x in given.items() if name not in {"input", "given"}]
    if any(isinstance(x, Node) for x in (*given["given"], *further)):
        raise MixedError("a cast to what the graph computes")
    return Needs(parts={"input": part}, saves=False)


_POINTWISE = Operator(("input", "other", "third", "fourth", "fifth"), _pointwise)
_CAST = Operator(("input", "*given"), _unary)
_REDUCTION = Operator(("input", "dim", "keepdim", "dtype"), _reduction)
_SHAPE = Operator(("input", "*shape"), _reshape)
_BY_NAME: Mapping[str, Operator] = {
    "linear": Operator(("input", "weight", "bias"), _linear),
    "matmul": Operator(("input", "other"), _matmul),
    "layer_norm": Operator(("input", "normalized_shape", "weight", "bias", "eps"), _norm),
    "rms_norm": Operator(("input", "normalized_shape", "weight", "eps"), _norm),
    "softmax": Operator(("input", "dim", "_stacklevel", "dtype"), _softmax),
    "scaled_dot_product_attention": Operator(
        ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
        _attention,
        only=F.scaled_dot_product_attention,
    ),
    "dropout": Operator(("input", "p", "training", "inplace"), _dropout, only=F.dropout),
    "transpose": Operator(("input", "dim0", "dim1"), _transpose),
    "getitem": Operator(("input", "index"), _getitem),
    "reshape": _SHAPE,
    "view": _SHAPE,
    **dict.fromkeys(("mean", "sum", "amax"), _REDUCTION),
    **dict.fromkeys(("to", "float", "half", "bfloat16", "double", "contiguous"), _CAST),
}
