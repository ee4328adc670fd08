"""What people write differently, and is the same."""

import pytest
import torch
from torch import fx
from torch.nn import functional as F  # noqa: N812

from backbay.graph.canonical import canonicalise


def targets(function) -> list[object]:
    graph = fx.symbolic_trace(function).graph
    canonicalise(graph)
    return [node.target for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: F.relu(x),
        lambda x: F.relu(x, inplace=False),  # what Dynamo makes of torch.nn.ReLU
        lambda x: x.relu(),
        lambda x: torch.relu(input=x),
    ],
)
def test_a_module_that_says_inplace_false_would_match_no_pattern(spelling):
    assert targets(spelling) == [torch.relu]


def test_what_works_in_place_is_another_operator():
    assert targets(lambda x: F.relu(x, inplace=True)) == [F.relu]
