"""Which memory a graph may write."""

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

from backbay.graph.aliases import writes_what_it_holds


def holding(build):
    """Return a graph that has a tensor, a batch norm and a linear layer as attributes."""
    root, graph = nn.Module(), Graph()
    root.register_buffer("held", torch.ones(3))
    root.norm, root.linear = nn.BatchNorm1d(3), nn.Linear(3, 3)
    graph.output((build(graph, graph.placeholder("x")),))
    return GraphModule(root, graph)


@pytest.mark.parametrize(
    ("build", "writes"),
    [
        (lambda g, x: g.call_function(torch.mul, (x, g.get_attr("held"))), False),
        (lambda g, x: g.call_method("add_", (g.get_attr("held"), x)), True),
        (lambda g, x: g.call_function(torch._foreach_add_, ([g.get_attr("held")], 1)), True),
        (lambda g, x: g.call_module("linear", (x,)), False),
        (lambda g, x: g.call_module("norm", (x,)), True),
    ],
)
def test_a_graph_that_changes_by_being_called_is_tried_or_another_is_not(build, writes):
    inner = holding(build)
    assert writes_what_it_holds(inner) is writes
    outer = holding(lambda _, x: x)
    outer.add_submodule("branch", inner)
    assert writes_what_it_holds(outer) is writes
