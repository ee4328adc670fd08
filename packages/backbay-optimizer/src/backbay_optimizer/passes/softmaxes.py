"""Read rows of many columns once in softmax, its logarithm and cross entropy, on CUDA.

::

    before:  F.cross_entropy(logits.float(), targets, ignore_index=-100)
    after:   losses, _, _ = torch.ops.backbay.cross_entropy(logits, targets, 1.0, -100)
             losses.sum() / (targets != -100).sum()

    before:  torch.softmax(logits.float() / 0.7, -1)
    after:   torch.ops.backbay.softmax(logits, 1 / 0.7, torch.float32, False, True)

A cast from 16 bits and a positive factor are taken in: the 16 bits are read. Only where they are in
memory anyway: an input, or the result of a product. What else computes them, such as a soft cap,
Inductor fuses into its own reading of them.

In training, log-softmax is taken in where only one element of each row is gathered: its negative is
a loss. Any other softmax that a gradient is wanted of stays as it is.
"""

import math
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import effects
from backbay.graph.aliases import Memory, disturbed
from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import bound, call_before, cast_before
from backbay.graph.values import is_ordinary, storages, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import softmax as kernel
from backbay_optimizer.passes import convolutions, losses, memory_readers
from backbay_optimizer.passes.losses import LOSSES, MATRIX, loss_of, taken_in
from backbay_optimizer.passes.memory_readers import are_rows, is_read_from_memory, memory_of

_ATEN = torch.ops.aten
_SOFTMAXES = (F.softmax, torch.softmax, torch.special.softmax, "softmax")
_LOGARITHMS = (F.log_softmax, torch.log_softmax, torch.special.log_softmax, "log_softmax")
_GATHERS = (torch.gather, "gather")


@dataclass(kw_only=True)
class _Logits:
    """What softmax is of, as it is in memory."""

    node: Node
    scale: float = 1.0
    passed: list[Node] = field(default_factory=list)
    """Casts, factors and views on the way from there, which are taken in."""


@dataclass(frozen=True, kw_only=True)
class Softmaxes(Rewrite[Call]):
    """Compute softmax, log-softmax and cross entropy of many columns in Triton; for CUDA."""

    summary = "on CUDA, softmax, log-softmax and cross entropy of many columns read a row once"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=conditions.DTYPES,
        dtypes_because="the kernel computes in single precision",
    )
    targets = (*_SOFTMAXES, *_LOGARITHMS, *LOSSES)
    sources = (
        kernel,
        conditions.device_code(kernel),
        conditions,
        convolutions,
        effects,
        losses,
        memory_readers,
    )

    def replacement(self, site: Call, context: PassContext) -> Node | Replacement | None:
        """Return a call of an operator, with the few that make it what torch returns."""
        node = site.node
        memory = context.kept(("memory", node.graph), lambda: Memory(node.graph))
        if node.target in LOSSES:
            return self._loss(node, node, memory)
        if bound(node, ("input", "dim")).get("dim") not in {-1, value_of(node).dim() - 1}:
            raise NotApplicable("it is not over the last dimension")
        if value_of(node).requires_grad:
            return self._gathered(node, memory)
        logits = _logits(node, node)
        _check_dtype(node, logits)
        is_written = is_read_from_memory(node)
        _check(logits, node, node, is_written=is_written)
        assert callable(kernel.softmax)  # registers it: torch.ops has it only after that
        how = (value_of(node).dtype, node.target in _LOGARITHMS, is_written)
        made = call_before(node, torch.ops.backbay.softmax.default, logits.node, logits.scale, *how)
        return Replacement({node: made}, [*logits.passed, node])

    def _gathered(self, node: Node, memory: Memory) -> Replacement:
        """Return losses in the place of what is taken from logarithms in training."""
        user = next(iter(node.users), None)
        if node.target not in _LOGARITHMS or len(node.users) != 1 or user is None:
            raise NotApplicable("a gradient is wanted of all of it")
        if user.target is F.nll_loss and first_input(user) is node:
            return self._loss(user, node, memory)
        if not is_call(user, _GATHERS) or first_input(user) is not node:
            raise NotApplicable("a gradient is wanted of all of it")
        given = bound(user, ("input", "dim", "index"))
        index = given["index"]
        if value_of(node).dim() != MATRIX or given["dim"] not in {-1, 1}:
            raise NotApplicable("what is gathered from it is not of rows of a matrix")
        # Sizes as text: comparing symbols would guard on the answer.
        if str(tuple(value_of(index).shape)) != str((value_of(node).shape[0], 1)):
            raise NotApplicable("what is gathered from it is not an element of each row")
        if value_of(index).dtype != torch.int64:
            raise NotApplicable("its indices are not of 64 bits")
        logits = _logits(node, user)
        _check_dtype(node, logits)
        _check(logits, node, user)
        _check_saved(logits, user, index, memory)
        target = call_before(user, _ATEN.squeeze.dim, index, 1)
        made = call_before(user, _ATEN.neg.default, _losses(user, logits, target, _NONE))
        made = call_before(user, _ATEN.unsqueeze.default, made, 1)
        return _replacing(user, made, [*logits.passed, node])

    def _loss(self, node: Node, reader: Node, memory: Memory) -> Replacement:
        """Return a loss, given what reads the logits: itself, or log-softmax before it."""
        loss = loss_of(node)
        logits = _logits(reader, node)
        if reader is not node:
            _check_dtype(reader, logits)
        _check(logits, reader, node)
        _check_saved(logits, node, loss.target, memory)
        made = _losses(node, logits, loss.target, loss.ignored)
        if loss.reduction != "none":
            made = call_before(node, _ATEN.sum.default, made)
        if loss.reduction == "mean":
            kept = call_before(node, _ATEN.ne.Scalar, loss.target, loss.ignored)
            made = call_before(
                node, _ATEN.div.Tensor, made, call_before(node, _ATEN.sum.default, kept)
            )
        return _replacing(node, made, [*logits.passed, *({reader} - {node})])


softmaxes = Softmaxes()

_NONE = -(2**62)
"""What is left out where no target is: no index is that."""


# 1. What is read


def _logits(node: Node, place: Node) -> _Logits:
    """Return what a softmax or a loss reads, without casts and factors that are taken in."""
    return _behind(first_input(node), place)


def _behind(node: Any, place: Node) -> _Logits:
    if not isinstance(node, Node) or not is_ordinary(value_of(node)):
        raise NotApplicable("it reads what is no ordinary tensor that is known")
    source, factor = taken_in(node)
    if source is not None:
        found = _behind(source, place)
        return _Logits(node=found.node, scale=found.scale * factor, passed=[*found.passed, node])
    before = first_input(node) if node.op.startswith("call") else None
    if not _is_view(node, before):
        return _Logits(node=node)
    found = _behind(before, place)
    if not found.passed:
        return _Logits(node=node)
    # As text: comparing symbols would guard on the answer.
    if str(value_of(found.node).stride()) != str(value_of(before).stride()):
        raise NotApplicable("a view on the way is of what is laid out otherwise than it is read")
    arguments, keywords = torch.fx.map_arg(
        (node.args, node.kwargs), lambda x: found.node if x is before else x
    )
    viewed = call_before(place, node.target, *arguments, **keywords)
    return _Logits(node=viewed, scale=found.scale, passed=[*found.passed, node])


def _is_view(node: Node, of: Any) -> bool:
    """Return whether a node views another whose last dimension it leaves as it is.

    Not as another dtype: what is taken in has elements of another size.
    """
    if not isinstance(of, Node) or not is_ordinary(value_of(of)) or effects.mutates(node):
        return False
    if any(isinstance(x, torch.dtype) for x in (*node.args, *node.kwargs.values())):
        return False
    if not effects.reads_by_index(node):
        return False
    memory, value, before = storages(node), value_of(node), value_of(of)
    if not memory or memory != storages(of) or not value.dim() or not before.dim():
        return False
    return str(value.shape[-1]) == str(before.shape[-1])


# 2. Whether it is taken


def _check_dtype(node: Node, logits: _Logits) -> None:
    source, dtype = value_of(logits.node).dtype, value_of(node).dtype
    if dtype not in {source, torch.float32}:
        raise NotApplicable(f"it rounds {source} to {dtype} first")


def _check(logits: _Logits, node: Node, end: Node, *, is_written: bool = False) -> None:
    """Check that logits are in memory, laid out as the kernel reads them, and worth it.

    Args:
        logits: what would be read.
        node: what reads them in the graph.
        end: where they would be read.
        is_written: whether a softmax of them is written to memory.
    """
    x = value_of(logits.node)
    if not is_ordinary(x) or x.dim() < 1 or type(x.shape[-1]) is not int:
        raise NotApplicable("the number of its columns is a symbol")
    count = math.prod(x.shape[:-1])
    if isinstance(count, torch.SymInt):
        _check_rows(count)
    if not are_rows(x):
        raise NotApplicable("its rows do not lie one behind the other")
    if reason := kernel.pays(x, is_written=is_written):
        raise NotApplicable(reason)
    source = memory_of(logits.node)
    if source is None:
        raise NotApplicable("what computes it is computed with it by Inductor")
    if why := disturbed(min([*logits.passed, node]), end, [source, *_copies(logits)]):
        raise NotApplicable(why)


def _check_saved(logits: _Logits, end: Node, target: Node, memory: Memory) -> None:
    """Check that backward can read what forward read, and holds no more for it.

    Args:
        logits: what would be read, and saved for backward.
        end: where.
        target: what is saved beside them.
        memory: of the graph.
    """
    if not value_of(end).requires_grad:
        return
    source = memory_of(logits.node)
    if any(memory.mutated(x) for x in (source, target) if x is not None):
        raise NotApplicable("something writes what it reads, and backward may read it after that")
    if any(map(memory.returned, _copies(logits))):
        raise NotApplicable("the caller gets what it is of: backward would hold the logits beside")


def _copies(logits: _Logits) -> list[Node]:
    """Return what is taken in and has memory of its own."""
    return [x for x in logits.passed if storages(x) != storages(logits.node)]


def _check_rows(count: torch.SymInt) -> None:
    """Check that the number of rows may be compared, as who launches the kernels does."""
    from torch.fx.experimental.symbolic_shapes import (  # noqa: PLC0415 (sympy takes a second)
        free_unbacked_symbols,
    )
    from torch.utils._sympy.numbers import int_oo  # noqa: PLC0415 (likewise)

    if free_unbacked_symbols(count):
        raise NotApplicable("only a run tells the number of its rows")
    bounds = count.node.shape_env.bound_sympy(count.node.expr)
    if bounds.lower < kernel.FEW_ROWS <= bounds.upper < int_oo:
        raise NotApplicable("a choice by its number of rows would narrow the range declared for it")


# 3. What takes its place


def _replacing(node: Node, made: Node, others: list[Node]) -> Replacement:
    made = cast_before(node, made, value_of(node).dtype)
    if value_of(made).requires_grad != value_of(node).requires_grad:
        raise NotApplicable("its gradient is cut off on the way")
    return Replacement({node: made}, [*others, node])


def _losses(place: Node, logits: _Logits, target: Node, ignored: int) -> Node:
    assert callable(kernel.cross_entropy)  # registers it
    how = (target, logits.scale, ignored)
    call = call_before(place, torch.ops.backbay.cross_entropy.default, logits.node, *how)
    return call_before(place, operator.getitem, call, 0)
