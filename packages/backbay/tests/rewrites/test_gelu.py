import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.kit.rewrites import rewrite_gelu

S = math.sqrt(2 / math.pi)
TANH = {
    "textbook": lambda x: 0.5 * x * (1 + torch.tanh(S * (x + 0.044715 * x**3))),
    "decimal": lambda x: 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3.0))),
    "inline": lambda x: (
        x * 0.5 * (torch.tanh(math.sqrt(2.0 / math.pi) * (x + x**3 * 0.044715)) + 1)
    ),
    "functions": lambda x: torch.mul(
        torch.mul(x, 0.5), 1 + torch.tanh(S * (x + 0.044715 * torch.pow(x, 3)))
    ),
    "methods": lambda x: x.mul(0.5) * x.pow(3).mul(0.044715).add(x).mul(S).tanh().add(1),
    "product": lambda x: 0.5 * (x * (1 + torch.tanh(S * (x + 0.044715 * (x * x * x))))),
    "product from the left": lambda x: 0.5 * x * (1 + torch.tanh(S * (x + 0.044715 * x * x * x))),
    "half with the curve": lambda x: x * (0.5 * (1 + F.tanh((x + 0.044715 * x.pow(3)) * S))),
    "factored": lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
    "factored square": lambda x: 0.5 * x * (1 + torch.tanh(x * S * (1.0 + 0.044715 * x**2))),
}
ERF = {
    "textbook": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "half first": lambda x: 0.5 * x * (1.0 + torch.erf(x / 1.4142135)),
    "factor": lambda x: x * 0.5 * (1 + torch.erf(x * 0.7071067811865476)),
    "inverse root": lambda x: 0.5 * (x * (torch.erf(x * (1 / 2**0.5)) + 1)),
    "methods": lambda x: x.div(math.sqrt(2)).erf().add(1).mul(0.5).mul(x),
    "special": lambda x: x * (0.5 * (1.0 + torch.special.erf(x / 1.41421356))),
    "functions": lambda x: torch.mul(x * 0.5, torch.add(torch.erf(torch.div(x, 2**0.5)), 1)),
    "half last": lambda x: x * (1 + torch.erf(0.70710678 * x)) * 0.5,
}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("spelling", TANH.values(), ids=TANH)
def test_tanh_gelu_spelled_otherwise_is_missed(look, spelling, train):
    x = torch.randn(4, 5, requires_grad=train)
    seen = look(spelling, x, passes=[rewrite_gelu])
    assert seen.changes["rewrite_gelu"] == seen.calls("gelu") == 1
    assert seen.calls("tanh") + seen.calls("mul") == 0
    torch.testing.assert_close(seen.result, F.gelu(x, approximate="tanh"))


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("spelling", ERF.values(), ids=ERF)
def test_exact_gelu_spelled_otherwise_is_missed(look, spelling, train):
    x = torch.randn(4, 5, requires_grad=train)
    seen = look(spelling, x, passes=[rewrite_gelu])
    assert seen.changes["rewrite_gelu"] == seen.calls("gelu") == 1
    assert seen.calls("erf") + seen.calls("mul") == 0
    torch.testing.assert_close(seen.result, F.gelu(x))


@pytest.mark.parametrize(
    "other",
    [
        lambda x: 0.5 * x * (1 + torch.tanh(0.7979 * (x + 0.044715 * x**3))),
        lambda x: 0.5 * x * (1 + torch.tanh(S * (x + 0.0447 * x**3))),
        lambda x: 0.5 * x * (1 + torch.tanh(S * (x + 0.044715 * x**2))),
        lambda x: 0.5 * x * (1 - torch.erf(x / math.sqrt(2))),
        lambda x: x * (1 + torch.erf(x / math.sqrt(2))),
        lambda x: x * 0.5 * (1 + torch.erf(x / 1.414)),
    ],
)
def test_what_is_nearly_gelu_becomes_gelu(look, other):
    x = torch.randn(4, 5)
    seen = look(other, x, passes=[rewrite_gelu])
    assert not seen.changes["rewrite_gelu"]
    assert torch.equal(seen.result, other(x))


def test_integers_reach_an_operator_that_refuses_them(look):
    x = torch.arange(5)
    seen = look(ERF["textbook"], x, passes=[rewrite_gelu])
    assert not seen.changes["rewrite_gelu"]
    assert torch.equal(seen.result, ERF["textbook"](x))


def test_part_that_is_used_elsewhere_is_lost(look):
    def curve_too(x):
        curve = torch.erf(x / math.sqrt(2))
        return x * 0.5 * (1 + curve), curve

    x = torch.randn(4)
    seen = look(curve_too, x, passes=[rewrite_gelu])
    assert not seen.changes["rewrite_gelu"]
    assert torch.equal(seen.result[1], torch.erf(x / math.sqrt(2)))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rewritten_gelu_is_further_from_the_truth(prove, workload, dtype, dynamic):
    def model(x, w):
        return TANH["decimal"](x * w), ERF["textbook"](x) + TANH["factored"](w)

    changes = prove(workload(model, dtype), passes=[rewrite_gelu], dynamic=dynamic)
    assert changes["rewrite_gelu"] == 3


@pytest.mark.slow
def test_gelu_is_wrong_after_inductor(prove, workload):
    work = workload(lambda x, w: TANH["product"](x * w) + ERF["factor"](x), torch.float32)
    assert prove(work, passes=[rewrite_gelu], codegen="inductor")["rewrite_gelu"] == 2
