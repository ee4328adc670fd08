"""Batch norms that can be folded together are, and none that reads something else by then."""

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.utils import _pytree as pytree

from backbay.graph.values import evaluated, value_of
from backbay_optimizer.kernels.folded_batch_norm import OPERATOR
from backbay_optimizer.passes import folded_norms
from backbay_optimizer.passes.fused_convolutions import fused_convolutions

K = 8


@pytest.fixture(autouse=True)
def _anywhere(lift, monkeypatch):
    module = sys.modules["backbay_optimizer.passes.fused_convolutions"]
    lift(fused_convolutions, DEVICES=("cpu",))
    monkeypatch.setattr(module, "LAUNCH", -(2**20))
    monkeypatch.setattr(module, "FOLDING", -(2**20))


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


class Layer(nn.Module):
    def __init__(self, *, bias=False, **norm):
        super().__init__()
        self.convolution = nn.Conv2d(K, K, 3, padding=1, bias=bias)
        self.norm = nn.BatchNorm2d(K, **norm)
        for x in (*self.norm.buffers(), *self.norm.parameters()):
            if x.dim():
                nn.init.uniform_(x, 0.5, 1.5)

    def forward(self, x):
        return F.relu(self.norm(self.convolution(x)))


class Stack(nn.Sequential):
    """Layers, and something that happens between the first and the second."""

    def __init__(self, *layers, between=None):
        super().__init__(*layers)
        self.between = between
        self.to(memory_format=torch.channels_last).eval()

    def forward(self, x):
        for number, layer in enumerate(self):
            x = layer(x)
            if number == 0 and self.between is not None:
                x = self.between(self, x)
        return x


def fold_calls(look, model):
    torch.manual_seed(0)
    x = channels_last(torch.randn(2, K, 6, 6))
    again = [y.clone() for y in (*model.buffers(), *model.parameters())]
    with torch.no_grad():
        seen = look(model, x, passes=[fused_convolutions])
        for y, before in zip((*model.buffers(), *model.parameters()), again, strict=True):
            y.copy_(before)
        torch.testing.assert_close(seen.result, model(x), rtol=1e-5, atol=1e-5)
    assert seen.changes["fused_convolutions"] == 3, seen.near
    (graph,) = seen.graphs
    return graph, [len(n.args[0]) for n in graph.graph.nodes if n.target is OPERATOR]


def nothing(model, x):
    return x


def writes_a_weight_to_come(model, x):
    model[2].convolution.weight.mul_(2)
    return x


def writes_statistics_to_come(model, x):
    model[1].norm.running_var[:3].add_(1)
    return x


def writes_what_was_folded(model, x):
    model[0].norm.running_mean.add_(1)
    return x


def writes_its_own(model, x):
    return x.mul_(2)


BETWEEN = {
    nothing: [3],
    writes_a_weight_to_come: [2, 1],
    writes_statistics_to_come: [2, 1],
    writes_what_was_folded: [3],
    writes_its_own: [3],
}


@pytest.mark.parametrize(("between", "expected"), BETWEEN.items())
def test_what_is_written_in_between_is_folded_before(look, between, expected):
    model = Stack(Layer(), Layer(), Layer(), between=between)
    assert fold_calls(look, model)[1] == expected


def test_a_kernel_has_more_branches_than_compile_soon(look, monkeypatch):
    monkeypatch.setattr(folded_norms, "MOST", 2)
    assert fold_calls(look, Stack(Layer(), Layer(), Layer()))[1] == [2, 1]


KINDS = {
    "a bias": {"bias": True},
    "another epsilon": {"eps": 1e-2},
    "no scale and shift": {"affine": False},
}


@pytest.mark.parametrize("other", KINDS.values(), ids=KINDS)
def test_what_is_of_another_kind_is_in_one_call_with_the_others(look, other):
    model = Stack(Layer(), Layer(**other), Layer())
    assert fold_calls(look, model)[1] == [2, 1]


def test_a_weight_that_is_computed_is_folded_before_it_is_there(look):
    class Computed(Layer):
        def forward(self, x):
            weight = self.convolution.weight * x.mean()
            return F.relu(self.norm(F.conv2d(x, channels_last(weight), padding=1)))

    assert fold_calls(look, Stack(Layer(), Computed(), Layer()))[1] == [2, 1]


def test_values_that_are_written_by_hand_differ_from_those_that_are_computed(look):
    graph, _ = fold_calls(look, Stack(Layer(), Layer(bias=True), Layer()))
    places = [n for n in graph.graph.nodes if n.target is OPERATOR]
    places += [n for x in places for n in x.users]
    places += [n for n in graph.graph.nodes if "convolution_relu" in str(n.target)]
    assert len(places) == 2 + 6 + 3
    for node in places:
        assert described(value_of(node)) == described(evaluated(node))


def described(value):
    return [(x.shape, x.stride(), x.dtype, x.device) for x in pytree.tree_leaves(value)]


def test_branches_side_by_side_are_folded_late(look):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(3))
            self.to(memory_format=torch.channels_last).eval()

        def forward(self, x):
            a, b, c = self.layers
            one, other, third = a.convolution(x), b.convolution(x), c.convolution(x)
            return F.relu(c.norm(third)) + F.relu(a.norm(one)) + F.relu(b.norm(other))

    assert fold_calls(look, Branches())[1] == [3]
