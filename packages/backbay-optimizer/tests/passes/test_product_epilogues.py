"""Products and what follows them become one call, and others don't; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.kernels import linear_epilogue as kernel
from backbay_optimizer.passes.product_epilogues import product_epilogues

NAME = "product_epilogues"
assert callable(kernel.linear_epilogue)  # registers it
OPERATOR = torch.ops.backbay.linear_epilogue.default
C = 16


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift(product_epilogues, DEVICES=("cpu",), DTYPES=(torch.float32, torch.bfloat16))
    monkeypatch.setattr(kernel, "pays", lambda *_, **__: None)


class Block(nn.Module):
    """What ConvNeXt repeats."""

    def __init__(self, channels=C):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.up, self.down = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)
        self.gamma = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x):
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = F.dropout(F.gelu(self.up(y)), 0.0)
        y = F.dropout(self.down(y), 0.5, training=False).permute(0, 3, 1, 2)
        return y * self.gamma.reshape(1, -1, 1, 1) + x


class Inverted(nn.Module):
    """What EfficientNet repeats."""

    def __init__(self, channels=C, activation=F.silu):
        super().__init__()
        wide = 3 * channels
        self.up = nn.Conv2d(channels, wide, 1, bias=False)
        self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.reduce, self.expand = nn.Conv2d(wide, 4, 1), nn.Conv2d(4, wide, 1)
        self.down = nn.Conv2d(wide, channels, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (wide, wide, channels))
        for norm in self.norms:
            for value in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
                nn.init.uniform_(value, 0.5, 1.5)
        self.activation = activation

    def forward(self, x):
        y = self.activation(self.norms[0](self.up(x)), inplace=True)
        y = self.activation(self.norms[1](self.depthwise(y)), inplace=True)
        gate = self.expand(F.silu(self.reduce(y.mean((2, 3), keepdim=True)))).sigmoid()
        return self.norms[2](self.down(y * gate)) + x


def image(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(2, C, 5, 6).contiguous(memory_format=torch.channels_last).to(dtype)


BLOCKS = {
    "ConvNeXt's": (Block, 2),
    "EfficientNet's": (Inverted, 2),
    "with hard-swish": (lambda: Inverted(activation=F.hardswish), 2),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_left_or_its_result_is_laid_out_otherwise(look, anywhere, name):
    make, count = BLOCKS[name]
    model = make().eval()
    with torch.no_grad():
        wanted = model(image())
        seen = look(model, image(), passes=[product_epilogues])
    assert seen.changes[NAME] == count, seen.near
    assert not seen.calls("linear") + seen.calls("batch_norm") - (name != "ConvNeXt's")
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.stride() == wanted.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_the_rewritten_model_is_further_from_the_truth(prove, anywhere, name, dtype):
    torch.manual_seed(0)
    make, count = BLOCKS[name]
    model = nn.Sequential(make(), make()).to(dtype).eval()
    work = Workload(model=model, args=(image(dtype),))
    changes = prove(work, passes=[product_epilogues], train=False)
    assert changes[NAME] == 2 * count


def test_images_that_only_a_mean_reads_are_not_entered(look, anywhere):
    with torch.no_grad():
        seen = look(Inverted().eval(), image(), passes=[product_epilogues])
    (graph,) = seen.graphs
    calls = graph.graph.find_nodes(op="call_function", target=OPERATOR)
    assert [x.args[15] for x in calls] == ["none", "silu"]
    assert [x.args[11] is None for x in calls] == [True, False]


class Shared(Inverted):
    """Something else reads what is gated, too."""

    def forward(self, x):
        y = F.silu(self.norms[1](self.depthwise(self.up(x))))
        gate = self.expand(F.silu(self.reduce(y.mean((2, 3), keepdim=True)))).sigmoid()
        return self.norms[2](self.down(y * gate)), y.sin()


def test_images_that_are_written_anyway_are_computed_again(look, anywhere):
    model = Shared().eval()
    with torch.no_grad():
        wanted = model(image())
        seen = look(model, image(), passes=[product_epilogues])
    (graph,) = seen.graphs
    (call,) = graph.graph.find_nodes(op="call_function", target=OPERATOR)
    assert call.args[15] == "none"
    torch.testing.assert_close(seen.result, wanted)


def feed(x, w, v, *, activate=F.gelu, after=lambda y: y):
    """Return what a product reads."""
    return F.linear(after(activate(F.linear(x, w, v))), w)


def norm(y, v, **how):
    return F.batch_norm(y, v, v.abs() + 1, v, v, **how)


def gate(v):
    return v.sigmoid().view(1, -1, 1, 1).expand(2, -1, 1, 1)


FUSED = {
    "GELU": lambda x, w, v, i: feed(x, w, v),
    "SiLU": lambda x, w, v, i: feed(x, w, None, activate=F.silu),
    "in place": lambda x, w, v, i: feed(x, w, v, activate=lambda y: F.silu(y, inplace=True)),
    "a view after it": lambda x, w, v, i: feed(x, w, v, after=lambda y: y.reshape(-1, C)),
    "a layer scale": lambda x, w, v, i: F.linear(x, w, v) * v + x,
    "a layer scale the other way": lambda x, w, v, i: torch.add(x, v * F.linear(x, w)),
    "a layer scale in place": lambda x, w, v, i: F.linear(x, w, v).mul_(v).add_(x),
    "a convolution": lambda x, w, v, i: F.hardswish(norm(F.conv2d(i, w[..., None, None], v), v)),
    "a batch norm": lambda x, w, v, i: norm(F.conv2d(i, w[..., None, None], v), v),
    "a residual": lambda x, w, v, i: norm(F.conv2d(i, w[..., None, None]), v) + i,
    "a gate": lambda x, w, v, i: norm(F.conv2d(gate(v) * i, w[..., None, None]), v),
}


def given():
    torch.manual_seed(0)
    return torch.randn(3, 5, C), torch.randn(C, C) / 4, torch.randn(C), image()


@pytest.mark.parametrize("name", FUSED)
def test_steps_that_could_be_one_are_not(look, anywhere, name):
    with torch.no_grad():
        wanted = FUSED[name](*given())
        seen = look(FUSED[name], *given(), passes=[product_epilogues])
    assert seen.changes[NAME] == 1, seen.near
    torch.testing.assert_close(seen.result, wanted, rtol=1e-4, atol=1e-5)
    assert seen.result.stride() == wanted.stride()


def used_twice(x, w, v, i):
    y = F.linear(x, w, v)
    return F.gelu(y), y


def written_between(x, w, v, i):
    y = F.conv2d(i, w[:, :, None, None])
    i.add_(1)
    return norm(y, v)


LEFT = {
    "GELU by tanh": lambda x, w, v, i: F.gelu(F.linear(x, w), approximate="tanh"),
    "used twice": used_twice,
    "read by what fuses": lambda x, w, v, i: F.silu(F.linear(x, w)) * x,
    "a factor that is no vector": lambda x, w, v, i: F.linear(x, w) * x + x,
    "a factor of rows": lambda x, w, v, i: F.linear(x, w) * x[:, :, :1] + x,
    "a sum that is broadcast": lambda x, w, v, i: F.linear(x, w) * v + v,
    "its input is written between": written_between,
    "in training": lambda x, w, v, i: norm(
        F.conv2d(i, w[:, :, None, None]), v.clone(), training=True
    ),
    "of three by three": lambda x, w, v, i: norm(
        F.conv2d(i, w.expand(3, 3, C, C).permute(2, 3, 0, 1)), v
    ),
    "with a stride": lambda x, w, v, i: norm(F.conv2d(i, w[:, :, None, None], stride=2), v),
    "padded": lambda x, w, v, i: norm(F.conv2d(i, w[:, :, None, None], padding=1), v),
    "in groups": lambda x, w, v, i: norm(F.conv2d(i, w[:, :4, None, None], groups=4), v),
    "of one pixel": lambda x, w, v, i: norm(F.conv2d(i[:, :, :1, :1], w[:, :, None, None]), v),
    "channels first": lambda x, w, v, i: norm(F.conv2d(i.contiguous(), w[:, :, None, None]), v),
    "of two dtypes": lambda x, w, v, i: F.linear(x, w).double() * v.double() + x.double(),
    "without a batch norm": lambda x, w, v, i: F.silu(F.conv2d(i, w[:, :, None, None], v)),
    "without inputs": lambda x, w, v, i: F.silu(F.linear(x[..., :0], w[:, :0], v)),
    "a bias of one number": lambda x, w, v, i: F.silu(F.linear(x, w, v[:1])),
    "a bias of rows": lambda x, w, v, i: F.silu(F.linear(x, w, x[:, :, :1])),
    "a bias of rows, scaled": lambda x, w, v, i: F.linear(x, w, x) * v + x,
    "a weight of one dimension": lambda x, w, v, i: F.silu(F.linear(x, w[0])),
    "a gate of another shape": lambda x, w, v, i: F.conv2d(i * i, w[:, :, None, None]),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_something_else_is_replaced(look, anywhere, name):
    with torch.no_grad():
        wanted = LEFT[name](*given())
        seen = look(LEFT[name], *given(), passes=[product_epilogues])
    assert not seen.changes[NAME]
    torch.testing.assert_close(seen.result, wanted)


def test_a_gradient_is_lost(look, anywhere):
    x, w, v, i = given()
    seen = look(FUSED["GELU"], x, w.requires_grad_(), v, i, passes=[product_epilogues])
    assert not seen.changes[NAME]
    assert "a gradient is wanted" in seen.near


@pytest.mark.parametrize("name", BLOCKS)
def test_a_symbolic_size_becomes_a_number(look, anywhere, name):
    with torch.no_grad():
        seen = look(
            BLOCKS[name][0]().eval(),
            image(),
            passes=[product_epilogues],
            dynamic=True,
        )
    assert not seen.changes[NAME]
    assert {x for x in seen.near if "symbol" in x}
