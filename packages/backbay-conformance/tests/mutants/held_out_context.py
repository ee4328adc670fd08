"""Set aside: faults that nobody who writes levels looks at, of the kind in ``context``."""

from typing import Any

import torch
from torch.nn import functional

from mutants.graphs import draws, same_call
from mutants.harness import (
    Backend,
    Plan,
    aot,
    dynamo,
    instead_of,
)
from mutants.mutant import Compiled, Mutant
from mutants.numerics import once


def _always_drops(op: Any, x: Any, p: float = 0.5, _training: bool = True, *rest: Any) -> Any:
    return op(x, p, True, *rest)  # noqa: FBT003 (F.dropout's own)


def _draws_merged(module: torch.fx.GraphModule) -> None:
    first: dict[Any, torch.fx.Node] = {}
    for node in list(module.graph.nodes):
        same = first.setdefault(same_call(node), node)
        if draws(node) and same is not node:
            node.replace_all_uses_with(same)
            module.graph.erase_node(node)
    module.recompile()


def _one_call_two_masks(compiled: Compiled) -> Any:
    return torch.equal(
        *compiled(lambda x: (functional.dropout(x), functional.dropout(x)))(torch.ones(64))
    )


FAULTS = [
    Mutant(
        name="dropout_in_eval",
        family="context",
        fault="Dropout drops though the module does not train.",
        level="contract",
        compiler=Backend(
            "dropout_in_eval", dynamo(Plan(faults=instead_of({functional.dropout: _always_drops})))
        ),
        shown_by=once(torch.nn.Dropout(0.9).eval(), torch.ones(64)),
    ),
    Mutant(
        name="equal_draws_are_one",
        family="context",
        fault="Two random operators with the same arguments are computed once.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/198333",
        compiler=Backend("equal_draws_are_one", aot(Plan(rewrite=_draws_merged))),
        shown_by=_one_call_two_masks,
    ),
]
