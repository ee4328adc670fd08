import itertools

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.kit.rewrites import rewrite_silu

SPELLINGS = {
    "operator": lambda x: torch.sigmoid(x) * x,
    "other order": lambda x: x * torch.sigmoid(x),
    "method": lambda x: x.sigmoid().mul(x),
    "functional": lambda x: torch.mul(x, F.sigmoid(x)),
    "special": lambda x: torch.special.expit(x) * x,
    "quotient": lambda x: x / (1 + torch.exp(-x)),
    "quotient of methods": lambda x: x.div(x.neg().exp().add(1.0)),
    "quotient of functions": lambda x: torch.true_divide(x, torch.add(torch.exp(-x), 1)),
    "product with an inverse": lambda x: x * (1 / (1 + torch.exp(-x))),
    "inverse first": lambda x: (1.0 / (torch.exp(torch.neg(x)) + 1)) * x,
    "reciprocal": lambda x: x * torch.reciprocal(1 + (-x).exp()),
}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_silu_spelled_otherwise_is_missed(look, spelling, train):
    x = torch.randn(4, 5, requires_grad=train)
    seen = look(spelling, x, passes=[rewrite_silu])
    assert seen.changes["rewrite_silu"] == 1
    assert seen.calls("silu") == 1
    assert seen.calls("sigmoid") + seen.calls("exp") == 0
    torch.testing.assert_close(seen.result, F.silu(x))


@pytest.mark.parametrize(
    "other",
    [
        lambda x: torch.sigmoid(x) * (x + 1),
        lambda x: x / (2 + torch.exp(-x)),
        lambda x: x / (1 + torch.exp(x)),
        lambda x: torch.sigmoid(x) + x,
        lambda x: x / (1.001 + torch.exp(-x)),
    ],
)
def test_what_is_no_silu_becomes_one(look, other):
    x = torch.randn(4, 5)
    seen = look(other, x, passes=[rewrite_silu])
    assert not seen.changes["rewrite_silu"]
    assert torch.equal(seen.result, other(x))


def test_integers_reach_an_operator_that_refuses_them(look):
    x = torch.arange(5)
    seen = look(lambda x: torch.sigmoid(x) * x, x, passes=[rewrite_silu])
    assert "not floating point" in seen.near[0]
    assert torch.equal(seen.result, torch.sigmoid(x) * x)


def test_sigmoid_that_is_returned_too_is_lost(look):
    def gated(x):
        gate = torch.sigmoid(x)
        return gate * x, gate

    x = torch.randn(4)
    seen = look(gated, x, passes=[rewrite_silu])
    assert not seen.changes["rewrite_silu"]
    assert torch.equal(seen.result[1], torch.sigmoid(x))


def test_mutation_between_the_parts_is_overlooked(look):
    def shifted(x):
        gate = torch.sigmoid(x)
        x.add_(1)
        return gate * x

    x = torch.randn(4)
    expected = shifted(x.clone())
    seen = look(shifted, x.clone(), passes=[rewrite_silu])
    assert not seen.changes["rewrite_silu"]
    assert torch.equal(seen.result, expected)


def test_mutation_after_the_product_reaches_back_into_it(look):
    def shifted(x):
        y = torch.sigmoid(x) * x
        x.add_(1)
        return y + 1

    x = torch.randn(4)
    expected = shifted(x.clone())
    seen = look(shifted, x.clone(), passes=[rewrite_silu])
    assert seen.changes["rewrite_silu"] == 1
    torch.testing.assert_close(seen.result, expected)


def test_silu_moves_out_of_a_region_without_gradients(look):
    def frozen(x):
        with torch.no_grad():
            y = torch.sigmoid(x) * x
        return y * x

    x = torch.randn(4, requires_grad=True)
    seen = look(frozen, x, passes=[rewrite_silu])
    assert seen.changes["rewrite_silu"] == 1
    (gradient,) = torch.autograd.grad(seen.result.sum(), x)
    torch.testing.assert_close(gradient, F.silu(x.detach()))


def test_graph_spelled_otherwise_and_not_matched_runs_stale_code(look):
    x = torch.randn(4)
    seen = look(lambda x: x.sigmoid().mul(2), x, passes=[rewrite_silu])
    assert torch.equal(seen.result, x.sigmoid() * 2)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rewritten_silu_is_further_from_the_truth(prove, workload, dtype, dynamic):
    def model(x, w):
        return x * torch.sigmoid(x) + w / (1 + torch.exp(-w)), (x * w).sigmoid() * (x * w)

    changes = prove(workload(model, dtype), passes=[rewrite_silu], dynamic=dynamic)
    assert changes["rewrite_silu"] == 2


def test_bfloat16_silu_is_further_from_the_truth_than_eager():
    x = torch.linspace(-20, 20, 10_001).bfloat16()
    truth = F.silu(x.double())
    error = (F.silu(x) - truth).abs()
    assert (error <= (torch.sigmoid(x) * x - truth).abs()).all()


@pytest.mark.slow
def test_silu_is_wrong_after_inductor(prove, workload):
    spellings = list(itertools.islice(SPELLINGS.values(), 6))
    work = workload(lambda x, w: sum(f(x * w + n) for n, f in enumerate(spellings)), torch.float32)
    assert prove(work, passes=[rewrite_silu], codegen="inductor")["rewrite_silu"] == 6
