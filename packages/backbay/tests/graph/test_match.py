"""Patterns are found where they hold, in Dynamo's graphs and in ATen graphs, and nowhere else."""

import functools

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.errors import InputError
from backbay.graph.match import Match, Pattern, is_floating_point
from backbay.graph.values import value_of
from backbay.kit.backend import Backend
from backbay.kit.observing import collected
from backbay.kit.passes import rewrite_pass
from backbay.kit.rewrites import rewrite_silu

LEVELS = ["torch", "aten"]


def seen(pattern, function, *args, level, codegen="aot_eager", **compile_options):
    """Run a function with a pattern's pass; give what came out, and the reports."""
    torch.compiler.reset()
    patterns = pattern if isinstance(pattern, tuple) else (pattern,)
    one = rewrite_pass(*patterns, name="one", level=level)
    backend = type("Rewrites", (Backend,), {"passes": (one,), "codegen": codegen})()
    with collected() as reports:
        out = torch.compile(function, backend=backend, **compile_options)(*args)
    return out, reports


def silu(**given):
    return Pattern(
        match=lambda x: x * torch.sigmoid(x),
        replacement=lambda x: F.silu(x),
        example=lambda: (torch.empty(2, 3),),
        **given,
    )


SPELLINGS = [
    lambda x: x * torch.sigmoid(x),
    lambda x: torch.sigmoid(x) * x,
    lambda x: x * x.sigmoid(),
    lambda x: x.sigmoid().mul(x),
    lambda x: torch.mul(x, F.sigmoid(x)),
    lambda x: torch.multiply(torch.special.expit(x), x),
    lambda x: x.__mul__(x.sigmoid()),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_every_spelling_is_found_at_each_level(level, spelling, dynamic):
    x = torch.randn(4, 5, 6)
    out, reports = seen(silu(), lambda x: spelling(x) + 1, x, level=level, dynamic=dynamic)
    assert [r.changes for r in reports] == [1]
    torch.testing.assert_close(out, F.silu(x) + 1)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_in_training_every_spelling_is_found_on_dynamos_graph(spelling):
    x = torch.randn(7, requires_grad=True)
    out, reports = seen(silu(), spelling, x, level="torch")
    assert reports[0].changes == 1
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x),
                               torch.autograd.grad(F.silu(x).sum(), x))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("match", "function"),
    [
        (lambda x: F.silu(x), lambda x: F.silu(x)),  # Inductor decomposes it; the pattern must be
        (lambda x: torch.sigmoid(x) * x, lambda x: x * x.sigmoid()),
    ],
    ids=["decomposed", "commuted"],
)
def test_inside_inductor_a_pattern_meets_the_decomposed_graph(match, function):
    pattern = Pattern(
        match=match, replacement=lambda x: x * 2, example=lambda: (torch.empty(2, 3),)
    )
    x = torch.randn(4, 5)
    with torch.compiler.config.patch(force_disable_caches=True):  # what is cached runs no pass
        out, reports = seen(pattern, function, x, level="aten", codegen="inductor")
    assert sum(r.changes for r in reports) == 1
    torch.testing.assert_close(out, x * 2)


def test_the_replacement_at_the_aten_level_carries_values_and_the_users_line():
    kept = []

    class Keeps(Backend):
        level = "aten"
        passes = (rewrite_pass(silu(), name="one", level="aten"),)

        def compile(self, graph_module, example_inputs):
            kept.extend(n for n in graph_module.graph.nodes if "silu" in str(n.target))
            return graph_module.forward

    torch.compiler.reset()
    torch.compile(lambda x: x.sigmoid() * x, backend=Keeps(), dynamic=True)(torch.randn(4, 5))
    (node,) = kept
    assert node.meta["val"].shape[1] is not None
    assert "test_match.py" in node.meta["stack_trace"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_value_that_is_used_elsewhere_is_left_alone(level):
    def leaks(x):
        s = torch.sigmoid(x)
        return x * s, s

    x = torch.randn(5)
    out, reports = seen(silu(), leaks, x, level=level)
    assert reports[0].changes == 0
    torch.testing.assert_close(out, leaks(x))


def test_what_leaks_is_a_near_miss_with_its_user():
    def leaks(x):
        s = torch.sigmoid(x)
        return x * s, s + 1

    _, reports = seen(silu(), leaks, torch.randn(5), level="torch")
    (near,) = reports[0].near
    assert "is used outside, by add" in near.reason


@pytest.mark.parametrize("level", LEVELS)
def test_the_first_condition_that_fails_is_the_near_miss(level):
    pattern = silu(conditions=(is_floating_point(), lambda match: "too small", lambda match: "no"))
    _, reports = seen(pattern, lambda x: x * x.sigmoid(), torch.randn(5), level=level)
    assert reports[0].changes == 0
    assert {near.reason for near in reports[0].near} == {"too small"}


def is_large(match):
    return match.inputs[0] is not None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("condition", "name"),
    [(is_large, "is_large"), (functools.partial(is_large), "partial"), (lambda _: 0, "<lambda>")],
)
def test_a_condition_that_answers_yes_or_no_is_taken_for_a_reason(level, condition, name):
    returned = condition(Match((1,), (), (), None))
    with pytest.raises(Exception, match=f"condition {name} of pattern silu") as raised:
        seen(
            silu(name="silu", conditions=(condition,)),
            lambda x: x * x.sigmoid(),
            torch.randn(5),
            level=level,
        )
    told = f"returned {returned!r}: return why the match is not used, or None"
    assert told in str(raised.value)
    assert InputError.__name__ in str(type(raised.value).__mro__) + str(raised.value)


def test_a_condition_that_asks_for_a_size_nobody_knows_ends_the_compilation():
    def is_small(match):
        return "large" if value_of(match.inputs[0]).numel() > 5 else None

    def function(x):
        y = x[x > 0]
        return y * y.sigmoid()

    x = torch.linspace(-3, 3, 20)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        out, reports = seen(
            silu(conditions=(is_small,)), function, x, level="torch", fullgraph=True
        )
    torch.testing.assert_close(out, function(x))
    assert reports[0].changes == 0
    told = {near.reason for near in reports[0].near}
    assert told == {"it depends on a size that is known only when it runs"}


def branches(x):
    return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize("side", ["match", "replacement"])
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (branches, "symbolically traced variables cannot be used as inputs to control flow"),
        (lambda x: torch.zeros(len(x)), "'len' is not supported"),
        (lambda x: x + missing, "name 'missing' is not defined"),  # noqa: F821 (it is the fault)
    ],
    ids=["a branch", "a length", "a mistake"],
)
def test_a_pattern_that_can_not_be_traced_does_not_say_which_and_what_to_do(side, function, why):
    both = {"match": lambda x: x * 2, "replacement": lambda x: x + x, side: function}
    with pytest.raises(ValueError, match=f"pattern gate: its {side} can't be traced") as raised:
        Pattern(**both, name="gate")
    told = str(raised.value)
    assert why in told
    assert told.endswith("write straight-line code on tensors, and a pattern for each branch")
    assert "\n" not in told


@pytest.mark.parametrize("level", LEVELS)
def test_several_results_are_each_replaced(level):
    pattern = Pattern(
        match=lambda x: (torch.exp(x), torch.exp(-x)),
        replacement=lambda x: (x * 2, x * 3),
        example=lambda: (torch.empty(2, 3),),
    )
    x = torch.randn(4, 4)
    out, reports = seen(pattern, lambda x: torch.exp(x) - torch.exp(-x), x, level=level)
    assert reports[0].changes == 1
    torch.testing.assert_close(out, -x)


@pytest.mark.parametrize("level", LEVELS)
def test_several_places_are_all_replaced(level):
    def three(x):
        for _ in range(3):
            x = x * x.sigmoid()
        return x

    x = torch.randn(6)
    out, reports = seen(silu(), three, x, level=level)
    assert reports[0].changes == 3
    torch.testing.assert_close(out, F.silu(F.silu(F.silu(x))))


@pytest.mark.parametrize("level", LEVELS)
def test_what_only_looks_alike_is_left(level):
    x, y = torch.randn(5), torch.randn(5)
    for other in (lambda x, y: x * y.sigmoid(), lambda x, y: x + x.sigmoid(), lambda x, y: x * x):
        out, reports = seen(silu(), other, x, y, level=level)
        assert [r.changes for r in reports] == [0]
        torch.testing.assert_close(out, other(x, y))


@pytest.mark.parametrize("level", LEVELS)
def test_numbers_must_be_those_of_the_pattern(level):
    pattern = Pattern(
        match=lambda x: torch.tanh(x * 0.5),
        replacement=lambda x: x * 7,
        example=lambda: (torch.empty(2, 3),),
    )
    x = torch.randn(5)
    for factor, changes in ((0.5, 1), (0.25, 0)):
        _, reports = seen(pattern, lambda x, f=factor: torch.tanh(x * f), x, level=level)
        assert reports[0].changes == changes


def test_a_pattern_without_example_inputs_can_not_be_traced_to_aten():
    pattern = Pattern(match=lambda x: torch.exp(x), replacement=lambda x: x)
    with pytest.raises(Exception, match="example=lambda") as raised:
        seen(pattern, lambda x: torch.exp(x), torch.randn(3), level="aten")
    assert InputError.__name__ in str(type(raised.value).__mro__) + str(raised.value)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_shipped_pass_works_at_the_aten_level(spelling, dtype, reports):
    class Aten(Backend):
        passes = (rewrite_silu.at("aten"),)
        codegen = "aot_eager"

    torch.compiler.reset()
    backend, x = Aten(), torch.randn(6, 7, dtype=dtype)
    out = torch.compile(spelling, backend=backend)(x)
    assert sum(r.changes for r in reports) == 1
    assert torch.equal(out, F.silu(x))
