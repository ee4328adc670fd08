"""Set aside: faults that nobody who writes levels looks at, of the kind in ``layout``."""

import weakref
from typing import Any

import torch

from mutants.harness import (
    Backend,
    Plan,
    Running,
    aot,
    on_inputs,
    packet,
)
from mutants.layout import _TALL
from mutants.mutant import Compiled, Mutant
from mutants.numerics import aten, once


def _rows(shape: torch.Size) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return strides[::-1]


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    if type(x) is not torch.Tensor or x.layout != torch.strided or x.is_contiguous():
        return x
    if (x.storage_offset() + x.numel()) * x.element_size() > x.untyped_storage().nbytes():
        return x
    return x.as_strided(x.shape, _rows(x.shape))


_ITEMS: weakref.WeakKeyDictionary[torch.fx.Node, Any] = weakref.WeakKeyDictionary()


class _ReadsItemsOnce(Running):
    """Keeps each number that was read from a tensor."""

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node, or return what it gave the first time."""
        if packet(n.target) is not aten._local_scalar_dense:
            return super().run_node(n)
        if n not in _ITEMS:
            _ITEMS[n] = super().run_node(n)
        return _ITEMS[n]


def _items(compiled: Compiled) -> Any:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        function = compiled(lambda n: torch.arange(n.item()))
        return [function(torch.tensor(n)) for n in (3, 5)]


FAULTS = [
    Mutant(
        name="inputs_taken_for_rows",
        family="layout",
        fault="Inputs are read as though they were contiguous.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/172693",
        compiler=Backend("inputs_taken_for_rows", aot(Plan(around=on_inputs(_as_rows)))),
        shown_by=once(torch.sin, _TALL.t()),
    ),
    Mutant(
        name="first_item_for_all",
        family="shape",
        fault="A number that is read from a tensor is taken for what it was at the first call.",
        level="shapes",
        compiler=Backend("first_item_for_all", aot(Plan(running=_ReadsItemsOnce))),
        shown_by=_items,
    ),
]
