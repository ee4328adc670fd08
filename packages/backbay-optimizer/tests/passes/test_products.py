"""Products of attention mean what ``matmul`` makes of their operands, whatever their equation."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, settings, strategies
from hypothesis import given as drawn
from torch.fx import Graph

from backbay_optimizer.passes.decomposed_attention import scores_of, weighted_of

SIZES = dict(zip("abcdef", (2, 3, 4, 5, 6, 7), strict=True))


def called(equation):
    graph = Graph()
    one, other = graph.placeholder("one"), graph.placeholder("other")
    return graph.call_function(torch.einsum, (equation, one, other)), one


def assert_means_the_same(equation):
    """Compare what is read of an equation with it; give how many readings there are."""
    left, right = equation.partition("->")[0].split(",")
    torch.manual_seed(0)
    x, y = (torch.randn([SIZES[z] for z in letters]).double() for letters in (left, right))
    expected = torch.einsum(equation, x, y)
    node, one = called(equation)

    def value(operand):
        given = x if operand.node is one else y
        return given if operand.order is None else given.permute(operand.order)

    scores, weighted = scores_of(node), list(weighted_of(node))
    if scores is not None:
        torch.testing.assert_close(torch.matmul(*map(value, scores)), expected)
    for weights, others, order in weighted:
        made = torch.matmul(x if weights is one else y, value(others))
        made = made if order is None else made.permute(order)
        torch.testing.assert_close(made, expected)
    return (scores is not None) + len(weighted)


LETTERS = strategies.lists(strategies.sampled_from("abcdef"), min_size=1, max_size=5, unique=True)


@settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
@drawn(left=LETTERS, right=LETTERS, data=strategies.data())
def test_an_equation_is_read_as_another(left, right, data):
    known = sorted({*left, *right})
    result = data.draw(strategies.lists(strategies.sampled_from(known), unique=True))
    assert_means_the_same(f"{''.join(left)},{''.join(right)}->{''.join(result)}")


def test_an_equation_of_scores_is_missed():
    for left, right in itertools.product(
        map("".join, itertools.permutations("abcd")), map("".join, itertools.permutations("abde"))
    ):
        assert assert_means_the_same(f"{left},{right}->abce") >= 1


@pytest.mark.parametrize(
    "equation",
    [
        *("abc,abd", "aabc,adc->abd", "...ab,...cb->...ac"),
        *("ab,bc,cd->ad", "abc->acb", "ab,b1->a1"),
    ],
)
def test_what_is_no_equation_of_two_tensors_is_read(equation):
    node, _ = called(equation)
    assert scores_of(node) is None
    assert not list(weighted_of(node))
