"""What a node does beside giving a value."""

import pytest
import torch
from torch.fx import Graph
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.effects import is_random, written

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
