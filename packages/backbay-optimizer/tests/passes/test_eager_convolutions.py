"""Convolutions whose weights outweigh their activations are called as eager's, and no others."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.kernels.fused_convolution import PLAIN as OPERATOR
from backbay_optimizer.passes.eager_convolutions import eager_convolutions

K, SIDE = 128, 4
"""A convolution of 147,456 weights and a few thousand activations."""


def tensors(dtype=torch.float32, groups=1, *, train=False):
    torch.manual_seed(0)
    shapes = (2, K, SIDE, SIDE), (K, K // groups, 3, 3), (K,)
    return [torch.randn(x).to(dtype).requires_grad_(train) for x in shapes]


HEAVY = {
    "padded": lambda x, w, b: F.conv2d(x, w, b, padding=1),
    "by name": lambda x, w, b: torch.conv2d(input=x, weight=w, bias=b, stride=(2, 1)) * 2,
    "by position": lambda x, w, b: torch.conv2d(x, w, None, 1, (1, 2), 2, 1) + b[:, None, None],
    "written afterwards": lambda x, w, b: F.conv2d(x, w, b, padding=1).relu_().add_(1),
}


@pytest.mark.parametrize("program", HEAVY.values(), ids=HEAVY)
def test_a_heavy_convolution_is_left_to_a_layout_that_copies_its_weights(look, program):
    given = tensors()
    seen = look(program, *given, passes=[eager_convolutions])
    assert seen.changes["eager_convolutions"] == 1
    assert [n.target for n in seen.graphs[0].graph.nodes].count(OPERATOR) == 1
    assert not seen.calls("conv2d")
    expected = program(*given)
    assert seen.result.stride() == expected.stride()
    torch.testing.assert_close(seen.result, expected, rtol=0, atol=0)


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


LEFT = {
    "many pixels": (lambda x, w, b: F.conv2d(x.repeat(1, 1, 8, 8), w, b), "activations"),
    "few weights": (lambda x, w, b: F.conv2d(x[:, :9] * 1, w[:, :9] * 1, b), "activations"),
    "one by one": (lambda x, w, b: F.conv2d(x, w.view(-1, K, 1, 1), b.repeat(9)), "same time"),
    "an input with its channels last": (
        lambda x, w, b: F.conv2d(channels_last(x), w, b),
        "channels first",
    ),
    "a weight with its channels last": (
        lambda x, w, b: F.conv2d(x, channels_last(w), b),
        "channels first",
    ),
    "an input with gaps": (lambda x, w, b: F.conv2d(x[..., 1:], w, b), "channels first"),
    "no batch": (lambda x, w, b: F.conv2d(x[0], w, b), "no batch"),
    "padding by a word": (lambda x, w, b: F.conv2d(x, w, b, padding="same"), "'same'"),
}


@pytest.mark.parametrize(("program", "reason"), LEFT.values(), ids=LEFT)
def test_a_convolution_that_gains_nothing_is_taken_from_inductor(look, program, reason):
    given = tensors()
    seen = look(program, *given, passes=[eager_convolutions])
    assert not seen.changes["eager_convolutions"]
    assert len(seen.near) == 1
    assert reason in seen.near[0]
    torch.testing.assert_close(seen.result, program(*given))


def test_a_convolution_that_is_trained_loses_its_gradient(look):
    given = tensors(train=True)
    seen = look(HEAVY["padded"], *given, passes=[eager_convolutions])
    assert seen.near == ["a gradient is wanted"]
    with torch.no_grad():
        seen = look(HEAVY["padded"], *given, passes=[eager_convolutions])
    assert seen.changes["eager_convolutions"] == 1


def test_a_part_of_the_graph_without_gradients_is_taken_for_training(look):
    def program(x, w, b):
        with torch.no_grad():
            y = F.conv2d(x, w, b, padding=1)
        return y * b[:, None, None]

    given = tensors(train=True)
    seen = look(program, *given, passes=[eager_convolutions])
    assert seen.changes["eager_convolutions"] == 1
    torch.testing.assert_close(seen.result, program(*given), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_another_dtype_is_taken_without_a_measurement(look, dtype):
    given = tensors(dtype)
    seen = look(HEAVY["padded"], *given, passes=[eager_convolutions])
    assert not seen.changes["eager_convolutions"]
    assert "pays in float32" in seen.near[0]


def test_autocast_is_overlooked(look):
    def program(x, w, b):
        with torch.autocast("cpu", torch.bfloat16):
            return F.conv2d(x, w, b, padding=1)

    seen = look(program, *tensors(), passes=[eager_convolutions])
    assert not seen.changes["eager_convolutions"]
    assert seen.result.dtype == torch.bfloat16


def test_a_symbolic_size_becomes_a_constant(look):
    x, w, b = tensors()
    seen = look(HEAVY["padded"], x, w, b, passes=[eager_convolutions], dynamic=True)
    assert not seen.changes["eager_convolutions"]
    assert "symbol" in seen.near[0]


class Net(nn.Module):
    """Convolutions of both kinds, between which activations change their layout."""

    def __init__(self):
        super().__init__()
        self.light = nn.Conv2d(3, K, 3, padding=1)
        self.heavy = nn.Conv2d(K, K, 3, padding=1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(K)
        self.grouped = nn.Conv2d(K, 4 * K, 5, padding=2, groups=2)
        self.point = nn.Conv2d(4 * K, 7, 1)

    def forward(self, x):
        x = self.norm(self.heavy(F.relu(self.light(x), inplace=True))).relu_()
        return self.point(F.gelu(self.grouped(x))).mean((2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_what_is_between_two_layouts_is_wrong(prove, codegen, batch):
    torch.manual_seed(0)
    workload = Workload(model=Net().eval(), args=(torch.randn(batch, 3, 7, 9),))
    changes = prove(workload, passes=[eager_convolutions], codegen=codegen, train=False)
    assert changes["eager_convolutions"] == 2


def test_the_operator_has_other_gradients_or_another_fake_than_its_kernel():
    x, w, b = (y.double().requires_grad_() for y in tensors())
    how = ([1, 1], [1, 0], [1, 1], 1)
    torch.library.opcheck(OPERATOR, (x, w, b, *how))
    torch.library.opcheck(OPERATOR, (channels_last(x.detach()), w, None, *how))
    given = (x[:1, :2], w[:3, :2], b[:3])
    assert torch.autograd.gradcheck(lambda *y: OPERATOR(*y, *how), given)
