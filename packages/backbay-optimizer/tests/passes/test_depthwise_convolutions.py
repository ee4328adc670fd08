"""Depthwise convolutions become one call where that pays; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import depthwise_convolution as kernel
from backbay_optimizer.passes.depthwise_convolutions import depthwise_convolutions

OPERATOR = "depthwise_convolution"


class Block(nn.Module):
    """What ConvNeXt repeats."""

    def __init__(self, channels=8, *, bias=True):
        super().__init__()
        how = {"kernel_size": 7, "padding": 3, "groups": channels, "bias": bias}
        self.convolution = nn.Conv2d(channels, channels, **how)
        self.norm = nn.LayerNorm(channels)
        self.linear = nn.Linear(channels, channels)

    def forward(self, x):
        y = self.linear(self.norm(self.convolution(x).permute(0, 2, 3, 1)))
        return x + F.gelu(y).permute(0, 3, 1, 2)


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift(depthwise_convolutions, DEVICES=("cpu",))
    lift(depthwise_convolutions, DTYPES=(torch.float32, torch.bfloat16))
    monkeypatch.setattr(kernel, "pays", lambda *_: None)


@pytest.fixture
def image():
    torch.manual_seed(0)
    return torch.randn(2, 8, 9, 10).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("bias", [False, True])
def test_a_block_is_left_or_its_result_is_laid_out_otherwise(look, image, anywhere, bias):
    model = Block(bias=bias)
    with torch.no_grad():
        wanted = model(image)
        seen = look(model, image, passes=[depthwise_convolutions])
    assert seen.changes["depthwise_convolutions"] == 1
    assert seen.calls("conv2d") == 0
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.stride() == wanted.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_rewritten_model_is_further_from_the_truth(prove, image, anywhere, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).to(dtype)
    work = Workload(model=model, args=(image.to(dtype).requires_grad_(),))
    changes = prove(work, passes=[depthwise_convolutions])
    assert changes["depthwise_convolutions"] == 2


def test_training_has_the_conditions_of_inference(look, image, lift, monkeypatch):
    lift(depthwise_convolutions, DEVICES=("cpu",))
    lift(depthwise_convolutions, DTYPES=(torch.float32,))
    monkeypatch.setattr(kernel, "pays", lambda *given: f"measured: {len(given[-1])}")
    assert kernel.INFERRED != kernel.TRAINED

    def near():
        return {*look(Block(), image, passes=[depthwise_convolutions]).near}

    assert near() == {f"measured: {len(kernel.TRAINED)}"}
    with torch.no_grad():
        assert near() == {f"measured: {len(kernel.INFERRED)}"}


LEFT = {
    "channels first": (
        lambda x, w: F.conv2d(x.contiguous(), w, None, 1, 3, 1, 8),
        "channels are not last",
    ),
    "dilated": (lambda x, w: F.conv2d(x, w, None, 1, 3, 2, 8), "dilation is [2, 2]"),
    "grouped": (lambda x, w: F.conv2d(x, w.expand(-1, 2, -1, -1), None, 1, 3, 1, 4), ""),
    "of another dtype": (lambda x, w: F.conv2d(x.double(), w.double(), groups=8), ""),
    "padded by a word": (lambda x, w: F.conv2d(x, w, padding="same", groups=8), "in numbers"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernel_cannot_take_is_replaced(look, image, anywhere, name):
    program, why = LEFT[name]
    with torch.no_grad():
        seen = look(program, image, torch.randn(8, 1, 7, 7), passes=[depthwise_convolutions])
    assert not seen.changes["depthwise_convolutions"]
    assert any(why in x for x in (*seen.near, ""))


def test_what_was_not_measured_is_replaced():
    def given(images=128, channels=96, side=56, size=7):
        x = torch.empty(images, channels, side, side, device="cuda", dtype=torch.bfloat16)
        return x, torch.empty(channels, 1, size, size, device="cuda", dtype=torch.bfloat16)

    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(conditions, "has_triton", lambda: True)
        m.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        ones, twos, threes = ([1, 1], [2, 2], [3, 3])
        trained = kernel.TRAINED
        assert kernel.pays(*given(), ones, threes) is None
        assert kernel.pays(*given(), ones, threes, trained) is None
        assert "is not of 7 by 7 with a stride of 1, with" in kernel.pays(
            *given(size=5), ones, twos
        )
        assert kernel.pays(*given(size=5), ones, twos, trained) is None
        assert kernel.pays(*given(size=3), twos, ones, trained) is None
        assert "not of 7 by 7" in kernel.pays(*given(size=9), ones, [4, 4], trained)
        assert "not of 7 by 7" in kernel.pays(*given(), twos, threes, trained)
        assert "half as much padding" in kernel.pays(*given(), ones, [0, 0])
        assert "half as much padding" in kernel.pays(*given(), [1, 2], threes)
        assert "multiple of 32" in kernel.pays(*given(channels=80), ones, threes)
        assert kernel.pays(*given(channels=80, size=3), ones, ones, trained) is None
        assert "elements" in kernel.pays(*given(images=1), ones, threes)
        assert "elements" in kernel.pays(*given(images=8), ones, threes)
        assert kernel.pays(*given(images=8), ones, threes, trained) is None
        assert "elements" in kernel.pays(*given(images=8000), ones, threes)
        assert "32 bits" in kernel.pays(*given(images=1, channels=2**17, side=99), ones, threes)
        m.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        assert "9.0" in kernel.pays(*given(), ones, threes)
