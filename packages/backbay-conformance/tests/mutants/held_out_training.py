"""Set aside: faults that nobody who writes levels looks at, of the kind in ``training``."""

from typing import Any

import torch

from mutants.harness import (
    Backend,
    Plan,
    Run,
    aot,
    dynamo,
    instead_of,
    storage,
)
from mutants.mutant import Compiled, Mutant
from mutants.numerics import aten
from mutants.training import _applied, gradients, on_gradients

_WRITES = (
    aten.select_scatter,
    aten.slice_scatter,
    aten.diagonal_scatter,
    aten.index_add,
    aten.index_copy,
    aten.index_fill,
    aten.index_put,
)


def _in_bfloat16(gradient: torch.Tensor, _position: int) -> torch.Tensor:
    return gradient.to(torch.bfloat16).to(gradient.dtype)


class _Reaches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ctx.others = others
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, *(torch.zeros_like(x) for x in ctx.others)


def _zero_for_none(run: Run, _graph: Any, _inputs: Any) -> Run:
    def call(*args: Any) -> Any:
        outputs = list(run(*args))
        leaves = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
        before = {storage(x) for x in args if isinstance(x, torch.Tensor)}
        for i, x in enumerate(outputs):
            if isinstance(x, torch.Tensor) and x.requires_grad and storage(x) not in before:
                outputs[i] = _applied(_Reaches, x, *leaves)
                break
        return tuple(outputs)

    return call


def _written_through(op: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    right = op(x, *args, **kwargs)
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if size > 1 and stride == 0:
            right = right.select(dim, -1).unsqueeze(dim).expand(right.shape).contiguous()
    return right


def _unreached(compiled: Compiled) -> Any:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    compiled(lambda x, y: x * y.detach())(x, y).sum().backward()
    return x.grad, y.grad is None


FAULTS = [
    Mutant(
        name="gradients_in_bfloat16",
        family="autograd",
        fault="Gradients are rounded to bfloat16.",
        level="contract",
        compiler=Backend(
            "gradients_in_bfloat16",
            aot(
                backward=on_gradients(
                    lambda x, i: _in_bfloat16(x, i) if x.dtype == torch.float32 else x
                )
            ),
        ),
        shown_by=gradients(torch.sin, torch.ones(2)),
    ),
    Mutant(
        name="missing_gradient_is_zero",
        family="autograd",
        fault="An input that backward does not reach gets a gradient of zeros, and eager leaves "
        "it None.",
        level="contract",
        compiler=Backend("missing_gradient_is_zero", dynamo(Plan(around=_zero_for_none))),
        shown_by=_unreached,
    ),
    Mutant(
        name="write_to_expanded_reaches_all",
        family="autograd",
        fault="A write to a part of an expanded tensor goes to the memory that all parts share, "
        "as in the gradient of a sum.",
        level="training",
        link="https://github.com/pytorch/pytorch/issues/182012",
        compiler=Backend(
            "write_to_expanded_reaches_all",
            aot(*[Plan(faults=instead_of(dict.fromkeys(_WRITES, _written_through)))] * 2),
        ),
        shown_by=gradients(lambda x: x.diagonal_scatter(torch.zeros(3)).sum(), torch.ones(3, 3)),
    ),
]
