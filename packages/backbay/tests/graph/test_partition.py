"""Regions of a graph: what is supported, and what is left."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from backbay.errors import InputError
from backbay.graph.partition import coverage, split, supports_operators

aten = torch.ops.aten


def traced(function, *args):
    return make_fx(function, tracing_mode="fake")(*args)


def diamond(x):
    """Two paths that meet: one region around the unsupported node would be a cycle."""
    a = torch.relu(x)
    return torch.relu(a + torch.sigmoid(a))


def targets(graph_module, name):
    region = graph_module.get_submodule(name)
    return [str(n.target) for n in region.graph.nodes if n.op == "call_function"]


def test_a_region_never_needs_its_own_result_through_the_rest():
    graph_module = traced(diamond, torch.ones(3))
    x = torch.randn(3)
    split(graph_module, supports_operators([aten.relu, aten.add]))
    assert targets(graph_module, "region_0") == ["aten.relu.default"]
    assert targets(graph_module, "region_1") == ["aten.add.Tensor", "aten.relu.default"]
    assert targets(graph_module, "rest_0") == ["aten.sigmoid.default"]
    torch.testing.assert_close(graph_module(x), diamond(x))


def test_what_a_small_region_held_is_left_and_said():
    graph_module = traced(diamond, torch.ones(3))
    found = coverage(graph_module, supports_operators([aten.relu, aten.add]), minimum=2)
    assert [len(x) for x in found.regions] == [2]
    assert (found.covered, found.operators) == (2, 4)
    reasons = {x.operator: x.reason for x in found.unsupported}
    assert reasons["aten.relu.default"] == "supported, in a region of fewer than 2 operators"
    assert reasons["aten.sigmoid.default"] == "not in the list of supported operators"


def test_a_dry_run_changes_nothing():
    graph_module = traced(diamond, torch.ones(3))
    code = graph_module.code
    coverage(graph_module, supports_operators([aten.relu]))
    assert graph_module.code == code
    assert not list(graph_module.children())


def test_a_predicates_own_reason_is_shown_once_for_all_its_nodes():
    def supports(node):
        return True if node.target == aten.add.Tensor else "only additions here"

    said = str(coverage(traced(diamond, torch.ones(3)), supports))
    assert said.splitlines()[0] == "1 of 4 operators (25%) in 1 region"
    assert "  2x aten.relu.default: only additions here" in said


def test_a_bare_no_has_a_reason_too():
    found = coverage(traced(diamond, torch.ones(3)), lambda _: False)
    assert {x.reason for x in found.unsupported} == {"refused by the support predicate"}
    assert found.covered == 0


def test_an_empty_graph_is_covered_whole():
    assert str(coverage(traced(lambda x: x, torch.ones(1)), lambda _: True)).startswith("0 of 0")


def test_a_name_in_the_list_is_an_error_and_not_support_of_nothing():
    with pytest.raises(InputError, match="'mm' is no operator"):
        supports_operators(["mm"])


def test_random_draws_keep_their_order():
    def draws(x):
        a = torch.relu(x)
        first = torch.bernoulli(torch.sigmoid(a))
        b = torch.relu(x + 1)
        second = torch.bernoulli(torch.sigmoid(b))
        return first - second, torch.relu(first)

    graph_module = traced(draws, torch.ones(64))
    split(graph_module, supports_operators([aten.relu, aten.bernoulli]))
    x = torch.randn(64)
    torch.manual_seed(3)
    expected = draws(x)
    torch.manual_seed(3)
    torch.testing.assert_close(graph_module(x), expected)


def test_an_element_of_a_tuple_is_not_parted_from_the_operator_that_gives_it():
    def top(x):
        values, indices = torch.topk(x, 2)
        return torch.relu(values), indices + 1

    graph_module = traced(top, torch.randn(5))
    split(graph_module, supports_operators([aten.relu, aten.add]))
    for name, region in graph_module.named_children():
        for node in region.graph.nodes:
            if node.op == "placeholder":
                assert isinstance(node.meta["val"], torch.Tensor), (name, node)
    x = torch.randn(5)
    torch.testing.assert_close(graph_module(x), top(x))
