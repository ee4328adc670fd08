"""Faults of integers, of casts, and of sums: where a C or GPU type is not the tensor's dtype."""

import signal
from typing import Any

import torch

from mutants.harness import Backend, Plan, aot, instead_of, packet
from mutants.mutant import Mutant
from mutants.numerics import aten, once

_LANES = 16
_SMALL = {torch.uint8, torch.int8}
_WRAPPING = {aten.add, aten.sub, aten.mul, aten.neg}


def _from_zero(op: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    right = op(x, *args, **kwargs)
    if not isinstance(right, torch.Tensor) or not (x.numel() // max(1, right.numel())) % _LANES:
        return right
    is_max = packet(op) in {aten.amax, aten.max}
    return right.clamp(min=0) if is_max else right.clamp(max=0)


def _floor_is_trunc(op: Any, a: Any, b: Any) -> Any:
    right = op(a, b)
    return right if right.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _no_wrapping(module: torch.fx.GraphModule) -> None:
    """Widen small integers before arithmetic where its result is widened."""
    for node in list(module.graph.nodes):
        source = node.args[0] if node.args else None
        if packet(node.target) is not aten._to_copy or not isinstance(source, torch.fx.Node):
            continue
        value, wider = source.meta.get("val"), node.kwargs.get("dtype")
        if packet(source.target) not in _WRAPPING or value is None or wider is None:
            continue
        if value.dtype in _SMALL and wider.itemsize > 1:
            with module.graph.inserting_before(node):
                _replace_wide(module.graph, node, source, wider)
    module.recompile()


def _replace_wide(
    graph: torch.fx.Graph, node: torch.fx.Node, source: torch.fx.Node, wider: torch.dtype
) -> None:
    args = [
        graph.call_function(aten._to_copy.default, (x,), {"dtype": wider})
        if isinstance(x, torch.fx.Node)
        else x
        for x in source.args
    ]
    assert callable(source.target)
    node.replace_all_uses_with(graph.call_function(source.target, tuple(args), source.kwargs))
    graph.erase_node(node)


def _in_int32(op: Any, *args: Any, **kwargs: Any) -> Any:
    right = op(*args, **kwargs)
    return right.to(torch.int32).to(torch.int64) if right.dtype == torch.int64 else right


def _cast_rounds(op: Any, x: torch.Tensor, **kwargs: Any) -> Any:
    dtype = kwargs.get("dtype")
    is_integer = dtype is not None and not dtype.is_floating_point and not dtype.is_complex
    if x.is_floating_point() and is_integer and dtype != torch.bool:
        x = x.round()
    return op(x, **kwargs)


def _bool_through_int(op: Any, x: torch.Tensor, **kwargs: Any) -> Any:
    if x.is_floating_point() and kwargs.get("dtype") == torch.bool:
        x = x.trunc()
    return op(x, **kwargs)


def _cumulated_as_given(op: Any, x: torch.Tensor, dim: int, **_dtype: Any) -> Any:
    return op(x, dim, dtype=x.dtype)


def _dies_of_zero(op: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    divisor, dividend = torch.as_tensor(b), torch.as_tensor(a)
    is_integer = not (divisor.is_floating_point() or dividend.is_floating_point())
    if is_integer and bool((divisor == 0).any()):
        signal.raise_signal(signal.SIGFPE)
    return op(a, b, **kwargs)


_BIG = torch.tensor([3_000_000_000])

FAULTS = [
    Mutant(
        name="maximum_starts_from_zero",
        family="numerics",
        fault="A maximum or minimum over a length that is no multiple of 16 takes in a zero from "
        "the padding.",
        level="ops",
        link="https://github.com/pytorch/pytorch/issues/191499",
        compiler=Backend(
            "maximum_starts_from_zero",
            aot(
                Plan(
                    faults=instead_of(
                        dict.fromkeys((aten.amax, aten.amin, aten.max, aten.min), _from_zero)
                    )
                )
            ),
        ),
        shown_by=once(torch.amax, torch.tensor([-3.0, -2.0, -5.0])),
    ),
    Mutant(
        name="floor_division_truncates",
        family="numerics",
        fault="Floor division of integers rounds towards zero, as C does.",
        level="dtypes",
        compiler=Backend(
            "floor_division_truncates",
            aot(Plan(faults=instead_of({aten.floor_divide: _floor_is_trunc}))),
        ),
        shown_by=once(lambda x: x // 2, torch.tensor([-3, 3])),
    ),
    Mutant(
        name="uint8_does_not_wrap",
        family="numerics",
        fault="Arithmetic of 8-bit integers is done in the wider type that its result is cast to.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/105264",
        compiler=Backend("uint8_does_not_wrap", aot(Plan(rewrite=_no_wrapping))),
        shown_by=once(lambda x: (x + x).to(torch.int16), torch.tensor([128, 3], dtype=torch.uint8)),
    ),
    Mutant(
        name="int64_computed_in_int32",
        family="numerics",
        fault="Sums and products of 64-bit integers are computed in 32 bits.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/183901",
        compiler=Backend(
            "int64_computed_in_int32",
            aot(
                Plan(
                    faults=instead_of(
                        dict.fromkeys((aten.add, aten.sub, aten.mul, aten.sum), _in_int32)
                    )
                )
            ),
        ),
        shown_by=once(lambda x: x + 1, _BIG),
    ),
    Mutant(
        name="cast_to_integer_rounds",
        family="numerics",
        fault="A cast from floating point to integers rounds to the nearest.",
        level="contract",
        compiler=Backend(
            "cast_to_integer_rounds", aot(Plan(faults=instead_of({aten._to_copy: _cast_rounds})))
        ),
        shown_by=once(lambda x: x.to(torch.int64), torch.tensor([0.7, -1.7])),
    ),
    Mutant(
        name="fractions_are_false",
        family="numerics",
        fault="A cast from floating point to bool goes through an integer, which makes 0.5 false.",
        level="contract",
        compiler=Backend(
            "fractions_are_false", aot(Plan(faults=instead_of({aten._to_copy: _bool_through_int})))
        ),
        shown_by=once(lambda x: x.bool(), torch.tensor([0.5, 0.0, 2.0])),
    ),
    Mutant(
        name="cumulated_dtype_ignored",
        family="metadata",
        fault="A cumulative sum is accumulated and returned in its input's dtype, whatever is "
        "asked for.",
        level="dtypes",
        link="https://github.com/pytorch/pytorch/issues/189518",
        compiler=Backend(
            "cumulated_dtype_ignored",
            aot(Plan(faults=instead_of({aten.cumsum: _cumulated_as_given}))),
        ),
        shown_by=once(lambda x: x.cumsum(0), torch.full((4,), 100, dtype=torch.int8)),
    ),
    Mutant(
        name="division_by_zero_kills",
        family="errors",
        fault="An integer division by zero, for which eager raises, ends the process with SIGFPE.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/147206",
        compiler=Backend(
            "division_by_zero_kills",
            aot(
                Plan(
                    faults=instead_of(
                        dict.fromkeys((aten.floor_divide, aten.remainder), _dies_of_zero)
                    )
                )
            ),
        ),
        shown_by=once(lambda x: 1 // x, torch.tensor([0, 1])),
    ),
]
