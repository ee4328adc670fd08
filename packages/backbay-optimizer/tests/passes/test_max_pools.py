"""Maxima over windows become one operator in training; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import max_pool as kernel
from backbay_optimizer.passes.max_pools import max_pools


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift(max_pools, DEVICES=("cpu",))
    lift(max_pools, DTYPES=(torch.float32, torch.bfloat16))
    monkeypatch.setattr(kernel, "pays", lambda _: None)


@pytest.fixture
def image():
    torch.manual_seed(0)
    x = torch.randn(2, 8, 9, 10).contiguous(memory_format=torch.channels_last)
    return x.requires_grad_()


SPELLINGS = {
    "a module": nn.MaxPool2d(3, 2, 1),
    "a function": lambda x: F.max_pool2d(x, (3, 3), stride=[2, 2], padding=1),
    "without a padding": lambda x: F.max_pool2d(x, 3, 2),
    "with a stride of 1": lambda x: F.max_pool2d(x, 3, 1, 1),
    "with a stride that defaults to its size": lambda x: F.max_pool2d(x.bfloat16(), 2).float(),
    "torch's": lambda x: torch.max_pool2d(x, 3, 2, 1),
    "with sizes that need no rounding up": lambda x: F.max_pool2d(
        F.pad(x, (0, 1)).contiguous(memory_format=torch.channels_last), 3, 2, 1, ceil_mode=True
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_left_or_differs(look, image, anywhere, name):
    program = SPELLINGS[name]
    wanted = program(image)
    seen = look(lambda x: program(x), image, passes=[max_pools])
    assert seen.changes["max_pools"] == 1
    torch.testing.assert_close(seen.result, wanted, rtol=0, atol=0)
    assert seen.result.stride() == wanted.stride()
    found, other = (torch.autograd.grad(y.sin().sum(), image) for y in (seen.result, wanted))
    torch.testing.assert_close(found, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_rewritten_model_is_further_from_the_truth(prove, image, anywhere, dtype):
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)).to(dtype)
    work = Workload(model=model, args=(image.detach().to(dtype).requires_grad_(),))
    assert prove(work, passes=[max_pools])["max_pools"] == 1


LEFT = {
    "without gradients": (lambda x: F.max_pool2d(x.detach(), 3, 2, 1), "no gradient"),
    "channels first": (lambda x: F.max_pool2d(x.contiguous(), 3, 2, 1), "channels are not last"),
    "another window": (lambda x: F.max_pool2d(x, 5, 2), "such a window"),
    "two by two, in float32": (lambda x: F.max_pool2d(x, 2), "in float32 it was slower"),
    "one that is not square": (lambda x: F.max_pool2d(x, (3, 2), 2, 1), "such a window"),
    "with a stride of 3": (lambda x: F.max_pool2d(x, 3, padding=1), "such a window"),
    "dilated": (lambda x: F.max_pool2d(x, 3, 2, 1, 2), "has gaps"),
    "rounded up": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), "rounds sizes up"),
    "with indices": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[0], ""),
    "of one image": (lambda x: F.max_pool2d(x[0], 3, 2, 1), "no batch"),
    "of another dtype": (lambda x: F.max_pool2d(x.half(), 3, 2, 1), "float16"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernel_cannot_take_is_replaced(look, image, anywhere, name):
    program, why = LEFT[name]
    seen = look(program, image, passes=[max_pools])
    assert not seen.changes["max_pools"]
    assert any(why in x for x in (*seen.near, ""))


def test_a_size_that_is_a_symbol_is_taken(look, image, anywhere):
    seen = look(SPELLINGS["a function"], image, passes=[max_pools], dynamic=True)
    assert not seen.changes["max_pools"]
    assert any("is a symbol" in x for x in seen.near)


def test_what_was_not_measured_is_replaced():
    def image(images=128, channels=64, dtype=torch.bfloat16):
        return torch.empty(images, channels, 112, 112, device="cuda", dtype=dtype)

    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(conditions, "has_triton", lambda: True)
        m.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        assert kernel.pays(image()) is None
        assert "multiple of 8" in kernel.pays(image(channels=60))
        assert kernel.pays(image(images=1)) is None
        assert "elements" in kernel.pays(image(images=1, channels=56))
        assert kernel.pays(image(images=25, dtype=torch.float32)) is None
        assert "elements" in kernel.pays(image(images=20, dtype=torch.float32))
        assert "no kernel for torch.float64" in kernel.pays(image(dtype=torch.float64))
        assert "it is empty" in kernel.pays(image(images=0))
        assert "too many pixels" in kernel.pays(image(images=2**18, channels=8))
        m.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        assert "9.0" in kernel.pays(image())
        m.setattr(conditions, "has_triton", lambda: False)
        assert "Triton" in kernel.pays(image())
