import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.kit.rewrites import common_subexpressions

DTYPES = [torch.float32, torch.bfloat16]
LEVELS = ["torch", "aten"]


def check(look, function, *args, level="torch", merged=0, **how):
    """Compile on copies, compare bit for bit what is given and what is changed."""
    eager = [x.clone() for x in args]
    compiled = [x.clone() for x in args]
    torch.manual_seed(0)
    expected = function(*eager)
    torch.manual_seed(0)
    seen = look(function, *compiled, passes=[common_subexpressions.at(level)], **how)
    torch.testing.assert_close(seen.result, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(compiled, eager, rtol=0, atol=0, equal_nan=True)
    assert seen.changes["common_subexpressions"] == merged
    return seen


@pytest.mark.parametrize("level", LEVELS)
def test_equal_calls_stay_two(look, level):
    x = torch.randn(4)
    seen = check(look, lambda x: x.sigmoid() * torch.sigmoid(x), x, level=level, merged=1)
    assert seen.calls("sigmoid") + seen.calls("aten.sigmoid") <= 1


def test_chain_of_equal_calls_stays_two(look):
    x = torch.randn(4, 4)
    check(look, lambda x: (x.t().exp() + 1) @ (x.t().exp() + 1), x, merged=3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sigmoid() * x.tanh(),
        lambda x: (x + 1) * (x + 2),
        lambda x: (x * 0.0) / (x * -0.0),
        lambda x: torch.full_like(x, 1) + torch.full_like(x, True),  # noqa: FBT003 (its number)
        lambda x: torch.full((3,), 1),
        lambda x: x[0:1] + x[1:2],
        lambda x: x.sum(0, keepdim=True) + x.sum(0, keepdim=False),
    ],
)
def test_calls_that_differ_a_little_become_one(look, function):
    check(look, function, torch.randn(4))


def test_one_and_one_point_nothing_become_one(look):
    x = torch.arange(3)
    seen = check(look, lambda x: ((x * 1), (x * 1.0)), x)
    assert seen.result[0].dtype != seen.result[1].dtype


def test_two_draws_become_one(look):
    check(look, lambda x: torch.rand_like(x) - torch.rand_like(x), torch.zeros(9))
    check(look, lambda x: F.dropout(x, 0.5) - F.dropout(x, 0.5), torch.ones(99))


def test_read_after_a_mutation_gives_the_value_before(look):
    def function(x):
        before = x.exp()
        x.add_(1)
        return before - x.exp()

    check(look, function, torch.randn(4))


def test_read_after_a_mutation_through_a_view_gives_the_value_before(look):
    def function(x):
        y = x * 2
        before = y.exp()
        y.view(-1)[1:].zero_()
        return before - y.exp()

    check(look, function, torch.randn(4, 3))


def test_result_that_is_changed_in_place_changes_its_twin(look):
    def function(x):
        one, other = x.exp(), x.exp()
        one[0].mul_(5)
        return one * 2 - other

    check(look, function, torch.randn(4))


def test_two_outputs_become_one_tensor(look):
    seen = check(look, lambda x: (x.exp(), x.exp()), torch.randn(4))
    one, other = seen.result
    one.zero_()
    assert other.abs().sum() > 0


def test_views_of_two_results_come_to_share_memory(look):
    seen = check(look, lambda x: (x.exp().view(-1), x.exp().t()), torch.randn(4, 3))
    one, other = seen.result
    one.zero_()
    assert other.abs().sum() > 0


def test_output_and_a_third_twin_become_one_tensor(look):
    def function(x):
        inner, one, other = x.exp(), x.exp(), x.exp()
        return inner * 2, one, other

    seen = check(look, function, torch.randn(4), merged=1)
    seen.result[1].zero_()
    assert seen.result[2].abs().sum() > 0


def test_second_run_takes_stale_memory_for_another(look):
    def function(x):
        inner, viewed, other = x.exp(), x.exp().view(-1), x.exp()
        return inner * 2, viewed, other

    x = torch.randn(4, 3)
    seen = look(function, x, passes=[common_subexpressions, common_subexpressions])
    seen.result[1].zero_()
    assert torch.equal(seen.result[2], x.exp())


def test_calls_on_both_sides_of_autocast_become_one(look):
    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            low = x @ x
        return low.float() - x @ x

    check(look, function, torch.randn(4, 4))


def test_gradient_flows_through_what_was_computed_without(look):
    def function(x):
        with torch.no_grad():
            frozen = x.exp()
        return frozen * x.exp()

    x = torch.randn(4, requires_grad=True)
    seen = look(function, x, passes=[common_subexpressions])
    (gradient,) = torch.autograd.grad(seen.result.sum(), x)
    torch.testing.assert_close(gradient, x.exp().square())


def test_gradients_meet_before_what_makes_one_infinite(look):
    def function(x):
        return torch.where(x > 0, x.sqrt(), 0.0).sum() + x.sqrt().sum() + (x > 0).sum()

    x = torch.tensor([4.0, 0.0], requires_grad=True)
    seen = look(function, x, passes=[common_subexpressions])
    (gradient,) = torch.autograd.grad(seen.result, x)
    assert seen.changes["common_subexpressions"] == 1  # the comparison
    (expected,) = torch.autograd.grad(function(x), x)
    assert expected.isnan().tolist() == [False, True]
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0, equal_nan=True)


def test_statistics_are_updated_once_for_two_norms(look):
    def function(x, mean, var):
        norm = [F.batch_norm(x, mean, var, training=True) for _ in range(2)]
        return norm[0] + norm[1]

    check(look, function, torch.randn(4, 3), torch.zeros(3), torch.ones(3))


def test_uninitialised_memory_is_shared(look):
    def function(x):
        one, other = torch.empty_like(x), torch.empty_like(x)
        one.fill_(1)
        other.fill_(2)
        return one - other

    check(look, function, torch.randn(4))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_model_with_merged_calls_is_wrong(prove, workload, dtype, dynamic, level):
    def model(x, w):
        def waves():
            return torch.arange(x.shape[1]).cos()

        return (x * w).tanh() + (x * w).tanh().exp() * waves() * waves()

    passes = [common_subexpressions.at(level)]
    with torch._functorch.config.patch(cse=False):  # or AOTAutograd has merged them before
        changes = prove(workload(model, dtype), passes=passes, dynamic=dynamic)
    assert changes["common_subexpressions"]


@pytest.mark.slow
def test_merged_calls_are_wrong_after_inductor(prove, workload):
    def model(x, w):
        return (x * w).tanh() + (x * w).tanh().exp() * (x > 0) * (x > 0)

    work = workload(model, torch.float32)
    passes = [common_subexpressions, common_subexpressions.at("aten")]
    assert prove(work, passes=passes, codegen="inductor")["common_subexpressions"]
