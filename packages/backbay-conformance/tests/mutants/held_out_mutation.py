"""Set aside: faults that nobody who writes levels looks at, of the kind in ``mutation``."""

from typing import Any

import torch

from mutants.graphs import same_call, writes_to
from mutants.harness import (
    Plan,
    Run,
)
from mutants.mutant import Mutant
from mutants.mutation import _backend, _summed_twice, after, unnoticed


def _put_back(run: Run, _graph: Any, _inputs: Any) -> Run:
    def call(*args: Any) -> Any:
        tensors = [x for x in args if type(x) is torch.Tensor]
        before = [(x, x._version, x.detach().clone()) for x in tensors]
        outputs = run(*args)
        for x, version, old in before:
            if x._version != version and x.shape == old.shape:
                with torch.no_grad(), unnoticed(x):
                    x.copy_(old)
        return outputs

    return call


def _merged(module: torch.fx.GraphModule) -> None:
    first: dict[Any, tuple[int, torch.fx.Node]] = {}
    written: dict[torch.fx.Node, int] = {}
    for i, node in enumerate(list(module.graph.nodes)):
        target = writes_to(node)
        if target is not None:
            written[target] = i
        if not node.op.startswith("call_") or target is not None:
            continue
        since, same = first.setdefault(same_call(node), (i, node))
        between = any(written.get(x, -1) > since for x in node.all_input_nodes)
        if same is not node and between:
            node.replace_all_uses_with(same)
            module.graph.erase_node(node)
    module.recompile()


FAULTS = [
    Mutant(
        name="mutation_dropped",
        family="mutation",
        fault="An input that the function changes is as before after the call.",
        level="contract",
        compiler=_backend("mutation_dropped", Plan(around=_put_back)),
        shown_by=after(lambda x: x.add_(1).sum(), torch.ones(3)),
    ),
    Mutant(
        name="merged_across_write",
        family="mutation",
        fault="Two equal expressions are computed once, though their operand changes in between.",
        level="contract",
        compiler=_backend("merged_across_write", Plan(rewrite=_merged)),
        shown_by=after(_summed_twice, torch.ones(3)),
    ),
]
