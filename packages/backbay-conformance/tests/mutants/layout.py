"""Faults of layout and shape: inputs are not laid out, not as large, or not there as assumed."""

from typing import Any

import torch

from mutants.harness import (
    Backend,
    Compile,
    Plan,
    Run,
    aot,
    dynamo,
    instead_of,
    on_inputs,
)
from mutants.mutant import Compiled, Mutant
from mutants.numerics import aten, once


def _from_the_start(x: torch.Tensor) -> torch.Tensor:
    if type(x) is not torch.Tensor or x.layout != torch.strided or not x.storage_offset():
        return x
    return x.as_strided(x.shape, x.stride(), 0)


def _in_memory_order(op: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    whole = not args or args[0] is None
    dense = torch.ops.aten.is_non_overlapping_and_dense(x)
    if whole and dense and not x.is_contiguous():
        x = x.as_strided((x.numel(),), (1,))
    return op(x, *args, **kwargs)


def _no_indices(op: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    right = op(x, *args, **kwargs)
    if isinstance(right, torch.Tensor) or x.is_contiguous():
        return right
    return right[0], torch.zeros_like(right[1])


def _searched_from_the_start(op: Any, sequence: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return op(_from_the_start(sequence), *args, **kwargs)


def _no_empty_grid(run: Run, _graph: Any, _inputs: Any) -> Run:
    def call(*args: Any) -> Any:
        if any(isinstance(x, torch.Tensor) and not x.numel() for x in args):
            raise RuntimeError("invalid configuration: a grid of 0 blocks")
        return run(*args)

    return call


def _sizes_baked(compile_graph: Compile) -> Compile:
    def compile_baked(graph: torch.fx.GraphModule, inputs: Any) -> Run:
        for x in inputs:
            for size in x.shape if isinstance(x, torch.Tensor) else (x,):
                if isinstance(size, torch.SymInt):
                    int(size)  # a guard on this very size
        return compile_graph(graph, inputs)

    return compile_baked


def _hints(run: Run, _graph: Any, inputs: Any) -> Run:
    first = [x.node.hint if isinstance(x, torch.SymInt) else None for x in inputs]

    def call(*args: Any) -> Any:
        own = [x if hint is None else hint for x, hint in zip(args, first, strict=True)]
        return run(*own)

    return call


def _two_sizes(compiled: Compiled) -> Any:
    function = compiled(lambda x: x.sum() / x.shape[0], dynamic=True)
    return [function(torch.ones(n)) for n in (4, 6)]


def _recompiles(compiled: Compiled) -> Any:
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    function = compiled(lambda x: x * 2, dynamic=True)
    for n in (4, 6, 8):
        function(torch.ones(n))
    return torch._dynamo.utils.counters["stats"]["unique_graphs"] - before


_TALL = torch.tensor([[1.0, 5.0], [2.0, 3.0], [7.0, 4.0]])

FAULTS = [
    Mutant(
        name="offset_ignored",
        family="layout",
        fault="Inputs are read from the start of their memory, wherever they begin in it.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/93562",
        compiler=Backend("offset_ignored", aot(Plan(around=on_inputs(_from_the_start)))),
        shown_by=once(torch.sin, _TALL[1:]),
    ),
    Mutant(
        name="argmax_in_memory_order",
        family="layout",
        fault="The index that argmax gives counts elements as they lie in memory.",
        level="ops",
        link="https://github.com/pytorch/pytorch/issues/183082",
        compiler=Backend(
            "argmax_in_memory_order",
            aot(
                Plan(faults=instead_of(dict.fromkeys((aten.argmax, aten.argmin), _in_memory_order)))
            ),
        ),
        shown_by=once(torch.argmax, _TALL.t()),
    ),
    Mutant(
        name="indices_of_transposed_are_zero",
        family="layout",
        fault="Where the input is not contiguous, max and min along a dimension give zeros for "
        "indices.",
        level="ops",
        link="https://github.com/pytorch/pytorch/issues/178964",
        compiler=Backend(
            "indices_of_transposed_are_zero",
            aot(Plan(faults=instead_of(dict.fromkeys((aten.max, aten.min), _no_indices)))),
        ),
        shown_by=once(lambda x: x.max(dim=1), _TALL.t()),
    ),
    Mutant(
        name="search_ignores_offset",
        family="layout",
        fault="A search in a part of a sorted tensor searches from the start of its memory.",
        level="programs",
        link="https://github.com/pytorch/pytorch/issues/182343",
        compiler=Backend(
            "search_ignores_offset",
            aot(Plan(faults=instead_of({aten.searchsorted: _searched_from_the_start}))),
        ),
        shown_by=once(
            lambda s, x: torch.searchsorted(s[1:], x),
            torch.tensor([0.0, 3.0, 7.0]),
            torch.tensor([1.0, 5.0]),
        ),
    ),
    Mutant(
        name="empty_input_raises",
        family="shape",
        fault="An input without elements raises.",
        level="contract",
        compiler=Backend("empty_input_raises", dynamo(Plan(around=_no_empty_grid))),
        shown_by=once(torch.sin, torch.ones(0)),
    ),
    Mutant(
        name="sizes_are_baked_in",
        family="shape",
        fault="Symbolic sizes are made numbers while compiling, so each size compiles anew.",
        level="contract",
        compiler=Backend("sizes_are_baked_in", _sizes_baked(dynamo())),
        shown_by=_recompiles,
    ),
    Mutant(
        name="first_size_for_all",
        family="shape",
        fault="A symbolic size is taken for what it was at the first call, without a guard.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/117496",
        compiler=Backend("first_size_for_all", dynamo(Plan(around=_hints))),
        shown_by=_two_sizes,
    ),
]
