"""Products and what follows them become one call, and others don't; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.kernels import linear_epilogue as kernel
from backbay_optimizer.passes.product_epilogues import product_epilogues

NAME = "product_epilogues"
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
