"""Folded weights and biases compute what convolution and batch norm do one after the other."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels.folded_batch_norm import OPERATOR

EPS = 1e-3
CHANNELS = (8, 24)
NAMES = ("biases", "scales", "shifts")


def lists(dtype, *, absent=(), norms_dtype=None):
    """Return the operator's arguments: weights of 3 by 3 and 1 by 1."""
    torch.manual_seed(0)
    weights = [torch.randn(n, 5, k, k).to(dtype) for n, k in zip(CHANNELS, (3, 1), strict=True)]
    biases = [torch.randn(n).to(dtype) for n in CHANNELS]
    norms_dtype = norms_dtype or dtype
    means, scales, shifts = ([torch.randn(n).to(norms_dtype) for n in CHANNELS] for _ in range(3))
    variances = [(torch.rand(n) + 0.5).to(norms_dtype) for n in CHANNELS]
    given = {
        "weights": weights,
        "biases": biases,
        "means": means,
        "variances": variances,
        "scales": scales,
        "shifts": shifts,
    }
    return [None if x in absent else y for x, y in given.items()]


def in_steps(x, weight, bias, *norm):
    mean, variance, scale, shift = norm
    y = F.conv2d(x, weight, bias)
    return F.batch_norm(y, mean, variance, scale, shift, training=False, eps=EPS)


ABSENT = [x for n in range(4) for x in itertools.combinations(NAMES, n)]


@pytest.mark.parametrize("absent", ABSENT, ids=lambda x: " ".join(x) or "nothing")
def test_what_is_absent_is_not_what_it_stands_for(absent):
    given = lists(torch.float64, absent=absent)
    made = OPERATOR(*given, EPS, torch.float64)
    for number, weight in enumerate(given[0]):
        x = torch.randn(2, *weight.shape[1:], dtype=torch.float64)
        numbers = [None if y is None else y[number] for y in given[1:]]
        got = F.conv2d(x, made[number], made[number + len(CHANNELS)])
        # Folded in single precision, whatever is given.
        torch.testing.assert_close(got, in_steps(x, weight, *numbers), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norms_dtype", [torch.float32, torch.bfloat16])
def test_a_result_is_rounded_twice(dtype, norms_dtype):
    given = lists(dtype, norms_dtype=norms_dtype)
    made = OPERATOR(*given, EPS, dtype)
    single = [None if x is None else [y.float() for y in x] for x in given]
    exact = OPERATOR(*single, EPS, torch.float32)
    assert all(x.dtype == dtype for x in made)
    assert all(torch.equal(x, y.to(dtype)) for x, y in zip(made, exact, strict=True))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_weights_keep_their_channels_first(layout):
    given = lists(torch.float32)
    given[0] = [x.contiguous(memory_format=layout) for x in given[0]]
    weights = OPERATOR(*given, EPS, torch.float32)[: len(CHANNELS)]
    assert [x.stride() for x in weights] == [(45, 1, 15, 5), (5, 1, 5, 5)]


def test_what_is_given_is_written():
    given = lists(torch.float32)
    before = [[y.clone() for y in x] for x in given]
    made = OPERATOR(*given, EPS, torch.float32)
    for x in made:
        x.zero_()
    for one, other in zip(given, before, strict=True):
        assert all(map(torch.equal, one, other))


def test_torch_finds_fault_with_it():
    torch.library.opcheck(OPERATOR, (*lists(torch.float32), EPS, torch.float32))


def test_a_gradient_is_lost_without_a_word():
    given = lists(torch.float32)
    weights = [nn.Parameter(x) for x in given[0]]
    made = OPERATOR(weights, *given[1:], EPS, torch.float32)
    with pytest.raises(RuntimeError, match="not implemented"):
        made[0].sum().backward()
    with torch.no_grad():
        assert not any(x.requires_grad for x in OPERATOR(weights, *given[1:], EPS, torch.float32))
