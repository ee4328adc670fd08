"""Group norm and SiLU on a CUDA device: the kernels as a GPU runs them, and in Inductor's code."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import group_norm_silu as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 3e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
SHAPES = [
    ((2, 32, 1, 1), 1),
    ((3, 6, 15, 17), 6),
    ((2, 320, 33, 31), 32),
    ((1, 128, 257, 129), 32),
    ((2, 96, 64, 64), 1),
    ((8, 1280, 8, 8), 32),
]


def inputs(shape, dtype, *, last):
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator, device="cuda").to(dtype)

    form = torch.channels_last if last else torch.contiguous_format
    x = (2 * draw(*shape) + 1).contiguous(memory_format=form)
    return x, draw(shape[1]), draw(shape[1]), draw(shape[1])


def truth(x, weight, bias, shift, groups):
    total = x + shift[:, None, None]
    return F.silu(F.group_norm(total, groups, weight, bias, 1e-5))


def error(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-6)).item()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_results_or_gradients_stray_from_float64(shape, groups, dtype, last):
    given = [t.requires_grad_() for t in inputs(shape, dtype, last=last)]
    assert module.refusal(given[0], groups) is None
    x, weight, bias, shift = given
    y, _, _ = module.group_norm_silu(x, weight, bias, groups, 1e-5, shift=shift)
    assert y.stride() == x.stride()
    wide = [t.detach().double().requires_grad_() for t in given]
    wanted = truth(*wide, groups)
    assert error(y.detach(), wanted.detach()) < TOLERANCE[dtype]
    dy = torch.randn_like(y)
    found = torch.autograd.grad(y, given, dy)
    for one, other in zip(found, torch.autograd.grad(wanted, wide, dy.double()), strict=True):
        if other.norm() > 1e-3:  # of one value a group has no spread
            assert error(one, other) < 3 * TOLERANCE[dtype]


@pytest.mark.parametrize("lasts", [(True, False, None), (False, True, True), (True, True, False)])
def test_a_residual_of_another_layout_is_misread(lasts):
    x, weight, bias, _ = inputs((2, 64, 40, 40), torch.float32, last=lasts[0])
    residual = inputs((2, 64, 40, 40), torch.float32, last=lasts[1])[0].neg()
    given = [t.requires_grad_() for t in (x, residual, weight, bias)]
    y, total, _, _ = module.add_group_norm_silu(*given, 32, 1e-5, channels_last=lasts[2])
    wide = [t.detach().double().requires_grad_() for t in given]
    sums = wide[0] + wide[1]
    wanted = F.silu(F.group_norm(sums, 32, wide[2], wide[3], 1e-5))
    assert module.is_channels_last(y) == (lasts[0] if lasts[2] is None else lasts[2])
    gradients = torch.autograd.grad(y.square().sum() + total.sin().sum(), given)
    others = torch.autograd.grad(wanted.square().sum() + sums.sin().sum(), wide)
    for one, other in zip((y, total, *gradients), (wanted, sums, *others), strict=True):
        assert error(one.detach(), other.detach()) < 1e-4


@pytest.mark.parametrize("last", [False, True])
def test_offsets_beyond_32_bits_wrap(last):
    shape = (2, 64, 4112, 4096)  # each sample has 2**30, both more than 2**31
    if torch.cuda.mem_get_info()[0] < 10 * 2 * 2**30:
        pytest.skip("needs 20 GB of free memory")
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.empty(shape, device="cuda", dtype=torch.bfloat16, memory_format=form).uniform_(-4, 4)
    y, mean, rstd = module.group_norm_silu(x, None, None, 32, 1e-5)
    dx, _, _ = module.group_norm_silu_backward(y, x, None, None, mean, rstd, 32)
    part = x[1, -2:].double()
    wanted = F.silu(F.group_norm(part[None], 1, eps=1e-5))[0]
    assert error(y[1, -2:], wanted) < 1.5e-2
    part = part[None].requires_grad_()
    (wanted,) = torch.autograd.grad(
        F.silu(F.group_norm(part, 1, eps=1e-5)), part, y[None, 1, -2:].double()
    )
    assert error(dx[1, -2:], wanted[0]) < 5e-2


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(2, 64, 4112, 4096), (8200, 256, 32, 32)], ids=str)
def test_offsets_of_sums_beyond_32_bits_wrap(shape, last):
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GB of free memory")
    form = torch.channels_last if last else torch.contiguous_format
    x, residual, dy = (
        torch.empty(shape, device="cuda", dtype=torch.bfloat16, memory_format=form).normal_()
        for _ in range(3)
    )
    assert x.numel() > 2**31
    dy[-1, :, -8:] += 3
    weight, bias, shift = (torch.randn(n, device="cuda") for n in (shape[1], shape[1], shape[:2]))
    y, total, *statistics = module.add_group_norm_silu(
        x, residual, weight, bias, 32, 1e-5, shift=shift
    )
    dx, *sums = module.group_norm_silu_backward(
        dy, total, weight, bias, *statistics, 32, extra=residual
    )
    size = shape[1] // 32
    for group in (slice(0, size), slice(-size, None)):
        wide = [t[:, group].double() for t in (total, dy, residual)]
        vectors = [t[group].double() for t in (weight, bias)]
        other_y, _, *statistics = module.reference(wide[0], *vectors, 1, 1e-5, silu=True)
        others = module.reference_backward(
            wide[1], wide[0], *vectors, *statistics, 1, silu=True, extra=wide[2]
        )
        whole = x[:, group].double() + wide[2] + shift[:, group, None, None]
        for one, other in zip((total, y, dx), (whole, other_y, others[0]), strict=True):
            for at in (0, -1):
                assert error(one[at, group, -8:], other[at, :, -8:]) < 1.5e-2
        for one, other in zip(sums, others[1:], strict=True):
            assert error(one[group], other) < 1e-3


def test_the_same_call_gives_other_bits():
    x, weight, bias, _ = inputs((4, 128, 256, 256), torch.bfloat16, last=True)
    first = module.group_norm_silu(x, weight, bias, 32, 1e-5)
    for _ in range(5):
        again = module.group_norm_silu(x, weight, bias, 32, 1e-5)
        assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_inductor_breaks_or_differs(last, dynamic):
    torch._dynamo.reset()

    def block(x, weight, bias, shift):
        return module.group_norm_silu(2 * x, weight, bias, 32, 1e-5, shift=shift)[0] + 1

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic)
    for side in (32, 48):
        given = inputs((2, 64, side, side), torch.bfloat16, last=last)
        given = [t.requires_grad_() for t in given]
        found, wanted = compiled(*given), block(*given)
        assert found.stride() == wanted.stride()
        assert error(found.detach(), wanted.detach().double()) < 1e-2
        gradients = [torch.autograd.grad(y.float().sin().sum(), given) for y in (found, wanted)]
        for one, other in zip(*gradients, strict=True):
            assert error(one, other.double()) < 2e-2


def test_a_captured_graph_replays_it():
    x, weight, bias, shift = inputs((4, 128, 64, 64), torch.float32, last=True)
    module.group_norm_silu(x, weight, bias, 32, 1e-5, shift=shift)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, _, _ = module.group_norm_silu(x, weight, bias, 32, 1e-5, shift=shift)
    x.mul_(3)
    for _ in range(3):
        y.zero_()
        graph.replay()
        assert error(y, truth(*(t.double() for t in (x, weight, bias, shift)), 32)) < 3e-5


class Unet(nn.Module):
    """What a diffusion model has: steps, tokens, other sizes, and joined channels."""

    def __init__(self, channels=64):
        super().__init__()
        self.enter = nn.Conv2d(4, channels, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(3))
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.step = nn.Linear(channels, channels)
        self.project = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(2))
        self.inner, self.linear = nn.LayerNorm(channels), nn.Linear(channels, channels)
        self.joined = nn.GroupNorm(32, 2 * channels)
        self.leave = nn.Conv2d(2 * channels, 4, 3, padding=1)

    def forward(self, x, step):
        whole = self.enter(x)
        y = self.down(F.silu(self.norms[0](whole))) + self.step(step)[:, :, None, None]
        y = y + self.project[0](F.silu(self.norms[1](y)))
        n, c, h, w = y.shape
        tokens = self.project[0](self.norms[2](y)).permute(0, 2, 3, 1).reshape(n, h * w, c)
        tokens = tokens + self.linear(self.inner(tokens))
        z = tokens.reshape(n, h, w, c).permute(0, 3, 1, 2).contiguous()
        z = F.interpolate(self.project[1](z) + y, scale_factor=2.0, mode="nearest")
        return self.leave(F.silu(self.joined(torch.cat([z, whole], 1))))


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_a_unet_strays_or_is_laid_out_otherwise(last, train, monkeypatch):
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setattr(module, "PAYS_FROM", 1)
    monkeypatch.setattr(module, "FOLLOWS_FROM", 1)
    torch.manual_seed(0)
    form = torch.channels_last if last else torch.contiguous_format
    model = Unet().to("cuda", torch.bfloat16).to(memory_format=form)
    x = torch.randn(2, 4, 48, 32, device="cuda", dtype=torch.bfloat16).contiguous(
        memory_format=form
    )
    step = torch.randn(2, 64, device="cuda", dtype=torch.bfloat16)
    wide = copy.deepcopy(model).double()
    compiled = torch.compile(model, backend=backbay, options={"cuda_graphs": False})
    with torch.set_grad_enabled(train):
        found, codes = run_and_get_code(compiled, x, step)
        eager, wanted = model(x, step), wide(x.double(), step.double())
    assert "group_norm_window_kernel" in codes[0] or "group_norm_panel_kernel" in codes[0]
    assert found.stride() == eager.stride()
    pairs = [(found, eager, wanted)]
    if train:
        dy = torch.randn_like(found)
        pairs += zip(
            *(
                torch.autograd.grad(y, of.parameters(), dy.to(y.dtype))
                for y, of in ((found, model), (eager, model), (wanted, wide))
            ),
            strict=True,
        )
    for three in pairs:
        one, other, true = (t.detach().double() for t in three)
        assert error(one, true) < 1.5 * error(other, true) + 2e-3
