"""What a node does beside giving a value."""

import pytest
import torch
from torch._dynamo.variables import streams as _streams  # noqa: F401 (registers operators)
from torch.fx import Graph, GraphModule
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.effects import changes_state, is_random, uses_streams, written

attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@pytest.mark.parametrize(
    ("args", "keywords", "draws"),
    [
        ((), {}, False),
        ((0.0, True), {}, False),
        ((0.5,), {}, True),
        ((), {"dropout_p": 0.5}, True),
        ((), {"dropout_p": 0.0}, False),
    ],
)
def test_attention_draws_without_dropout_or_not_with_it(args, keywords, draws):
    graph = Graph()
    given = [graph.placeholder(x) for x in "qkv"]
    assert is_random(graph.call_function(attention, (*given, *args), keywords)) is draws
    assert is_random(graph.call_function(torch.ops.aten.native_dropout.default, (given[0], 0.0)))


def test_a_batch_norm_writes_more_than_its_statistics():
    graph = Graph()
    x, mean, variance, weight = (graph.placeholder(name) for name in ("x", "m", "v", "w"))
    norm = graph.call_function(F.batch_norm, (x, mean, variance, weight, None, True))
    assert written(norm) == [mean, variance]
    named = {"running_var": variance, "weight": weight, "training": True}
    assert written(graph.call_function(F.batch_norm, (x, None), named)) == [variance]


@pytest.mark.parametrize("name", ["record_event", "wait_event", "wait_stream", "fork", "join"])
def test_what_orders_streams_is_passed_over(name):
    operator = getattr(torch.ops.streams, name)
    for target in (operator, operator.default):
        graph = Graph()
        node = graph.call_function(target, (0, 1))
        assert changes_state(node)
        assert uses_streams(GraphModule({}, graph))


def test_a_node_in_a_stream_is_in_none_or_one_that_says_something_else_is():
    inner, graph = Graph(), Graph()
    x = inner.call_function(torch.relu, (inner.placeholder("x"),))
    root = torch.nn.Module()
    root.body = GraphModule({}, inner)
    graph.call_module("body", (graph.placeholder("y"),))
    for custom, found in ((None, False), ({"stage": 0}, False), ({"stream": 0}, True)):
        x.meta["custom"] = custom
        assert uses_streams(GraphModule(root, graph)) is found
