"""A node that a pass puts in has the value that it would have where it stands."""

import operator

import pytest
import torch

from backbay.graph.put import call_before
from backbay.graph.values import value_of

WEIGHT = torch.nn.Parameter(torch.randn(4))


def doubled(x):
    return x * WEIGHT


def partly(x):
    with torch.no_grad():
        return x * WEIGHT


@torch.no_grad()
def nowhere(x):
    return x * WEIGHT


def afterwards(x):
    with torch.no_grad():
        y = x + 1
    return y * WEIGHT


CASES = {
    "under no_grad": (doubled, torch.no_grad(), False),
    "in inference mode": (doubled, torch.inference_mode(), False),
    "in training": (doubled, torch.enable_grad(), True),
    "in a part without": (partly, torch.enable_grad(), False),
    "in a function without": (nowhere, torch.enable_grad(), False),
    "behind a part without": (afterwards, torch.enable_grad(), True),
}


@pytest.mark.parametrize(("function", "mode", "recorded"), CASES.values(), ids=CASES)
def test_what_is_put_in_wants_a_gradient_where_none_is_recorded(function, mode, recorded):
    seen = []

    def compiler(graph_module, _):
        (product,) = graph_module.graph.find_nodes(op="call_function", target=operator.mul)
        made = call_before(product, torch.ops.aten.mul.Tensor, *product.args)
        seen.extend(value_of(x).requires_grad for x in (product, made))
        graph_module.graph.erase_node(made)
        return graph_module.forward

    torch.compiler.reset()
    with mode:
        torch.compile(function, backend=compiler)(torch.randn(4))
    assert seen == [recorded, recorded]
