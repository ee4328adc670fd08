"""Convolutions of one pixel become linear layers; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.passes.pooled_convolutions import pooled_convolutions

LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.fixture(autouse=True)
def anywhere(lift):
    lift(pooled_convolutions, DEVICES=("cpu",))
    lift(pooled_convolutions, DTYPES=(torch.float32, torch.float64, torch.bfloat16))


class Squeezed(nn.Module):
    """Squeeze-and-excitation, of images that a convolution made."""

    def __init__(self, channels=8, bias=True):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.reduce = nn.Conv2d(channels, 4, 1, bias=bias)
        self.expand = nn.Conv2d(4, channels, 1, bias=bias)

    def forward(self, x):
        x = self.first(x)
        gate = self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * gate.sigmoid()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codegen", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_squeeze_and_excitation_is_right(prove, layout, bias, codegen):
    torch.manual_seed(0)
    model = Squeezed(bias=bias).to(memory_format=layout)
    x = torch.randn(2, 3, 5, 6).contiguous(memory_format=layout)
    work = Workload(model=model, args=(x,))
    changes = prove(work, passes=[pooled_convolutions], codegen=codegen, train=True)
    assert changes["pooled_convolutions"] == 2


def test_inference_is_left_alone(look):
    x, weight = torch.randn(2, 8, 1, 1), torch.randn(6, 8, 1, 1, requires_grad=True)
    with torch.no_grad():
        seen = look(F.conv2d, x, weight, passes=[pooled_convolutions])
    assert not seen.changes["pooled_convolutions"]
    assert "no gradient is wanted" in seen.near


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stride", [1, 2])
def test_results_and_gradients_keep_their_layout(look, count, layout, stride):
    torch.manual_seed(0)
    x = torch.randn(count, 8, 1, 1).to(memory_format=layout)
    weight = torch.randn(6, 8, 1, 1).to(memory_format=layout)
    found = []
    for passes in ([], [pooled_convolutions]):
        leaves = [t.clone().requires_grad_() for t in (x, weight)]
        seen = look(lambda x, w: F.conv2d(x, w, stride=stride), *leaves, passes=passes)
        assert seen.changes["pooled_convolutions"] == len(passes)
        seen.result.sum().backward()
        found.append([seen.result, *(t.grad for t in leaves)])
    for old, new in zip(*found, strict=True):
        torch.testing.assert_close(new, old)
    assert found[0][0].stride() == found[1][0].stride()


def programs():
    def padded(x, w):
        return F.conv2d(x, w, padding=1)

    def only_padding(x, w):  # its one window begins before the pixel
        return F.conv2d(x, w, stride=3, padding=1)

    def grouped(x, w):
        return F.conv2d(x, w[:, :4], groups=2)

    def unbatched(x, w):
        return F.conv2d(x[0], w)

    return [x for x in locals().values() if callable(x)]


@pytest.mark.parametrize("program", programs(), ids=lambda x: x.__name__)
def test_others_are_left(look, program):
    x, weight = torch.randn(2, 8, 1, 1), torch.randn(6, 8, 1, 1, requires_grad=True)
    seen = look(program, x, weight, passes=[pooled_convolutions])
    assert not seen.changes["pooled_convolutions"]
    torch.testing.assert_close(seen.result, program(x, weight))


@pytest.mark.parametrize(("pixels", "kernel"), [((2, 1), 1), ((1, 2), 1), ((3, 3), 3)])
def test_more_pixels_are_an_image(look, pixels, kernel):
    x, weight = torch.randn(2, 8, *pixels), torch.randn(6, 8, kernel, kernel, requires_grad=True)
    seen = look(F.conv2d, x, weight, passes=[pooled_convolutions])
    assert not seen.changes["pooled_convolutions"]
    assert not seen.near


def test_sizes_that_are_symbols_are_left(look):
    x, weight = torch.randn(4, 8, 1, 1), torch.randn(6, 8, 1, 1, requires_grad=True)
    seen = look(F.conv2d, x, weight, passes=[pooled_convolutions], dynamic=True)
    assert not seen.changes["pooled_convolutions"]


def test_under_autocast_it_is_as_before(look):
    x, weight = torch.randn(4, 8, 1, 1), torch.randn(6, 8, 1, 1, requires_grad=True)

    def program(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return F.conv2d(x, w)

    seen = look(program, x, weight, passes=[pooled_convolutions])
    assert seen.result.dtype == torch.bfloat16
    torch.testing.assert_close(seen.result, program(x, weight))


def test_a_cpu_is_left_alone(look, lift):
    lift(pooled_convolutions, DEVICES=("cuda",))
    x, weight = torch.randn(4, 8, 1, 1), torch.randn(6, 8, 1, 1, requires_grad=True)
    seen = look(F.conv2d, x, weight, passes=[pooled_convolutions])
    assert not seen.changes["pooled_convolutions"]
    assert "it runs on cpu: it is about cuDNN's kernels" in seen.near
