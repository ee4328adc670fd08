"""Batch norms in training become one operator where that pays; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.kernels import batch_norm as kernel
from backbay_optimizer.kernels import conditions
from backbay_optimizer.passes.batch_norms import batch_norms

ACTIVATIONS = {
    "none": torch.sin,
    "relu": F.relu,
    "relu in place": lambda x: F.relu(x, inplace=True),
    "relu, a method": lambda x: x.relu(),
    "relu, a method in place": lambda x: x.relu_(),
    "silu": lambda x: F.silu(x, inplace=True),
    "hardswish": F.hardswish,
}


class Block(nn.Module):
    """What residual networks repeat."""

    def __init__(self, channels=8):
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x):
        y = F.relu(self.norms[0](self.convolutions[0](x)), inplace=True)
        y = self.norms[1](self.convolutions[1](y))
        y += x
        return F.silu(y)


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift(batch_norms, DEVICES=("cpu",))
    lift(batch_norms, DTYPES=(torch.float32, torch.float64, torch.bfloat16))
    monkeypatch.setattr(kernel, "pays", lambda _: None)


@pytest.fixture
def image():
    torch.manual_seed(0)
    return torch.randn(2, 8, 5, 6).contiguous(memory_format=torch.channels_last)


def normalised(activation=torch.sin, **keywords):
    """Return a function of an image that moves running statistics, which it returns, too."""

    def program(x, mean, variance, weight, bias):
        how = {"training": True, "momentum": 0.2, "eps": 1e-3, **keywords}
        y = activation(F.batch_norm(x, mean, variance, weight, bias, **how))
        return y, mean, variance

    return program


def vectors(dtype=torch.float32):
    return [(torch.rand(8) + 0.5).to(dtype) for _ in range(4)]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_or_running_statistics_become_others(look, image, anywhere, name):
    program, given = normalised(ACTIVATIONS[name]), vectors()
    results, gradients = [], []
    for function in (program, None):
        x, *rest = (t.clone() for t in (image, *given))
        wanted = [t.requires_grad_() for t in (x, *rest[2:])]
        if function is None:
            seen = look(program, x, *rest, passes=[batch_norms])
            result = seen.result
        else:
            result = function(x, *rest)
        results.append(result)
        gradients.append(torch.autograd.grad(result[0].sin().sum(), wanted))
    assert seen.changes["batch_norms"] == 1
    assert [x for x in ("relu", "relu_", "silu", "hardswish") if seen.calls(x)] == []
    assert seen.calls("copy_") == 2
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)
    assert results[0][0].stride() == results[1][0].stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_rewritten_model_is_further_from_the_truth(prove, image, anywhere, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).to(dtype)
    work = Workload(model=model, args=(image.to(dtype).requires_grad_(),))
    changes = prove(work, passes=[batch_norms])
    assert changes["batch_norms"] == 4


def test_running_statistics_of_16_bits_are_rounded_twice(look, image, anywhere):
    given = [x.to(torch.bfloat16) for x in (image, *vectors())]
    given[0].requires_grad_()
    wanted = [x.double() for x in given[1:3]]
    wide = image.double()
    for old, new in zip(
        wanted, (wide.mean((0, 2, 3)), wide.var((0, 2, 3), correction=1)), strict=True
    ):
        old.mul_(0.8).add_(new, alpha=0.2)
    seen = look(normalised(), *given, passes=[batch_norms])
    assert seen.changes["batch_norms"] == 1
    for found, right in zip(given[1:3], wanted, strict=True):
        assert torch.equal(found, right.to(torch.bfloat16))


def test_a_module_without_running_statistics_is_left(look, image, anywhere):
    model = nn.BatchNorm2d(8, track_running_stats=False)
    seen = look(model, image.requires_grad_(), passes=[batch_norms])
    assert seen.changes["batch_norms"] == 1
    torch.testing.assert_close(seen.result, model(image))


def test_a_second_reader_gets_what_is_activated_or_statistics_are_moved_twice(
    look, image, anywhere
):
    def program(x, *given):
        y, *moved = normalised(lambda y: y)(x, *given)
        return F.relu(y) + y, *moved

    given = image.requires_grad_(), *vectors()
    wanted = program(*(t.clone() for t in given))
    seen = look(program, *given, passes=[batch_norms])
    assert seen.changes["batch_norms"] == 1
    torch.testing.assert_close(seen.result, wanted)


LEFT = {
    "in inference": (normalised(training=False), {}, ""),
    "without gradients": (normalised(), {"gradients": False}, "no gradient"),
    "channels first": (normalised(), {"first": True}, "channels are not last"),
    "of another dtype": (
        normalised(),
        {"dtype": torch.float16},
        "of torch.float16: it was measured in 16 bits",
    ),
    "without a weight": (
        lambda x, m, v, _, b: F.batch_norm(x, m, v, bias=b, training=True),
        {},
        "no weight or no bias",
    ),
    "without a bias": (
        lambda x, m, v, w, _: F.batch_norm(x, m, v, w, training=True),
        {},
        "no weight or no bias",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernel_cannot_take_is_replaced(look, image, anywhere, name):
    program, given, why = LEFT[name]
    x = image.contiguous() if given.get("first") else image
    dtype = given.get("dtype", torch.float32)
    x = x.to(dtype)
    x.requires_grad_(given.get("gradients", True))
    seen = look(program, x, *vectors(), passes=[batch_norms])
    assert not seen.changes["batch_norms"]
    assert any(why in reason for reason in (*seen.near, ""))


def test_a_size_that_is_a_symbol_is_cut(look, image, anywhere):
    seen = look(
        normalised(), image.requires_grad_(), *vectors(), passes=[batch_norms], dynamic=True
    )
    assert not seen.changes["batch_norms"]
    assert any("is a symbol" in x for x in seen.near)


def test_one_value_a_channel_has_a_variance(look, anywhere):
    x = torch.ones(1, 8, 1, 1, requires_grad=True)
    error = torch._dynamo.exc.TorchRuntimeError
    with pytest.raises(error, match="Expected more than 1 value per channel"):
        look(nn.BatchNorm2d(8), x, passes=[batch_norms])


def test_what_was_not_measured_is_replaced():
    def image(images=128, channels=64, side=56, dtype=torch.bfloat16):
        return torch.empty(images, channels, side, side, device="cuda", dtype=dtype)

    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(conditions, "has_triton", lambda: True)
        m.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        assert kernel.pays(image()) is None
        assert "multiple of 8" in kernel.pays(image(channels=60))
        assert "elements" in kernel.pays(image(images=1, side=4))
        assert "no kernel for torch.float64" in kernel.pays(image(dtype=torch.float64))
        assert "it is empty" in kernel.pays(image(images=0))
        m.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        assert "9.0" in kernel.pays(image())
        m.setattr(conditions, "has_triton", lambda: False)
        assert "Triton" in kernel.pays(image())


def test_a_bias_that_is_written_before_backward_raises(look, image, anywhere):
    def program(x, mean, variance, weight, bias):
        y, *_ = normalised(F.relu)(x, mean, variance, weight, bias)
        with torch.no_grad():
            bias.mul_(2)
        return y

    x, given = image.requires_grad_(), vectors()
    (wanted,) = torch.autograd.grad(program(x, *(t.clone() for t in given)).sum(), x)
    seen = look(program, x, *given, passes=[batch_norms])
    torch.testing.assert_close(torch.autograd.grad(seen.result.sum(), x), (wanted,))
    assert "something writes its bias, which backward reads" in seen.near


@pytest.mark.parametrize("name", ["relu in place", "relu, a method in place", "silu"])
def test_an_activation_that_no_gradient_passes_has_one(look, image, anywhere, name):
    def program(x, *given):
        y = F.batch_norm(x, *given, training=True)
        with torch.no_grad():
            return ACTIVATIONS[name](y)

    given, results, gradients = vectors(), [], []
    for function in (program, None):
        x, *rest = (t.clone() for t in (image, *given))
        wanted = [t.requires_grad_() for t in (x, *rest[2:])]
        if function is None:
            seen = look(program, x, *rest, passes=[batch_norms])
        results.append(program(x, *rest) if function else seen.result)
        weights = torch.arange(results[-1].numel()).view_as(results[-1]).sin()
        gradients.append(torch.autograd.grad((results[-1] * weights).sum(), wanted))
    assert seen.changes["batch_norms"] == 1
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)
