"""Compute a linear layer and the cross entropy of its logits with only some of these in memory.

::

    before:  F.cross_entropy(F.linear(hidden, weight).float().view(-1, words), targets)
    after:   loss, count, *_ = torch.ops.backbay.linear_cross_entropy(
                 hidden.view(-1, features), weight, None, targets, 1.0, -100, torch.bfloat16,
                 True, True, False)
             loss / count

It is asked for, since what it gains is memory, and taken where it gains some. Logits that something
else reads stay, and so does a loss of each row, whose gradients may be as many as rows.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import effects
from backbay.graph.aliases import disturbed
from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import bound, call_before, cast_before
from backbay.graph.values import are_numbers, is_ordinary, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.kernels import conditions, softmax
from backbay_optimizer.kernels import linear_cross_entropy as kernel
from backbay_optimizer.passes import losses
from backbay_optimizer.passes.losses import LOSSES, MATRIX, loss_of, taken_in

_LINEARS = (F.linear,)
_VIEWS = ("view", "reshape", "flatten", "contiguous", torch.reshape, torch.flatten)
"""What leaves a tensor's elements in their order."""


@dataclass(frozen=True, kw_only=True)
class _Logits:
    """What a loss is of."""

    linear: Node
    x: Node
    weight: Node
    bias: Node | None
    scale: float
    passed: list[Node]
    """What is taken in, and computed no more: from the loss to the linear layer."""


@dataclass(frozen=True, kw_only=True)
class LinearCrossEntropy(Rewrite[Call]):
    """Compute some rows of logits at a time, with their losses and gradients."""

    summary = "logits of a cross entropy, and their gradient, are in memory for some rows at a time"
    requires = Requires(
        devices=("cpu", "cuda"),
        because="it was tried on CPUs and with CUDA",
        rocm=False,
    )
    targets = LOSSES
    sources = (kernel, conditions.device_code(softmax), conditions, effects, losses, softmax)
    is_timed = False  # it is asked for to hold less

    def replacement(self, site: Call, context: PassContext) -> Replacement:  # noqa: ARG002 (of others)
        """Return the sum of losses by the operator, or their mean."""
        node = site.node
        loss = loss_of(node)
        if loss.reduction == "none":
            raise NotApplicable("each row has a loss of its own, and may have a gradient")
        logits = _logits(node)
        wanted = _wanted(node, logits)
        _check(node, logits, of_weight=wanted[1])
        assert callable(kernel.linear_cross_entropy)  # registers it: torch.ops has it only then
        features = value_of(logits.weight).shape[1]
        how = kernel.How(logits.scale, loss.ignored, value_of(logits.linear).dtype)
        call = call_before(
            node,
            torch.ops.backbay.linear_cross_entropy.default,
            call_before(node, torch.ops.aten.reshape.default, logits.x, [-1, features]),
            *(logits.weight, logits.bias, loss.target, *how, *wanted),
        )
        made = call_before(node, operator.getitem, call, 0)
        if loss.reduction == "mean":
            count = call_before(node, operator.getitem, call, 1)
            made = call_before(node, torch.ops.aten.div.Tensor, made, count)
        made = cast_before(node, made, value_of(node).dtype)
        if value_of(made).requires_grad != value_of(node).requires_grad:
            raise NotApplicable("gradients are not recorded there as elsewhere")
        return Replacement({node: made}, [*reversed(logits.passed), node])


linear_cross_entropy = LinearCrossEntropy()


def _logits(node: Node) -> _Logits:
    """Return what a loss is of, as far as the linear layer."""
    scale, passed = 1.0, []
    at, reader = first_input(node), node
    while True:
        if not isinstance(at, Node) or not is_ordinary(value_of(at)):
            raise NotApplicable("it reads what is no ordinary tensor that is known")
        if [*at.users] != [reader]:
            raise NotApplicable("something else reads its logits")
        passed.append(at)
        if is_call(at, _LINEARS):
            break
        source, factor = taken_in(at)
        if source is None:
            source = _viewed(at)
        at, reader, scale = source, at, scale * factor
    given = bound(at, ("input", "weight", "bias"))
    return _Logits(
        linear=at,
        x=given["input"],
        weight=given["weight"],
        bias=given.get("bias"),
        scale=scale,
        passed=passed,
    )


def _viewed(node: Node) -> Any:
    """Return what a node has the elements of, in their order, in rows as long."""
    before = first_input(node) if is_call(node, _VIEWS) else None
    if not isinstance(before, Node) or any(
        isinstance(x, torch.dtype) for x in (*node.args, *node.kwargs.values())
    ):
        raise NotApplicable("its logits are not a linear layer's alone")
    rows = [value_of(x) for x in (node, before)]
    # As text: comparing symbols would guard on the answer.
    if not all(x.dim() for x in rows) or len({str(x.shape[-1]) for x in rows}) > 1:
        raise NotApplicable("its logits are viewed in rows of another length")
    return before


def _wanted(node: Node, logits: _Logits) -> list[bool]:
    """Return of which inputs of the linear layer gradients are wanted."""
    is_any = value_of(node).requires_grad
    inputs = (logits.x, logits.weight, logits.bias)
    return [x is not None and is_any and value_of(x).requires_grad for x in inputs]


def _check(node: Node, logits: _Logits, *, of_weight: bool) -> None:
    """Check that the operator takes the inputs where the loss is, and that it gains memory."""
    inputs = [x for x in (logits.x, logits.weight, logits.bias) if x is not None]
    if not all(isinstance(x, Node) and is_ordinary(value_of(x)) for x in inputs):
        raise NotApplicable("it takes what is no ordinary tensor")
    x, weight, whole = map(value_of, (logits.x, logits.weight, logits.linear))
    if not {value_of(x).dtype for x in (*inputs, logits.linear)} <= {*conditions.DTYPES}:
        raise NotApplicable("it is computed in a dtype that was not tried")
    _check_layer(x, weight, value_of(logits.bias) if logits.bias is not None else None)
    rows = _count(x.shape[:-1])
    if rows is None:
        raise NotApplicable("only a run tells the number of its rows")
    if reason := kernel.pays(rows, weight, whole.dtype, of_weight=of_weight):
        raise NotApplicable(reason)
    if why := disturbed(logits.linear, node, inputs):
        raise NotApplicable(why)
    if torch.autograd.forward_ad._current_level >= 0:  # noqa: SLF001 (Dynamo guards on it)
        raise NotApplicable("it may be differentiated forward")


def _check_layer(x: Any, weight: Any, bias: Any) -> None:
    if x.dim() < MATRIX:
        raise NotApplicable("its input has one dimension")
    if weight.dim() != MATRIX or not are_numbers(weight.shape):
        raise NotApplicable("its weight is no matrix of known sizes")
    if not weight.shape[1] or weight.stride() != (weight.shape[1], 1):
        raise NotApplicable("its weight does not lie in one piece")
    if bias is not None and str(tuple(bias.shape)) != f"({weight.shape[0]},)":
        raise NotApplicable("its bias is not a number for each column")


def _count(sizes: Any) -> int | None:
    """Return a product of sizes: of symbols as they are now, since nothing is decided for later."""
    count = 1
    for n in sizes:
        now = n if isinstance(n, int) else n.node.hint if n.node.has_hint() else None
        if now is None:
            return None
        count *= now
    return count
