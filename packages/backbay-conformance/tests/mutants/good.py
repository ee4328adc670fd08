"""The good twins: the same harness without any fault. The suite must pass each of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from mutants.harness import (
    Backend,
    Run,
    Running,
    aot,
    copied,
    dynamo,
    no_faults,
)


def _boxed(graph_module: torch.fx.GraphModule, _example_inputs: Sequence[Any]) -> Run:
    module = copied(graph_module)

    def run(args: list[Any]) -> Any:
        return Running(module, no_faults()).boxed_run(args)

    run._boxed_call = True  # type: ignore[attr-defined] # torch's protocol
    return run


def _decomposed(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Run:
    from torch._inductor import compile_fx

    # Made for each graph: the table depends on Inductor's settings, and AOTAutograd would keep it.
    table = compile_fx.select_decomp_table()  # type: ignore[attr-defined] # torch re-exports it
    return aot(decompositions=table)(graph_module, example_inputs)


GOOD_TWINS: dict[str, Backend] = {
    x.__name__: x
    for x in (
        Backend("good_dynamo", dynamo()),
        Backend("good_aot", aot()),
        Backend("good_boxed", aot_autograd(fw_compiler=_boxed, bw_compiler=_boxed)),
        Backend("good_decomposed", _decomposed),
    )
}
"""By name: Dynamo's graph; AOTAutograd's; that with arguments that are freed as they are used; and
that in Inductor's operators. Not in torch's core operators: `core_aten_decompositions` takes the
forward of attention apart and not its backward, which is then given the wrong tensors."""
