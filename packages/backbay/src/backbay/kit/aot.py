"""Passes after AOTAutograd: on functional ATen graphs, forward and backward each.

With Inductor as code generator the passes run in Inductor's own hook, as a custom pass with a
uuid: its caches know them. A compiler wrapped around Inductor's inner one is not known to them, and
served a stale result when it was tried. With any other code generator AOTAutograd is called here.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule

from backbay.graph.effects import mutates
from backbay.graph.rewrite import FROZEN, hold
from backbay.graph.values import value_of
from backbay.kit.codegen import Codegen, Compiled, boxed
from backbay.kit.observing import current_watch
from backbay.kit.passes import Pass
from backbay.kit.pipeline import run_passes

GraphKind = Literal["inference", "forward", "backward"]
"""What AOTAutograd makes of Dynamo's graph: one graph where no gradient is wanted, else two."""

HOOKS = {
    "inductor.pre_grad": "pre_grad_custom_pass",
    "inductor.joint_pre": "joint_custom_pre_pass",
    "inductor.joint_post": "joint_custom_post_pass",
    "aten": "post_grad_custom_pre_pass",
    "inductor.post_grad_pre": "post_grad_custom_pre_pass",
    "inductor.post_grad": "post_grad_custom_post_pass",
}
"""Level to Inductor's configuration key."""


class HookedPasses(CustomGraphPass):
    """Passes as one of Inductor's hooks: called with a graph, known to its caches."""

    def __init__(self, passes: Sequence[Pass], options: Mapping[str, Any]) -> None:
        self._passes = tuple(passes)
        self._options = dict(options)
        self._watch = current_watch()

    def __call__(self, graph: Any) -> None:
        """Run the passes in place on a graph; the pre-grad hook gives one too, not a module."""
        given = graph.owning_module if isinstance(graph, Graph) else graph
        graph_module = given if given is not None else GraphModule(torch.nn.Module(), graph)
        from torch._inductor.decomposition import (  # noqa: PLC0415 (Inductor takes seconds)
            select_decomp_table,
        )

        table = select_decomp_table()
        run_passes(self._passes, graph_module, self._options, table, self._watch)

    def uuid(self) -> str:
        """Return what decides what the passes do, in their order."""
        return "\0".join([*(x.uuid() for x in self._passes), repr(sorted(self._options.items()))])

    def __getstate__(self) -> dict[str, Any]:
        # Inductor's compile workers pickle the configuration; they run no pass.
        return {
            "_passes": (),
            "_options": {},
            "_watch": None,
            "_uuid": self.uuid(),
        }

    def __deepcopy__(self, _: dict[int, Any]) -> "HookedPasses":
        return self  # AOTInductor copies the configuration, and runs the copy

    def __eq__(self, other: object) -> bool:
        # Equal configurations are made once and kept. So the passes themselves must be equal, since
        # two closures of one source are not the same pass; and so must who observes, or the reports
        # of a second backend of these passes went to the first one's observer.
        if not isinstance(other, HookedPasses) or self.uuid() != other.uuid():
            return False
        return self._passes == other._passes and self._watch == other._watch

    def __hash__(self) -> int:
        return hash(self.uuid())


def inductor_patches(passes: Sequence[Pass], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that makes Inductor run passes in its hooks.

    Raises:
        ValueError: levels other than torch's are mixed for one hook in an order that it can't keep.
    """
    by_hook: dict[str, list[Pass]] = {}
    for one in passes:
        by_hook.setdefault(HOOKS[one.level], []).append(one)
    return {hook: HookedPasses(group, options) for hook, group in by_hook.items()}


def aot_compile(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    passes: Sequence[Pass],
    codegen: Callable[[GraphKind], Codegen],
    decompositions: Mapping[Any, Any] | None,
    partitioner: str,
    options: Mapping[str, Any],
) -> Compiled:
    """Compile Dynamo's graph through AOTAutograd, with passes on forward and backward graphs.

    Args:
        graph_module: Dynamo's graph.
        example_inputs: its inputs.
        passes: of level ``aten``; run on each graph that AOTAutograd makes.
        codegen: gives what compiles graphs of a kind, from fake inputs.
        decompositions: operator to decomposition, as AOTAutograd takes them.
        partitioner: ``min_cut`` or ``default``: how the joint graph is cut.
        options: handed to the passes.
    """
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415 (imports Dynamo)
    from torch._functorch.partitioners import (  # noqa: PLC0415 (likewise)
        default_partition,
        min_cut_rematerialization_partition,
    )

    watch = current_watch()  # the backward graph may be compiled in autograd's own thread
    frozen = _frozen(graph_module)

    def compiler(kind: GraphKind, graph: GraphModule, inputs: Sequence[Any]) -> Compiled:
        if kind == "inference":
            _hold_again(graph, frozen)
        run_passes(passes, graph, options, decompositions, watch)
        return boxed(codegen(kind)(graph, inputs))

    cut = {"min_cut": min_cut_rematerialization_partition, "default": default_partition}
    backend = aot_autograd(
        fw_compiler=functools.partial(compiler, "forward"),
        bw_compiler=functools.partial(compiler, "backward"),
        inference_compiler=functools.partial(compiler, "inference"),
        decompositions=dict(decompositions or {}),
        partition_fn=cut[partitioner],
    )
    compiled: Compiled = backend(graph_module, example_inputs)
    return compiled


def _frozen(graph_module: GraphModule) -> list[torch.Tensor | None]:
    """Return the parameters and buffers of a graph, in AOTAutograd's order; None if not frozen."""
    owned: dict[str, torch.Tensor] = {}
    owned.update(graph_module.named_parameters(remove_duplicate=False))
    owned.update(graph_module.named_buffers(remove_duplicate=False))
    return [x if name.startswith(FROZEN) else None for name, x in owned.items()]


def _hold_again(graph_module: GraphModule, frozen: Sequence[torch.Tensor | None]) -> None:
    """Make frozen parameters constants again: AOTAutograd made them the first inputs."""
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    for node, value in zip(placeholders, frozen, strict=False):
        if value is None or not node.users or any(map(mutates, node.users)):
            continue
        if value_of(node).shape != value.shape or value_of(node).dtype != value.dtype:
            return  # not in that order: what was frozen stays an input, which is right as well
        name = hold(graph_module, value, FROZEN)
        with graph_module.graph.inserting_after(placeholders[-1]):
            constant = graph_module.graph.get_attr(name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
    graph_module.recompile()
