"""Which memory a graph may write."""

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule
from torch.nn.attention.flex_attention import flex_attention

from backbay.graph.aliases import Memory, writes_what_it_holds
from backbay.graph.effects import may_write


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


@torch.compiler.allow_in_graph
def opaque(x):
    return x + 1


def seen(program, *inputs):
    """Return Dynamo's graph of a program."""
    graphs = []

    def keep(graph_module, _):
        graphs.append(graph_module.graph)
        return graph_module

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(program, backend=keep)(*inputs)
    return graphs[0]


def test_memory_that_is_given_to_no_writer_reaches_one():
    def program(x):
        first, second, third = x.cos(), x.sin(), x.tan()
        first[0].zero_()
        summed = torch.vmap(lambda row: row.sum().sin_())(third)
        return first + second + opaque(second.view(-1)).view(2, 3) + summed[:, None]

    graph = seen(program, torch.randn(2, 3))
    cos, sin, tan = (next(x for x in graph.nodes if x.target == y) for y in ("cos", "sin", "tan"))
    memory = Memory(graph)
    assert memory.reaches_a_writer(cos)
    assert memory.reaches_a_writer(sin)
    assert memory.reaches_a_writer(tan)  # vmap is given it
    writes = next(x for x in graph.nodes if x.target == "zero_")
    assert not Memory(graph, besides={writes}).reaches_a_writer(cos)


def test_a_module_that_is_made_or_nothing_at_all_writes():
    def program(x):
        return nn.ReLU()(x.cos())

    graph = seen(program, torch.randn(2, 3))
    assert any(x.target is torch._C._log_api_usage_once for x in graph.nodes)
    assert not Memory(graph).writes
    assert Memory(seen(lambda x: opaque(x), torch.randn(2, 3))).writes


def test_memory_beside_a_vmap_reaches_a_writer():
    def program(x, y):
        return torch.vmap(lambda row: row.sum().sin_())(x.cos())[:, None] + y.tan()

    graph = seen(program, torch.randn(2, 3), torch.randn(2, 3))
    tan = next(x for x in graph.nodes if x.target == "tan")
    memory = Memory(graph)
    assert memory.writes
    assert memory.mutated(tan)  # what is written is not known
    assert not memory.reaches_a_writer(tan)


@pytest.mark.parametrize("writes", [False, True])
def test_attention_writes_what_its_functions_do_not(writes):
    q, counted = torch.randn(1, 2, 16, 8), torch.zeros(1)

    def score(score, *_):
        if writes:
            counted[0].add_(1)
        return score + counted[0]

    graph = seen(lambda q: flex_attention(q, q, q, score_mod=score), q)
    (attention,) = (x for x in graph.nodes if "flex_attention" in str(x.target))
    assert may_write(attention) == writes
