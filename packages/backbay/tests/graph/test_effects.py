"""What a node does beside giving a value."""

import pytest
import torch
from torch.fx import Graph

from backbay.graph.effects import is_random

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
