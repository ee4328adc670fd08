"""A pattern that does not fire says which number or operator of the model differs."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.match import Pattern
from backbay.graph.nearness import nearest
from backbay.kit.backend import Backend
from backbay.kit.observing import Reports, collected, observed_by
from backbay.kit.passes import rewrite_pass

ROOT = math.sqrt(2 / math.pi)
OTHER_NUMBER = "the number is 0.7978845612587234 here, and 0.7978845608028654 in the pattern"


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3))))


def rounded_pi(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / 3.14159265) * (x + 0.044715 * torch.pow(x, 3))))


def one_by_one(x):
    return 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x * x * x)))


def cubed(x):
    return 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * (x * x * x))))


def sigmoid(x):
    return 0.5 * x * (1 + torch.sigmoid(ROOT * (x + 0.044715 * torch.pow(x, 3))))


def unlike(x):
    return 0.5 * torch.relu(x @ x.T) * (1 + x.sum())


def other_input(x):
    return 0.5 * x.sin() * (1 + torch.tanh(ROOT * (x + 0.044715 * (x * x * x))))


def cosine_less_another_cube(x):
    y = x.sin()
    return x.cos() - y * y * y


def product_inside_out(x):
    y = x.sin()
    return y * x * y * y


GELU = Pattern(
    match=gelu,
    replacement=lambda x: F.gelu(x, approximate="tanh"),
    example=lambda: (torch.empty(3, 4),),
)


def near(function, pattern=GELU, level="torch"):
    """Return the reasons of one pattern's near misses; the pass never fires."""
    passes = (rewrite_pass(pattern, name="mine", level=level),)
    backend = type("Mine", (Backend,), {"passes": passes, "codegen": "eager"})()
    torch.compiler.reset()
    reports = Reports()
    with observed_by(reports, nearest=nearest), torch.no_grad():
        torch.compile(function, backend=backend)(torch.ones(4, 4))
    (report,) = reports
    return report.changes, [x.reason for x in report.near]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            rounded_pi,
            f"{OTHER_NUMBER}: give the pattern a tolerance above 6e-10",
        ),
        (one_by_one, "the product is written with mul here, and with mul, pow in the pattern"),
        (cubed, "the power 3 is written with mul here, and with pow in the pattern"),
        (sigmoid, "it calls sigmoid where the pattern calls tanh"),
    ],
)
def test_the_number_or_the_operator_that_differs_is_named(function, reason):
    assert near(function) == (0, [reason])


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (rounded_pi, OTHER_NUMBER),
        (cubed, "the power 3 is written with aten.mul.Tensor here, and with aten.pow.Tensor_Sc"),
        (sigmoid, "it calls aten.sigmoid.default where the pattern calls aten.tanh.default"),
    ],
)
def test_on_aten_graphs_too_where_no_pattern_has_a_tolerance(function, reason):
    changes, (found,) = near(function, level="aten")
    assert changes == 0
    assert found.startswith(reason)
    assert "tolerance" not in found


def test_a_pattern_of_one_operator_is_near_its_other_spelling_and_nothing_else():
    cube = Pattern(match=lambda x: torch.pow(x, 3), replacement=lambda x: x * x * x)
    found = ["the power 3 is written with mul here, and with pow in the pattern"]
    assert near(lambda x: x * x * x + 1, cube) == (0, found)
    assert near(lambda x: x * x + 1, cube) == (0, [])
    assert near(lambda x: torch.pow(x, 2), cube) == (0, [])


def test_what_is_unlike_is_no_near_miss_nor_is_what_fires():
    assert near(unlike) == (0, [])
    assert near(other_input) == (0, [])
    assert near(gelu) == (1, [])
    assert near(gelu, level="aten") == (1, [])


def test_an_input_of_the_pattern_is_one_value_everywhere():
    wave = Pattern(match=lambda x: x.cos() - torch.pow(x, 3), replacement=lambda x: x.cos() - x)
    assert near(lambda x: x.cos() - x * x * x, wave)[1]
    assert not near(cosine_less_another_cube, wave)[1]
    assert not near(lambda x: x.cos() - (x + 1) ** 3, wave)[1]


def test_what_a_pattern_uses_twice_is_compared_once():
    def twice(factor):
        return lambda x: (x * factor) * (x * factor).sigmoid()

    def shared(factor):
        def silu(x):
            h = x * factor
            return h * h.sigmoid()

        return silu

    half = Pattern(match=shared(0.5), replacement=lambda x: F.silu(x))
    number = "the number is 0.5000001 here, and 0.5 in the pattern"
    changes, (found,) = near(shared(0.5000001), half)
    assert changes == 0
    assert found.startswith(number)
    words = "the product is put together in another way here than in the pattern"
    assert near(twice(0.5), half) == (0, [words])  # of two values, where the pattern has one


def test_factors_may_stand_in_any_order():
    product = Pattern(match=lambda x, y: x * torch.pow(y, 3), replacement=lambda x, y: x - y)
    found = ["the product is written with mul here, and with mul, pow in the pattern"]
    assert near(lambda x: x.sin() * x * x.sin() * x.sin() + 1, product)[1] == []
    assert near(product_inside_out, product)[1] == found


def halved(times, most=0.5):
    """Return a function of twice as many calls."""

    def chain(x):
        for number in range(times):
            x = (x * (0.5 if number else most)).tanh()
        return x

    return chain


HALF = Pattern(match=halved(1), replacement=lambda x: x - 1)
DEEP = Pattern(match=halved(5), replacement=lambda x: x - 1, example=lambda: (torch.empty(3, 4),))


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_no_part_of_what_fires_is_a_near_miss(level):
    assert near(halved(5), DEEP, level) == (1, [])


def test_a_small_part_of_a_pattern_is_no_near_miss():
    assert near(lambda x: halved(1)(x + x), DEEP) == (0, [])
    changes, (found,) = near(lambda x: halved(4)(x), DEEP)
    assert changes == 0
    assert found.endswith("_x_ stands where the pattern calls tanh")


def test_what_two_results_have_in_common_is_told_once():
    def common(x):
        h = halved(4, most=0.5000001)(x) * 0.5
        return h.tanh(), h.tanh() + 1

    changes, found = near(common, DEEP)
    assert changes == 0
    assert len(found) == 1


def test_a_tolerance_holds_for_other_numbers_of_the_pattern():
    def waves(first, second):
        return lambda x: (x * first).cos() - (x.sin() * second).tanh()

    half = replace(HALF, match=waves(0.5, 0.25), tolerance=1e-6)
    changes, (found,) = near(waves(0.5 + 1e-9, 0.2501), half)
    assert (changes, found[:27]) == (0, "the number is 0.2501 here, ")


def test_products_of_other_numbers_are_not_the_same():
    cube = Pattern(match=lambda x: (0.5 * torch.pow(x, 3)).cos(), replacement=lambda x: x - 1)
    assert near(lambda x: (0.5 * x * x * x).cos(), cube)[1]
    assert near(lambda x: (3.5 * x * x * x).cos(), cube) == (0, [])


def test_other_keywords_and_lists_are_compared_and_fixed_powers_are_powers():
    def pooled(sizes, **keywords):
        return lambda x: x.reshape(sizes).cos().sum(-1, **keywords).sin().cos().tan()

    pattern = Pattern(match=pooled((2, 8)), replacement=lambda x: x - 1)
    found = [near(pooled((2, -1)), pattern), near(pooled((2, 8), keepdim=True), pattern)]
    assert found == [
        (0, ["the number is -1 here, and 8 in the pattern"]),
        (0, ["sum is called with other arguments"]),
    ]
    square = Pattern(match=lambda x: torch.pow(x, 2).cos(), replacement=lambda x: x - 1)
    found = ["the power 2 is written with square here, and with pow in the pattern"]
    assert near(lambda x: torch.square(x).cos(), square) == (0, found)


def test_operands_may_change_places():
    mixed = Pattern(match=lambda x: x.cos() + x.sin() * 0.5, replacement=lambda x: x - 1)
    assert near(lambda x: x.sin() * 0.5 + x.cos(), mixed) == (1, [])
    changes, (found,) = near(lambda x: x.sin() * 0.5000001 + x.cos(), mixed)
    assert (changes, found[:27]) == (0, "the number is 0.5000001 her")


def test_it_is_looked_for_where_somebody_asks_only():
    backend = type("Mine", (Backend,), {"passes": (rewrite_pass(GELU, name="mine"),)})
    backend.codegen = "eager"
    torch.compiler.reset()
    with collected() as reports:
        torch.compile(cubed, backend=backend())(torch.ones(4, 4))
    assert not reports[0].near
    assert near(cubed)[1]
