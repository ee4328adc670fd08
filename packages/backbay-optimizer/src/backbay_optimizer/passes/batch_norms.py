"""Reduce batch norms of training in kernels of ours, where channels are last, on CUDA.

::

    before:  F.relu(F.batch_norm(x, mean, variance, weight, bias, True, 0.1, 1e-5))
    after:   y, m, v, _ = torch.ops.backbay.batch_norm(x, weight, bias, 1e-5, "relu")
             mean.copy_(0.1 * m + 0.9 * mean)
             variance.copy_(0.1 * n / (n - 1) * v + 0.9 * variance)

Inductor reduces channels by Welford's algorithm, at two thirds of the bandwidth of memory, and its
backward reads the activation's result beside what is normalised, of which it could be computed.
What is pointwise stays Inductor's, which fuses it with its neighbours: the operator's own code is
PyTorch's operators there. An activation is taken along where nothing else reads the batch norm,
and gradients are recorded of both or of neither.

Running statistics become what ``F.batch_norm`` makes of them. Left alone are channels first, sizes
that are symbols, batch norms without gradients, weights or biases, and tensors that are small.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.aliases import Memory, disturbed
from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import call_before
from backbay.graph.values import are_numbers, is_ordinary, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.kernels import batch_norm as kernel
from backbay_optimizer.kernels import conditions, images

_IMAGE = 4
_ACTIVATIONS: Mapping[Any, str] = {
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, "relu", "relu_"), "relu"),
    F.silu: "silu",
    F.hardswish: "hardswish",
}


@dataclass(frozen=True, kw_only=True)
class _Site:
    """A batch norm, and the activation that alone reads it."""

    node: Node
    """The activation; the batch norm itself where none is taken along."""
    norm: Node
    activation: str
    x: Node
    running: Sequence[Node]
    """Mean and variance, or none."""
    weight: Node
    bias: Node
    momentum: float
    eps: float


@dataclass(frozen=True, kw_only=True)
class BatchNorms(Rewrite[_Site]):
    """Take statistics of batch norms, and the sums of their gradients, in Triton."""

    summary = "on CUDA, batch norms of training with channels last are reduced in two kernels"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it was measured in 16 bits",
    )
    targets = (F.batch_norm,)
    parameters = (
        *("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    )
    sources = (kernel, conditions.device_code(kernel), conditions, images)

    def site(self, call: Call, context: PassContext) -> _Site | None:  # noqa: ARG002 (of those that ask)
        """Return the batch norm if it takes its own statistics."""
        given = {"training": False, "momentum": 0.1, "eps": 1e-5, **call.given}
        if given["training"] is not True:
            return None
        running = [x for x in map(given.get, ("running_mean", "running_var")) if x is not None]
        weight, bias = given.get("weight"), given.get("bias")
        if not isinstance(weight, Node) or not isinstance(bias, Node):
            raise NotApplicable("it has no weight or no bias")
        if not isinstance(given["momentum"], float) or not isinstance(given["eps"], float):
            raise NotApplicable("its momentum or epsilon is computed")
        if len(running) == 1:
            raise NotApplicable("of running mean and variance it has one")
        node, activation = _activated(call.node)
        return _Site(
            node=node,
            norm=call.node,
            activation=activation,
            x=given["input"],
            running=running,
            weight=weight,
            bias=bias,
            momentum=given["momentum"],
            eps=given["eps"],
        )

    def replacement(self, site: _Site, context: PassContext) -> Replacement:
        """Return calls of the operator, and of what updates running statistics."""
        x, result = value_of(site.x), value_of(site.node)
        if not result.requires_grad:
            raise NotApplicable("no gradient is wanted")
        if not all(is_ordinary(value_of(y)) for y in (site.x, site.weight, site.bias)):
            raise NotApplicable("it takes what is not an ordinary tensor")
        if x.dtype != result.dtype:
            raise NotApplicable(f"it takes {x.dtype}, and gives {result.dtype}")
        if x.dim() != _IMAGE or not are_numbers(x.shape):
            raise NotApplicable("it is no batch of images, or its size is a symbol")
        if not x.is_contiguous(memory_format=torch.channels_last):
            raise NotApplicable("its channels are not last")
        if reason := kernel.pays(x):
            raise NotApplicable(reason)
        graph = site.norm.graph
        if context.kept(("memory", graph), lambda: Memory(graph)).mutated(site.bias):
            raise NotApplicable("something writes its bias, which backward reads")
        assert callable(kernel.batch_norm)  # registers it: torch.ops has it only after that
        given = (site.x, site.weight, site.bias, site.eps, site.activation)
        call = call_before(site.norm, torch.ops.backbay.batch_norm.default, *given)
        count = x.numel() // x.shape[1]
        for number, running in enumerate(site.running, 1):
            new = call_before(site.norm, operator.getitem, call, number)
            _update(site, running, new, 1.0 if number == 1 else count / (count - 1))
        y = call_before(site.norm, operator.getitem, call, 0)
        return Replacement({site.node: y}, [*dict.fromkeys((site.norm, site.node))])


batch_norms = BatchNorms()


def _activated(norm: Node) -> tuple[Node, str]:
    """Return the activation that alone reads a batch norm and its name, or the batch norm."""
    reader = next(iter(norm.users), norm)
    if len(norm.users) > 1 or not is_call(reader, _ACTIVATIONS) or first_input(reader) is not norm:
        return norm, "none"
    if disturbed(norm, reader, ()):  # in place and without gradients, the norm's gradient is whole
        return norm, "none"
    return reader, _ACTIVATIONS[reader.target]


def _update(site: _Site, running: Node, new: Node, factor: float) -> None:
    """Move a running statistic towards that of a batch: in single precision, rounded once."""
    part = call_before(site.norm, torch.mul, new, site.momentum * factor)
    total = call_before(site.norm, torch.add, part, running, alpha=1 - site.momentum)
    call_before(site.norm, "copy_", running, total)
