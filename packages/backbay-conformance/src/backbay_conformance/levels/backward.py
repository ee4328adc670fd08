"""What else backward must get right, beside one gradient: a second one, and recomputation.

A second gradient may be refused, as AOTAutograd does. It may not be wrong, zero, or missing.
"""

import functools
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 (its usual name)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from backbay.proof.tree import leaves
from backbay_conformance.case import Cases, Collection, Failed, NotRunnable
from backbay_conformance.levels import sampled
from backbay_conformance.levels.opinfo import Operator, Sample
from backbay_conformance.subject import REFUSED, Subject, message_of
from backbay_conformance.travelling import travelled

TWICE = frozenset(
    {
        "add",
        "bmm",
        "cos",
        "cumsum",
        "div.no_rounding_mode",
        "exp",
        "linalg.inv",
        "log",
        "logsumexp",
        "matmul",
        "mul",
        "nn.functional.conv2d",
        "nn.functional.gelu",
        "nn.functional.layer_norm",
        "nn.functional.linear",
        "nn.functional.softplus",
        "pow",
        "prod",
        "sigmoid",
        "sin",
        "softmax",
        "sqrt",
        "std",
        "tanh",
        "var",
        "where",
    }
)
"""Operators whose second gradient is asked for: it is not zero, and not the first one again."""
_REFUSALS = (
    "does not currently support double backward",
    # of a backward that another program left in a cache, compiled to be used once
    "compiled with non-empty donated buffers",
)

_checkpointing = Collection("training", "checkpointing")


def cases(device: str) -> Cases:
    """Return these cases."""
    for operator in sampled.known():
        if operator.name in TWICE and operator.trains_twice(device, "float32"):
            yield sampled.case(
                f"training/double-backward/{operator.name}",
                operator,
                functools.partial(Operator.samples, dtype="float32", requires_grad=True),
                second_gradient_is_wrong,
                needs={"float32", "training"},
            )
    yield from _checkpointing


def second_gradient_is_wrong(subject: Subject, sample: Sample) -> None:
    """Ask for the gradient of the gradient's size; it may be refused."""
    wanted = _second(sample.function, sample)
    if all(x is None for x in wanted):
        raise NotRunnable("eager has no second gradient of it")
    got: Any
    try:
        got = _second(subject.compile(sample.function), sample)
    except RuntimeError as error:
        if not any(x in str(error) for x in _REFUSALS):
            raise
        got = REFUSED
    subject.answers.answer(got, functools.partial(_check_second, travelled(wanted)))


def _check_second(wanted: Any, got: Any) -> None:
    if got == REFUSED:
        return
    for number, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        what = f"second gradient of tensor {number}"
        if ours is None and theirs is not None:
            raise Failed("fail_grad", f"{what}: is missing, and nothing was raised")
        if ours is not None and theirs is None:
            raise Failed("fail_grad", f"{what}: is there, and eager has none")
        try:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, equal_nan=True)
        except AssertionError as error:
            raise Failed("fail_grad", f"{what}: {message_of(error)}") from error


def _second(function: Any, sample: Sample) -> list[torch.Tensor | None]:
    named = leaves((sample.args, sample.kwargs), "inputs")
    inputs = [x for _, x in named if isinstance(x, torch.Tensor) and x.requires_grad]
    output = function(*sample.args, **sample.kwargs)
    results = [x for _, x in leaves(output, "output") if isinstance(x, torch.Tensor)]
    total = torch.stack([x.sin().sum() for x in results if x.requires_grad]).sum()
    first = torch.autograd.grad(total, inputs, create_graph=True, allow_unused=True)
    sizes = [x.square().sum() for x in first if x is not None and x.requires_grad]
    if not sizes:  # no gradient has a graph: of a backend, they were cut off
        return [None for _ in inputs]
    return list(torch.autograd.grad(torch.stack(sizes).sum(), inputs, allow_unused=True))


class _Block(torch.nn.Module):
    """Two layers with dropout between, recomputed in backward."""

    def __init__(self, context_fn: Any = None, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 9), torch.nn.Linear(9, 6)
        self.dropout = dropout
        self.further = {} if context_fn is None else {"context_fn": context_fn}

    def _inside(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(torch.tanh(self.first(x)), self.dropout)
        return torch.sigmoid(self.second(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block under a checkpoint."""
        result: torch.Tensor = checkpoint(self._inside, x, use_reentrant=False, **self.further)
        return result * x


class _Nested(torch.nn.Module):
    """A block under a checkpoint of its own, inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.block = _Block()

    def _inside(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.block(x).cos()
        return result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the outer checkpoint."""
        result: torch.Tensor = checkpoint(self._inside, x, use_reentrant=False)
        return result


@_checkpointing.case(needs={"training"})
def recomputed_gradient_is_wrong(subject: Subject) -> None:
    """Activations of a checkpoint are computed again in backward."""
    block = _Block().to(subject.device)
    subject.agrees(block, torch.randn(4, 6, device=subject.device), train=True)


@_checkpointing.case(needs={"training"})
def recomputation_draws_another_dropout(subject: Subject) -> None:
    """The mask of the second computation must be the first one's."""
    x = torch.ones(64, 6, device=subject.device, requires_grad=True)

    def masked(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.5)

    def twice(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(masked, x, use_reentrant=False)
        return result

    result = subject.compile(twice)(x)
    result.sum().backward()
    assert x.grad is not None
    with subject.must("fail_grad", "backward drops other elements than forward"):
        assert torch.equal(x.grad != 0, result != 0)


@_checkpointing.case(needs={"training"})
def selective_checkpoint_is_wrong(subject: Subject) -> None:
    """A policy that keeps matrix products and computes the rest again."""

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:  # noqa: ARG001
        kept = op in {torch.ops.aten.addmm.default, torch.ops.aten.mm.default}
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    block = _Block(contexts).to(subject.device)
    subject.agrees(block, torch.randn(4, 6, device=subject.device), train=True)


@_checkpointing.case(needs={"training"})
def nested_checkpoint_is_wrong(subject: Subject) -> None:
    """A checkpoint inside a checkpoint."""
    subject.agrees(
        _Nested().to(subject.device), torch.randn(4, 6, device=subject.device), train=True
    )
