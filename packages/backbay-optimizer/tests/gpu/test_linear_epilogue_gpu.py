"""Linear layers with what follows them on a CUDA device: the kernel, and in Inductor's code."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay.kit.observing import collected  # noqa: E402
from backbay.proof import Workload, make_golden, observe  # noqa: E402
from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import linear_epilogue as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CASES = [  # images, pixels, inner, columns
    (2, 256, 96, 384),
    (2, 256, 384, 96),
    (3, 49, 144, 24),
    (1, 1, 16, 96),
    (5, 33, 7, 13),
    (1, 1000, 768, 3072),
    (4, 196, 672, 112),
    (64, 196, 24, 144),
    (0, 49, 24, 40),
    (2, 0, 24, 40),
]
KINDS = ["gelu", "silu", "relu", "hardswish", "none", "norm", "entry", "scale"]


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    backbay.reset()


def drawing(dtype):
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator, device="cuda").to(dtype)

    return draw


def inputs(case, dtype, kind):
    images, pixels, inner, columns = case
    draw = drawing(dtype)
    x, weight = draw(images, pixels, inner), draw(columns, inner) * inner**-0.5
    vectors = [draw(columns), draw(columns), draw(columns).square() + 0.5, draw(columns)]
    residual, gate = draw(images, pixels, columns), draw(images, inner).sigmoid()
    if kind == "norm":
        return x, weight, None, "silu", *vectors[1:], vectors[0], 1e-3, residual, gate
    if kind == "entry":
        entry = [draw(inner), draw(inner).square() + 0.5, draw(inner), draw(inner)]
        how = "none", *vectors[1:], vectors[0], 1e-3, residual, gate, *entry, "silu", 1e-3
        return x, weight, None, *how
    if kind == "scale":
        return x, weight, vectors[0], "none", None, None, vectors[3], None, 0.0, residual, None
    return x, weight, vectors[0], kind, None, None, None, None, 0.0, None, None


def in_steps(x, weight, bias, activation, mean, *given):
    """Compute it as eager does: each step is rounded."""
    var, scale, shift, eps, residual, gate, *entry = given
    if entry:
        x = F.batch_norm(x.movedim(-1, 1), *entry[:4], eps=entry[-1]).movedim(1, -1)
        x = getattr(F, entry[-2])(x)
    x = x if gate is None else x * gate[:, None]
    y = F.linear(x, weight, bias)
    if mean is not None:
        y = F.batch_norm(y.movedim(-1, 1), mean, var, scale, shift, eps=eps).movedim(1, -1)
    elif scale is not None:
        y = y * scale
    y = y if activation == "none" else getattr(F, activation)(y)
    return y if residual is None else y + residual


def widened(given):
    return [x.double() if isinstance(x, torch.Tensor) else x for x in given]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_results_stray_further_from_float64_than_eagers(case, dtype, kind):
    given = inputs(case, dtype, kind)
    assert module.refusal(given[0], given[1]) is None
    y, wanted = module.linear_epilogue(*given), in_steps(*widened(given))
    assert y.shape == wanted.shape
    if y.numel():
        ours, eagers = ((z.double() - wanted).norm() for z in (y, in_steps(*given)))
        # In single precision cuBLAS adds up otherwise: the pass leaves it alone.
        floor = 5e-7 if dtype == torch.float32 else 1e-7
        assert ours <= 1.05 * eagers + floor * wanted.norm(), (ours, eagers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ["gelu", "silu", "hardswish"])
def test_an_activation_strays_anywhere_in_its_range(dtype, activation):
    x = torch.arange(-(2**15), 2**15, device="cuda", dtype=torch.int16).view(dtype)[:, None]
    weight = torch.zeros(8, 8, device="cuda", dtype=dtype)
    weight[0, 0] = 1
    y = module.linear_epilogue(F.pad(x, (0, 7)).nan_to_num(0.0), weight, None, activation)[:, :1]
    x = x.nan_to_num(0.0)
    wanted = getattr(F, activation)(x.double())
    ours, eagers = ((z.double() - wanted).abs() for z in (y, getattr(F, activation)(x)))
    half = torch.finfo(dtype).eps / 2 * wanted.abs() + 2.0**-25
    finite = wanted.abs() < torch.finfo(dtype).max
    assert (ours <= torch.maximum(eagers, half) * 1.05)[finite].all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_hidden(dtype, kind):
    given = inputs((4, 33, 24, 16), dtype, kind)
    for row, bad in enumerate((float("nan"), float("inf"), float("-inf"))):
        given[0][row, 0, 0] = bad
    y, wanted = module.linear_epilogue(*given), in_steps(*given)
    assert torch.equal(y.isnan(), wanted.isnan())
    assert torch.equal(y.isinf(), wanted.isinf())


def test_a_layout_is_misread():
    x, weight, bias, *_ = inputs((2, 96, 64, 48), torch.float32, "gelu")
    for given in (x[:, ::2], torch.cat((x, x), -1)[..., ::2], x.transpose(0, 1)):
        y = module.linear_epilogue(given, weight.t().contiguous().t(), bias, "gelu")
        wanted = F.gelu(F.linear(given.double(), weight.double(), bias.double()))
        assert (y - wanted).abs().max() < 1e-5
        assert y.is_contiguous()


def test_a_plan_gives_wrong_results():
    given = inputs((3, 333, 80, 72), torch.bfloat16, "norm")
    wanted = in_steps(*widened(given))
    plans = [(m, n, k, w) for m in (64, 256) for n in (16, 128) for k in (32, 128) for w in (4, 8)]
    from backbay_optimizer.kernels.linear_epilogue_device import linear_kernel

    for plan in [*(module.Plan(*x) for x in plans), module.Plan(64, 32, 128, sweep=True)]:
        y = module.launch(linear_kernel, *given, chosen=plan)
        assert (y.double() - wanted).norm() < 4e-3 * wanted.norm(), plan


def test_torch_finds_fault_in_the_registration():
    assert callable(module.linear_epilogue)
    operator = torch.ops.backbay.linear_epilogue.default
    torch.library.opcheck(operator, inputs((2, 49, 24, 40), torch.bfloat16, "norm"))


def test_offsets_beyond_32_bits_are_wrong():
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("needs 20 GB of free memory")
    x = torch.empty(70_000_000, 32, device="cuda", dtype=torch.bfloat16).normal_()
    assert x.numel() > 2**31
    weight = torch.randn(32, 32, device="cuda", dtype=torch.bfloat16)
    y = module.linear_epilogue(x, weight, None, "silu", residual=x)
    for at in (slice(0, 1000), slice(-1000, None)):
        wanted = F.silu(F.linear(x[at].double(), weight.double())) + x[at]
        assert (y[at] - wanted).norm() < 3e-3 * wanted.norm()


@pytest.mark.parametrize("gated", [False, True])
def test_offsets_of_gates_or_many_columns_beyond_32_bits_are_wrong(gated):
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GB of free memory")
    rows, inner, columns = (70_000_000, 32, 32) if gated else (17_000_000, 16, 128)
    assert rows * columns > 2**31
    x = torch.empty(rows, inner, device="cuda", dtype=torch.bfloat16).normal_()
    weight = torch.randn(columns, inner, device="cuda", dtype=torch.bfloat16)
    gate = torch.rand(2, inner, device="cuda", dtype=torch.bfloat16) if gated else None
    y = module.linear_epilogue(x, weight, None, "silu", gate=gate)
    for part, at in ((0, slice(0, 1000)), (1, slice(-1000, None))):
        entered = x[at] if gate is None else x[at] * gate[part]
        wanted = F.silu(F.linear(entered.double(), weight.double()))
        assert (y[at] - wanted).norm() < 3e-3 * wanted.norm()


class Block(nn.Module):
    """What ConvNeXt repeats."""

    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)
        return y * self.gamma.reshape(1, -1, 1, 1) + x


class Inverted(nn.Module):
    """What EfficientNet repeats."""

    def __init__(self, channels):
        super().__init__()
        wide = 4 * channels
        self.up = nn.Conv2d(channels, wide, 1, bias=False)
        self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.reduce, self.expand = nn.Conv2d(wide, 8, 1), nn.Conv2d(8, wide, 1)
        self.down = nn.Conv2d(wide, channels, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (wide, wide, channels))
        for norm in self.norms:
            for value in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
                nn.init.uniform_(value, 0.5, 1.5)

    def forward(self, x):
        y = F.silu(self.norms[0](self.up(x)), inplace=True)
        y = F.silu(self.norms[1](self.depthwise(y)), inplace=True)
        gate = self.expand(F.silu(self.reduce(y.mean((2, 3), keepdim=True)))).sigmoid()
        return self.norms[2](self.down(y * gate)) + x


def assert_right(model, x, **options):
    """Demand that a compiled model is right; give how often the pass rewrote it."""
    workload = Workload(model=model, args=(x,))
    golden = make_golden(workload, train=False)
    caches = torch._inductor.config.patch(force_disable_caches=True)
    with golden.context(), caches, collected() as reports:
        call = torch.compile(model, backend=backbay, **options)
        proof = golden.judge(observe(call, golden.at(workload), train=False))
    assert proof.passed, proof.worst
    return {x.name: x.changes for x in reports}["product_epilogues"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [Block, Inverted])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_block_is_wrong(make, dtype, dynamic):
    torch.manual_seed(0)
    model = make(96).to("cuda", dtype, memory_format=torch.channels_last).eval()
    x = drawing(dtype)(32, 96, 56, 56).contiguous(memory_format=torch.channels_last)
    count = assert_right(model, x, dynamic=dynamic)
    assert count == (0 if dynamic or dtype == torch.float32 else 2)


@pytest.mark.slow
def test_inductors_code_has_other_kernels():
    model = Inverted(96).to("cuda", torch.bfloat16, memory_format=torch.channels_last).eval()
    x = drawing(torch.bfloat16)(32, 96, 56, 56).contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        call = torch.compile(model, backend=backbay)
        y, (code,) = run_and_get_code(call, x)
        wanted = model(x)
    assert y.stride() == wanted.stride()
    assert code.count("linear_kernel_0.run(") + code.count("linear_kernel_1.run(") == 2
