"""Batch norms of training on a CUDA device: the kernels themselves, and in Inductor's code."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import batch_norm as module  # noqa: E402
from backbay_optimizer.kernels import max_pool  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
CASES = [  # images, channels, height, width: of ResNet-50 and EfficientNet, and odd ones
    (128, 64, 112, 112),
    (128, 256, 56, 56),
    (128, 2048, 7, 7),
    (128, 24, 56, 56),
    (128, 1152, 7, 7),
    (3, 70, 9, 23),
    (1, 1, 3, 3),
    (5, 8, 1, 1),
    (2, 133, 15, 17),
]
SMALL = CASES[5:]
ACTIVATIONS = {"none": lambda x: x, "relu": F.relu, "silu": F.silu, "hardswish": F.hardswish}


def inputs(case, dtype, *, centre=1.0, deviation=2.0):
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator, device="cuda")

    x = (draw(*case) * deviation + centre).to(dtype).contiguous(memory_format=torch.channels_last)
    return x, draw(case[1]).to(dtype), draw(case[1]).to(dtype)


def error(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-6)).item()


def right(x, weight, bias, activation):
    """Return y in float64, as eager's formulas have it: cuDNN's own don't take it."""
    wide, others = x.double(), [0, 2, 3]
    mean, var = wide.mean(others, keepdim=True), wide.var(others, correction=0, keepdim=True)
    column = [t.double()[:, None, None] for t in (weight, bias)]
    y = (wide - mean) * (var + 1e-5).rsqrt() * column[0] + column[1]
    return ACTIVATIONS[activation](y), mean.flatten(), var.flatten()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(x, torch.bfloat16) for x in CASES] + [(x, y) for x in SMALL for y in TOLERANCE],
    ids=str,
)
def test_results_or_gradients_stray_from_float64(case, dtype, activation):
    given = [t.requires_grad_() for t in inputs(case, dtype)]
    assert module.refusal(given[0]) is None
    y, mean, variance, _ = module.batch_norm(*given, 1e-5, activation)
    wanted, true_mean, true_variance = right(*given, activation)
    torch.testing.assert_close(mean.double(), true_mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance.double(), true_variance, rtol=1e-5, atol=1e-5)
    assert y.stride() == given[0].stride()
    assert error(y.detach(), wanted.detach()) < TOLERANCE[dtype]
    dy = torch.randn_like(y)
    found = torch.autograd.grad(y, given, dy)
    for one, other in zip(found, torch.autograd.grad(wanted, given, dy.double()), strict=True):
        assert one.dtype == dtype
        assert error(one, other.double()) < 4 * TOLERANCE[dtype]
    again, *_ = module.batch_norm(*given, 1e-5, activation)
    assert all(map(torch.equal, found, torch.autograd.grad(again, given, dy)))


@pytest.mark.parametrize("centre", [0.0, 100.0, 1e4])
def test_a_mean_far_from_zero_costs_the_variance(centre):
    x, *_ = inputs((64, 40, 28, 28), torch.float32, centre=centre, deviation=0.1)
    _, mean, variance, _ = module.batch_norm(x, *inputs((1, 40, 1, 2), x.dtype)[1:], 1e-5)
    wide = x.double()
    assert error(mean, wide.mean((0, 2, 3))) < 1e-6
    assert error(variance, wide.var((0, 2, 3), correction=0)) < 1e-4


@pytest.mark.parametrize("last", [False, True])
def test_a_layout_is_misread(last):
    x, weight, bias = inputs((2, 32, 12, 10), torch.float32)
    x = x if last else x.contiguous()
    strided = torch.cat((x, x), 3)[..., ::2]
    for given in (x, strided, x.transpose(2, 3)):
        leaf = given.detach().requires_grad_()
        y, *_ = module.batch_norm(leaf, weight, bias, 1e-5, "relu")
        wanted, *_ = right(leaf, weight, bias, "relu")
        assert error(y, wanted) < 1e-5
        dy = torch.randn_like(y).transpose(2, 3).contiguous().transpose(2, 3)
        found, other = (torch.autograd.grad(z, leaf, dy.to(z.dtype))[0] for z in (y, wanted))
        assert error(found, other.double()) < 1e-5


def test_torch_finds_fault_in_the_registration():
    given = [t.requires_grad_() for t in inputs((2, 8, 9, 9), torch.float32)]
    assert callable(module.batch_norm)
    torch.library.opcheck(torch.ops.backbay.batch_norm.default, (*given, 1e-5, "silu"))


def test_offsets_beyond_32_bits_are_wrong():
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GB of free memory")
    x = torch.empty(270, 200, 200, 208, device="cuda", dtype=torch.bfloat16).movedim(-1, 1)
    x.normal_()
    x[-1] += 3  # what is read first is far from the rest
    assert x.numel() > 2**31
    from torch.library import wrap_triton

    from backbay_optimizer.kernels import batch_norm_device as device

    mean, variance = module.launch_statistics(wrap_triton(device.batch_norm_statistics_kernel), x)
    parts = [t.double() for t in x.split(27)]
    true = sum(t.sum((0, 2, 3)) for t in parts) * 208 / x.numel()
    squares = sum((t - true[:, None, None]).square().sum((0, 2, 3)) for t in parts)
    assert (mean - true).abs().max() < 1e-4  # of a standard deviation
    assert error(variance, squares * 208 / x.numel()) < 1e-4
    ones = torch.ones(208, device="cuda")
    kernel = wrap_triton(device.batch_norm_sums_kernel)
    total, product = module.launch_sums(kernel, x, x, mean, ones, ones, ones, "none")
    assert error(total, true * x.numel() / 208) < 1e-3
    assert error(product, squares) < 1e-4


def test_as_many_rows_as_32_bits_count_are_wrong():
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GB of free memory")
    x = torch.empty(1, 1, 2**31 - 8, device="cuda", dtype=torch.bfloat16).normal_(1)
    from torch.library import wrap_triton

    from backbay_optimizer.kernels import batch_norm_device as device

    mean, variance = module.launch_statistics(wrap_triton(device.batch_norm_statistics_kernel), x)
    true = x.sum(dtype=torch.float64) / x.numel()
    squares = sum((t.double() - true).square().sum() for t in x.split(2**27, dim=2))
    assert (mean - true).abs() < 1e-4
    assert error(variance, squares / x.numel()) < 1e-4
    one = torch.ones(1, device="cuda")
    kernel = wrap_triton(device.batch_norm_sums_kernel)
    total, product = module.launch_sums(kernel, x, x, mean, one, one, one, "none")
    assert error(total, true * x.numel()) < 1e-4
    assert error(product, squares) < 1e-4


class Network(nn.Module):
    """What ResNet-50 and EfficientNet are made of."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, 2, 1, bias=False)
        self.narrow = nn.Conv2d(64, 64, 1, bias=False)
        self.wide = nn.Conv2d(64, 64, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(3))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.norms[0](self.stem(x)), inplace=True)
        x = F.max_pool2d(x, 3, 2, 1)
        y = F.silu(self.norms[1](self.narrow(x)), inplace=True)
        y = y * y.mean((2, 3), keepdim=True).sigmoid()
        y = self.norms[2](self.wide(y))
        y += x
        return self.linear(F.relu(y).mean((2, 3)))


def steps(model, call, images, count=3):
    """Train; return losses, and the gradients of the first step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses, gradients = [], None
    for _ in range(count):
        optimizer.zero_grad()
        loss = call(images).float().square().mean()
        loss.backward()
        if gradients is None:
            gradients = [x.grad.clone() for x in model.parameters()]
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses), gradients


@pytest.mark.parametrize("graphs", [False, True])
def test_a_network_that_is_trained_goes_elsewhere_than_in_float64(graphs, reports, monkeypatch):
    monkeypatch.setattr(max_pool, "PAYS_FROM", 0)
    torch.manual_seed(0)
    images = torch.randn(16, 3, 128, 128, device="cuda")
    images = images.contiguous(memory_format=torch.channels_last)
    model = Network().cuda().to(memory_format=torch.channels_last)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    truth = copy.deepcopy(model).double()
    half = copy.deepcopy(model)
    compiled = torch.compile(half, backend=backbay, options={"cuda_graphs": graphs})

    def call(images):
        with torch.autocast("cuda", torch.bfloat16):
            return compiled(images)

    losses, gradients = steps(half, call, images)
    plain = copy.deepcopy(model)
    eager = torch.autocast("cuda", torch.bfloat16)(plain)
    eager_losses, eager_gradients = steps(plain, eager, images)
    true_losses, true_gradients = steps(truth, truth, images.double())
    changes = {x.name: x.changes for x in reports if x.changes}
    assert changes["batch_norms"] == 3
    assert changes["max_pools"] == 1
    allowed = 2 * (eager_losses.double() - true_losses).abs().max() + 1e-3
    assert (losses.double() - true_losses).abs().max() < allowed
    for one, other, true in zip(gradients, eager_gradients, true_gradients, strict=True):
        assert error(one, true) < 1.5 * error(other, true) + 1e-2
    for (name, one), true in zip(half.named_buffers(), truth.buffers(), strict=True):
        assert error(one, true.double()) < 2e-2, name
    for own in (half, truth, plain):
        own.eval()
    with torch.no_grad():
        true = truth(images.double())
        assert error(call(images), true) < 1.5 * error(eager(images), true) + 1e-2


def test_two_backward_passes_or_a_second_derivative_are_silently_wrong():
    x, weight, bias = (t.requires_grad_() for t in inputs((16, 64, 32, 32), torch.bfloat16))

    @torch.compile(backend=backbay)
    def program(x, weight, bias):
        return F.relu(F.batch_norm(x * 1, None, None, weight, bias, training=True))

    y = program(x, weight, bias)
    dy = torch.randn_like(y)
    given = (x, weight, bias)
    once = torch.autograd.grad(y, given, dy, retain_graph=True)
    assert all(map(torch.equal, once, torch.autograd.grad(y, given, dy)))
    (first,) = torch.autograd.grad(program(*given), x, dy, create_graph=True)
    with pytest.raises(RuntimeError, match=r"double backward|no autograd formula"):
        first.square().sum().backward()


def test_backbay_leaves_a_batch_norm_to_inductor():
    from torch._inductor.utils import run_and_get_code

    x, weight, bias = (t.requires_grad_() for t in inputs((16, 64, 32, 32), torch.bfloat16))

    def program(x):
        return F.relu(F.batch_norm(x * 1, None, None, weight, bias, training=True)).sum()

    compiled = torch.compile(program, backend=backbay)
    _, codes = run_and_get_code(lambda: compiled(x).backward())
    text = "".join(codes)
    assert "batch_norm_statistics_kernel" in text
    assert "batch_norm_sums_kernel" in text
