"""Faults of what kind of tensor comes back: its dtype, its shape, its layout in memory."""

from typing import Any

import torch

from mutants.harness import (
    Backend,
    Plan,
    aot,
    dynamo,
    is_pointwise,
    on_outputs,
    packet,
)
from mutants.mutant import Compiled, Mutant
from mutants.numerics import MATMULS, aten, once

_COMPUTES = {*MATMULS, aten.sum, aten.mean}


def _computed_in_single(op: Any, *args: Any, **kwargs: Any) -> Any:
    doubles = [x for x in args if isinstance(x, torch.Tensor) and x.dtype == torch.float64]
    if not doubles:
        return op(*args, **kwargs)
    single = [
        x.float() if isinstance(x, torch.Tensor) and x.dtype == torch.float64 else x for x in args
    ]
    right = op(*single, **kwargs)
    return right.double() if right.dtype == torch.float32 else right


def _cast(wrong: torch.dtype, right: torch.dtype) -> Any:
    return on_outputs(lambda x: x.to(wrong) if x.dtype == right else x)


def _column_major(run: Any, _graph: Any, _inputs: Any) -> Any:
    def call(*args: Any) -> Any:
        return tuple(
            x.mT.contiguous().mT if isinstance(x, torch.Tensor) and x.dim() > 1 else x
            for x in run(*args)
        )

    return call


def _inner(value: torch.Tensor) -> torch.Tensor:
    if not hasattr(value, "__tensor_flatten__"):
        return value
    names, _ = value.__tensor_flatten__()
    inner: torch.Tensor = getattr(value, names[0])
    return inner


def _last_digits(compiled: Compiled) -> Any:
    x = torch.ones(3, dtype=torch.float64)
    return (compiled(torch.sin)(x) - x.sin()).abs() < torch.finfo(torch.float64).eps * 4


def _two_tensors(compiled: Compiled) -> Any:
    from torch.testing._internal import two_tensor

    make: Any = two_tensor.TwoTensor
    return type(compiled(torch.sin)(make(torch.ones(2), torch.ones(2)))).__name__


FAULTS = [
    Mutant(
        name="results_made_contiguous",
        family="metadata",
        fault="Every result is laid out in rows, however eager lays it out.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/183771",
        compiler=Backend(
            "results_made_contiguous",
            dynamo(Plan(around=on_outputs(lambda x: x.contiguous()))),
        ),
        shown_by=once(torch.sin, torch.ones(3, 2).t()),
    ),
    Mutant(
        name="int64_becomes_int32",
        family="metadata",
        fault="A result of 64-bit integers comes back in 32 bits.",
        level="contract",
        compiler=Backend(
            "int64_becomes_int32", dynamo(Plan(around=_cast(torch.int32, torch.int64)))
        ),
        shown_by=once(torch.argmax, torch.ones(3)),
    ),
    Mutant(
        name="bool_becomes_uint8",
        family="metadata",
        fault="A result of booleans comes back as bytes.",
        level="contract",
        compiler=Backend("bool_becomes_uint8", dynamo(Plan(around=_cast(torch.uint8, torch.bool)))),
        shown_by=once(torch.isnan, torch.ones(3)),
    ),
    Mutant(
        name="float64_computed_in_float32",
        family="metadata",
        fault="Float64 is computed in float32, and the result is cast back.",
        level="contract",
        compiler=Backend(
            "float64_computed_in_float32",
            aot(
                Plan(
                    faults=lambda: (
                        lambda target: (
                            _computed_in_single
                            if is_pointwise(target) or packet(target) in _COMPUTES
                            else None
                        )
                    )
                )
            ),
        ),
        shown_by=_last_digits,
    ),
    Mutant(
        name="gradients_in_columns",
        family="metadata",
        fault="Gradients of matrices are laid out in columns.",
        level="training",
        equivalent="Autograd promises no layout of a gradient: where it accumulates into .grad it "
        "lays it out as the parameter is, and the numbers are right.",
        compiler=Backend("gradients_in_columns", aot(backward=Plan(around=_column_major))),
        shown_by=None,
    ),
    Mutant(
        name="subclass_becomes_plain",
        family="context",
        fault="A result that is a tensor subclass comes back as the plain tensor inside it.",
        level="context",
        compiler=Backend("subclass_becomes_plain", dynamo(Plan(around=on_outputs(_inner)))),
        shown_by=_two_tensors,
    ),
]
