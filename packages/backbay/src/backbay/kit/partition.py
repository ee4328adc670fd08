"""Regions to their compilers: the author's for what it supports, a fallback for the rest."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from backbay.graph.partition import REGION, Coverage, Supports, coverage, split
from backbay.graph.values import value_of
from backbay.kit.codegen import EAGER, Codegen, Compiled, aten_level, boxed
from backbay.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """How a backend's graphs are cut."""

    supports: Supports
    fallback: str
    minimum: int
    constants: bool = False
    """Whether a constant that a region reads is the region's own."""


@dataclass(slots=True)
class DryRun:
    """What a backend would get of a model: one entry for each graph, in the order compiled."""

    graphs: list[Coverage] = field(default_factory=list)

    def __str__(self) -> str:
        """Return each graph's coverage, with every operator that is left and the user's line."""
        return "\n".join(f"graph {number}: {x}" for number, x in enumerate(self.graphs))


def partitioned(
    partition: Partition,
    own: Codegen,
    registry: Registry | None = None,
    *,
    seen: Callable[[Coverage], None] = lambda _: None,
) -> Codegen:
    """Return a code generator for functional graphs that compiles each region by its compiler.

    Args:
        partition: how the graph is cut.
        own: compiles what is supported.
        seen: told of each graph what lies in regions, before they are compiled.
        registry: where the fallback is looked up; default: `registry_in_use`.

    Raises:
        InputError: nobody knows the fallback, or it does not run here.
    """
    fallback = aten_level(partition.fallback, registry)
    whole = partition.fallback not in EAGER  # else what is left runs where it is, node by node

    def generate(graph_module: GraphModule, _: Sequence[Any]) -> Compiled:
        found = split(
            graph_module,
            partition.supports,
            minimum=partition.minimum,
            whole=whole,
            constants=partition.constants,
        )
        seen(found)
        for node in list(graph_module.graph.nodes):
            if node.op != "call_module":
                continue
            region = graph_module.get_submodule(str(node.target))
            assert isinstance(region, GraphModule)
            inputs = _inputs(graph_module, node, region)
            codegen = own if str(node.target).startswith(REGION) else fallback
            setattr(graph_module, str(node.target), _Compiled(codegen(region, inputs)))
        graph_module.recompile()
        return boxed(graph_module.forward)

    return generate


def surveying(partition: Partition, found: DryRun) -> Codegen:
    """Return a code generator that notes what would be cut how, and runs the graph as it is."""

    def generate(graph_module: GraphModule, _: Sequence[Any]) -> Compiled:
        found.graphs.append(
            coverage(
                graph_module,
                partition.supports,
                minimum=partition.minimum,
                constants=partition.constants,
            )
        )
        return boxed(graph_module.forward)

    return generate


def survey(model: Any, call: Callable[..., Any], given: Any, *, train: bool) -> None:
    """Call a compiled model once, and its backward where it trains; no ``.grad`` is touched.

    Args:
        model: what was compiled: a module's parameters are what gradients are for.
        call: the compiled model.
        given: its positional and its named arguments.
        train: whether there is a backward.
    """
    args, keywords = given
    with torch.enable_grad() if train else torch.no_grad():
        results = call(*args, **keywords)
    losses = [x.abs().sum() for x in pytree.tree_leaves(results) if _has_gradient(x)]
    state = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    leaves = [x for x in (*state, *pytree.tree_leaves(given)) if _has_gradient(x)]
    if train and losses:
        torch.autograd.grad(losses, leaves, allow_unused=True)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _inputs(graph_module: GraphModule, call: Node, region: GraphModule) -> list[Any]:
    placeholders = [n for n in region.graph.nodes if n.op == "placeholder"]
    known = [value_of(n) for n in placeholders]
    sources: Sequence[Any] = call.args
    return [
        # A constant of the graph has no fake value.
        operator.attrgetter(str(source.target))(graph_module) if value is None else value
        for value, source in zip(known, sources, strict=True)
    ]


class _Compiled(torch.nn.Module):
    """What compiled a region, where the region was."""

    def __init__(self, compiled: Compiled) -> None:
        super().__init__()
        self._run = boxed(compiled)

    def forward(self, *arguments: Any) -> Any:
        return self._run(list(arguments))
