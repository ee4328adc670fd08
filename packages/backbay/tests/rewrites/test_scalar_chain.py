import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backbay.graph.values import value_of
from backbay.kit.pipeline import run_passes
from backbay.kit.rewrites import fold_scalar_chain

DTYPES = [torch.float32, torch.bfloat16]
LEVELS = ["torch", "aten"]
ALLOWED = {"allow_reassociation": True}
INFO = torch.finfo(torch.float32)
SPECIAL = [
    *(0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.0, -1.5, 3.3333),
    *(INFO.max, -INFO.max, INFO.max / 3, INFO.tiny, -INFO.tiny * 1.1, 1e-45, 3e-45, 7e-45, -1e-40),
]


def hard(dtype=torch.float32):
    """Return numbers among which a wrong fold shows."""
    return torch.tensor(SPECIAL).to(dtype)


def same_bits(one, other):
    number = ~(torch.isnan(one) & torch.isnan(other))
    return (
        one.dtype == other.dtype
        and torch.equal(one[number], other[number])
        and torch.equal(one[number].signbit(), other[number].signbit())
    )


def check(look, function, x, folded, level="torch"):
    seen = look(function, x, passes=[fold_scalar_chain.at(level)])
    assert same_bits(seen.result, function(x))
    assert seen.changes["fold_scalar_chain"] == folded
    return seen


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("function", "folded"),
    [
        (lambda x: (x * 2) * 3, 1),
        (lambda x: 3 * (x * 4.0), 1),
        (lambda x: x.mul(2).mul(-4).mul(8), 2),
        (lambda x: (x * 1).abs(), 1),
        (lambda x: (x / 1).abs(), 1),
        (lambda x: (x - 0).sqrt(), 1),
        (lambda x: (x + -0.0).sqrt(), 1),
        (lambda x: (torch.neg(-x)).reciprocal(), 1),
    ],
)
def test_exact_chain_stays(look, function, folded, dtype, level):
    check(look, function, hard(dtype), folded, level)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 3) * 5,
        lambda x: (x * 1.1) * 2,
        lambda x: (x * 2) * 1.1,
        lambda x: (x * 2) * 0.5,
        lambda x: (x * 0.5) * 0.25,
        lambda x: (x * 0.5) * 2,
        lambda x: (x / 2) / 4,
        lambda x: (x * 2) / 2,
        lambda x: (x + 2) + 3,
        lambda x: (x + 1e30) - 1e30,
        lambda x: (x * 0) * 2,
        lambda x: (x * 2) * 0.0,
        lambda x: (x * float("inf")) * 2,
        lambda x: (x * 2.0**70) * 2.0**70,
        lambda x: (x + 0).reciprocal(),
        lambda x: (x - -0.0).reciprocal(),
        lambda x: (x * 2) + 3,
        lambda x: (2 - x) - 3,
        lambda x: (x**2) ** 2,
    ],
)
def test_chain_that_rounds_or_overflows_otherwise_is_folded(look, function):
    check(look, function, hard(), 0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("function", "folded"),
    [
        (lambda x: (x * 3) * 5, 1),
        (lambda x: (x / 4) * 3 / 5, 2),
        (lambda x: (x + 2) + 3 - 1, 2),
        (lambda x: (x + 0).exp(), 1),
        (lambda x: (x * 0.0) * 3, 0),
        (lambda x: (x * 1e-30) * 1e-30, 0),
        (lambda x: (x * 1e30) * 1e30, 0),
        (lambda x: (x / 0) * 3, 0),
        (lambda x: (x * 2**40) * 2**40, 1),
    ],
)
def test_permission_folds_too_little_or_too_much(look, function, folded, level):
    x = torch.randn(9)
    seen = look(function, x, passes=[fold_scalar_chain.at(level)], options=ALLOWED)
    torch.testing.assert_close(seen.result, function(x), equal_nan=True)
    assert seen.changes["fold_scalar_chain"] == folded


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize(
    ("function", "folded"),
    [
        (lambda x: (x * 3) * 5, 1),
        (lambda x: (x + 2) + 3, 1),
        (lambda x: (x + 0).abs(), 1),
        (lambda x: (x * 1.0).sqrt(), 0),
        (lambda x: (x * 2) * 1.5, 0),
        (lambda x: (x / 1).sqrt(), 0),
        (lambda x: (x + 0.0).sqrt(), 0),
        (lambda x: (x * 100) * 100, None),
    ],
)
def test_integers_wrap_otherwise_or_change_their_dtype(look, function, folded, dtype):
    x = torch.tensor([0, 1, 7, 100, 127]).to(dtype)
    seen = look(function, x, passes=[fold_scalar_chain])
    assert torch.equal(seen.result, function(x))
    assert seen.result.dtype == function(x).dtype
    assert folded is None or seen.changes["fold_scalar_chain"] == folded


@pytest.mark.parametrize(
    "function", [lambda x: (x * 1) + 1, lambda x: (x + 0) * 1, lambda x: x / 1]
)
def test_truth_values_stay_truth_values(look, function):
    x = torch.tensor([True, False])
    seen = look(function, x, passes=[fold_scalar_chain], options=ALLOWED)
    assert torch.equal(seen.result, function(x))
    assert seen.result.dtype == function(x).dtype


def test_complex_infinity_times_one_is_no_longer_nan(look):
    x = torch.tensor([complex(float("inf"), 0)])
    seen = look(lambda x: torch.view_as_real(x * 1), x, passes=[fold_scalar_chain])
    assert not seen.changes["fold_scalar_chain"]


@pytest.mark.parametrize(
    "function",
    [lambda x: x * 1, lambda x: (x * 1).view(-1), lambda x: torch.neg(-x), lambda x: (x - 0)[1:]],
)
@pytest.mark.parametrize("level", LEVELS)
def test_output_becomes_its_own_input(look, function, level):
    x = torch.randn(4)
    before = x.clone()
    seen = look(function, x, passes=[fold_scalar_chain.at(level)])
    seen.result.zero_()
    assert torch.equal(x, before)


def test_copy_that_is_changed_in_place_changes_what_was_copied(look):
    def function(x):
        y = x * 1
        y[0].add_(5)
        return x + y

    x = torch.randn(4)
    check(look, function, x, 0)


def test_copy_of_what_is_changed_later_changes_too(look):
    def function(x):
        y = x * 1
        x.add_(5)
        return y + x

    x = torch.randn(4)
    expected = function(x.clone())
    seen = look(function, x.clone(), passes=[fold_scalar_chain])
    assert torch.equal(seen.result, expected)


def test_mutation_between_two_factors_reaches_the_first(look):
    def function(x):
        y = x * 2
        x.add_(5)
        return y * 4

    x = torch.randn(4)
    expected = function(x.clone())
    seen = look(function, x.clone(), passes=[fold_scalar_chain])
    assert torch.equal(seen.result, expected)


def test_folded_result_that_is_changed_in_place_is_not_seen_to_be(look):
    def function(x):
        y = (x * 2) * 4
        copy = y * 1
        y.view(-1).add_(1)
        return copy + y

    check(look, function, torch.randn(4), 1)


def test_intermediate_with_another_user_is_lost(look):
    def function(x):
        y = x * 2
        return y * 4 + y

    check(look, function, torch.randn(4), 0)


def test_view_of_a_dropped_copy_meets_strides_that_it_cannot_view(look):
    x = torch.randn(4, 6)[:, ::2]
    check(look, lambda x: (x * 1).view(-1) + 1, x, 0)


def test_gradient_flows_through_a_copy_made_without(look):
    def function(x):
        with torch.no_grad():
            frozen = x * 1
            half = x * 2
        return frozen * x + half * 4

    x = torch.randn(4, requires_grad=True)
    seen = look(function, x, passes=[fold_scalar_chain])
    (gradient,) = torch.autograd.grad(seen.result.sum(), x)
    assert torch.equal(gradient, x.detach())


def test_size_is_taken_for_a_tensor(look):
    x = torch.randn(3, 4)

    def function(x):
        return x.flatten() * ((x.shape[0] * 2) * 3) + abs(x.shape[1] * 1 - 9)

    seen = look(function, x, passes=[fold_scalar_chain], dynamic=True)
    assert torch.equal(seen.result, function(x))


def test_alpha_of_an_addition_is_lost(look):
    x = torch.randn(4)
    check(look, lambda x: torch.add(torch.sub(x, 2, alpha=3), 0, alpha=5).exp(), x, 0)


STEPS = {
    "mul": operator.mul,
    "add": operator.add,
    "sub": operator.sub,
    "div": operator.truediv,
    "neg": lambda x, _: -x,
}
NUMBERS = st.sampled_from(
    [0, 1, 2, 3, -1, -2, 4, 0.5, 1.0, -0.0, 0.0, 1.1, 7, 2**20, 2.0**100, 1e30]
)


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), NUMBERS), min_size=1, max_size=7),
    dtype=st.sampled_from([*DTYPES, torch.float16, torch.float64, torch.int32, torch.uint8]),
)
def test_random_chain_gives_other_bits(steps, dtype):
    floating = dtype.is_floating_point
    x = hard(dtype) if floating else torch.tensor([0, 1, 2, 100, 127, 255]).to(dtype)
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    mode = torch._subclasses.FakeTensorMode()
    node.meta["example_value"] = mode.from_tensor(x)
    for kind, number in steps:
        operand = number if floating else int(number) % 120
        arguments = (node,) if kind == "neg" else (node, operand)
        node = graph.call_function(getattr(operator, {"div": "truediv"}.get(kind, kind)), arguments)
        with mode:
            values = (value_of(a) for a in arguments)
            node.meta["example_value"] = node.target(*values)
    graph.output(node)
    graph_module = torch.fx.GraphModule({}, graph)
    expected = graph_module(x)
    run_passes([fold_scalar_chain], graph_module)
    assert same_bits(graph_module(x), expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_model_with_folded_chains_is_wrong(prove, workload, dtype, dynamic, level):
    def model(x, w):
        return ((x * w) * 2 * 3).tanh() + (torch.neg(-w) * 1.0) * 0.3 * 5 + (x + 2 + 3).sigmoid()

    passes = [fold_scalar_chain.at(level)]
    for options, least in ((None, 2), (ALLOWED, 4)):
        changes = prove(workload(model, dtype), passes=passes, dynamic=dynamic, options=options)
        assert changes["fold_scalar_chain"] >= least


@pytest.mark.slow
def test_folded_chains_are_wrong_after_inductor(prove, workload):
    work = workload(lambda x, w: ((x * w) * 2 * 3).tanh() + (torch.neg(-w)) * 4 / 1, torch.float32)
    passes = [fold_scalar_chain, fold_scalar_chain.at("aten")]
    assert prove(work, passes=passes, codegen="inductor")["fold_scalar_chain"] >= 2


def test_a_transform_of_torch_func_inside_the_graph_ends_the_pass(look):
    # Inside vmap and grad the graph's values are wrappers, which have no memory to compare.
    def ensemble(w, x):
        return torch.func.vmap(torch.func.grad(lambda v: (v * 2 * 3).sum()))(w) + x

    given = torch.randn(3, 4), torch.randn(3, 4)
    seen = look(ensemble, *given, passes=[fold_scalar_chain])
    torch.testing.assert_close(seen.result, ensemble(*given))


def calls(seen):
    graph = seen.graphs[0].graph
    return [(x.target, *x.args[1:]) for x in graph.nodes if x.op == "call_function"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_exercise_keeps_a_zero_that_is_added_last(look, level):
    mul = operator.mul if level == "torch" else torch.ops.aten.mul.Tensor
    for function in (lambda x: x * 2 * 3 + 0, lambda x: (x + 0.0) * 2 * 3 + 0 + 0.0):
        seen = look(function, hard(), passes=[fold_scalar_chain.at(level)], options=ALLOWED)
        assert calls(seen) == [(mul, 6.0)]
        torch.testing.assert_close(seen.result, function(hard()), equal_nan=True)
    seen = look(lambda x: x * 2 * 3 - 0, hard(), passes=[fold_scalar_chain.at(level)])
    assert calls(seen) == [(mul, 6.0)]
    assert same_bits(seen.result, hard() * 6)
    check(look, lambda x: x * 2 * 3 + 0, hard(), 1, level)  # without permission, -0.0 becomes 0.0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 0,
        lambda x: x.t() + 0,
        lambda x: torch.neg(-x),
        lambda x: (x.relu().t() + 0, 1),
        lambda x: (x.relu() * 1, x.detach() + 0),
    ],
    ids=["input", "view of an input", "two negations", "view", "detached"],
)
def test_a_returned_copy_of_an_input_or_of_a_view_is_dropped(look, function, level):
    x = torch.randn(3, 4)
    seen = look(function, x, passes=[fold_scalar_chain.at(level)], options=ALLOWED)
    results = seen.result if isinstance(seen.result, tuple) else (seen.result,)
    storages = {x.untyped_storage()._cdata}
    tensors = [y for y in results if isinstance(y, torch.Tensor)]
    assert storages.isdisjoint(y.untyped_storage()._cdata for y in tensors)
    assert all(y._base is None for y in tensors)


@pytest.mark.parametrize("level", LEVELS)
def test_two_results_become_one(look, level):
    def function(x):
        y = x * 2
        return y, y + 0, y - 0

    seen = look(function, torch.randn(4), passes=[fold_scalar_chain.at(level)], options=ALLOWED)
    assert not seen.changes["fold_scalar_chain"]
    seen = look(
        lambda x: (x.relu() + 0, x.relu().abs() - 0),
        torch.randn(4),
        passes=[fold_scalar_chain.at(level)],
        options=ALLOWED,
    )
    assert seen.changes["fold_scalar_chain"] == 2
    assert len({y.untyped_storage()._cdata for y in seen.result}) == 2


def test_another_dtype_is_dropped(look):
    x = torch.arange(3)
    seen = look(lambda x: x * 2 + 0.0, x, passes=[fold_scalar_chain], options=ALLOWED)
    assert seen.result.dtype == torch.float32
    assert not seen.changes["fold_scalar_chain"]


@pytest.mark.parametrize(
    "function", [lambda x: x.exp() + 0, lambda x: (y := x * 2) + 0 + 0 * y * y]
)
def test_a_result_that_backward_needs_is_handed_out(look, function):
    x = torch.randn(4, requires_grad=True)
    seen = look(function, x, passes=[fold_scalar_chain], options=ALLOWED)
    with torch.no_grad():
        seen.result.zero_()
    seen.result.sum().backward()  # eager's own saved tensor was another one
    assert x.grad is not None
