"""Set aside: faults that nobody who writes levels looks at, of the kind in ``aliasing``."""

from typing import Any

import torch

from mutants.graphs import same_call
from mutants.harness import (
    Backend,
    Plan,
    dynamo,
)
from mutants.mutant import Compiled, Mutant


def _one_for_equals(module: torch.fx.GraphModule) -> None:
    end = next(x for x in module.graph.nodes if x.op == "output")
    first: dict[Any, torch.fx.Node] = {}
    for node in list(end.all_input_nodes):
        same = first.setdefault(same_call(node), node)
        if node.op.startswith("call_") and same is not node:
            node.replace_all_uses_with(same)
            module.graph.erase_node(node)
    module.recompile()


def _equals(compiled: Compiled) -> Any:
    one, two = compiled(lambda x: (x + 1, x + 1))(torch.ones(2))
    one.zero_()
    return two


FAULTS = [
    Mutant(
        name="equal_results_are_one",
        family="aliasing",
        fault="Two results that are computed alike come back as one tensor.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/191449",
        compiler=Backend("equal_results_are_one", dynamo(Plan(rewrite=_one_for_equals))),
        shown_by=_equals,
    ),
]
