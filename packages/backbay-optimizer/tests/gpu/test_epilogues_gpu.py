"""Fused convolutions and linear layers on a CUDA device: what cuDNN and cuBLASLt make of them."""

import itertools

import pytest
from measurements import kept_keys

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay.kit.observing import collected  # noqa: E402
from backbay.proof import Workload, make_golden, observe  # noqa: E402
from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import fused_convolution as kernel  # noqa: E402
from backbay_optimizer.tuning import cache  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HOW = ([1, 1], [1, 1], [1, 1], 1)


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    backbay.reset()
    kernel.REFUSED.clear()


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def samples(dtype, *shape):
    made = torch.randn(shape, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
    return made.to(dtype)


def assert_near(got, steps, truth):
    """Demand an error, over the truth's size, that is no larger than that of separate steps."""
    errors = [(x.double() - truth).abs().max() for x in (got, steps)]
    floor = torch.finfo(got.dtype).eps * truth.abs().max()
    assert errors[0] <= 2 * errors[1] + floor, errors
    assert got.stride() == steps.stride()


# 1. The operator: every configuration is right, whether cuDNN has an engine for it or not

SHAPES = {
    "3 by 3": ((2, 64, 14, 14), (64, 64, 3, 3), HOW),
    "1 by 1": ((2, 64, 14, 14), (128, 64, 1, 1), ([1, 1], [0, 0], [1, 1], 1)),
    "stride": ((2, 64, 15, 13), (128, 64, 3, 3), ([2, 2], [1, 1], [1, 1], 1)),
    "dilation": ((2, 64, 15, 13), (64, 64, 3, 3), ([1, 1], [2, 2], [2, 2], 1)),
    "stem": ((2, 3, 32, 32), (64, 3, 7, 7), ([2, 2], [3, 3], [1, 1], 1)),
    "odd channels": ((2, 7, 9, 9), (13, 7, 3, 3), HOW),
    "groups": ((2, 64, 9, 9), (64, 16, 3, 3), ([1, 1], [1, 1], [1, 1], 4)),
    "depthwise": ((2, 32, 9, 9), (32, 1, 5, 5), ([1, 1], [2, 2], [1, 1], 32)),
    "one pixel": ((2, 64, 1, 1), (64, 64, 3, 3), HOW),
    "one image": ((1, 64, 9, 9), (64, 64, 3, 3), HOW),
    "no image": ((0, 64, 9, 9), (64, 64, 3, 3), HOW),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize(("x", "w", "how"), SHAPES.values(), ids=SHAPES)
def test_every_configuration_is_right(dtype, last, x, w, how):
    x, w = samples(dtype, *x), samples(dtype, *w) / 8
    if last:
        x, w = channels_last(x), channels_last(w)
    bias = samples(dtype, len(w))
    other = torch.ones_like(kernel.reference(x, w, None, None, *how)) / 2
    for b, z in itertools.product((bias, None), (other, None)):
        wide = (None if y is None else y.double() for y in (x, w, b, z))
        truth = kernel.reference(*wide, *how)
        got = kernel.OPERATOR(x, w, b, z, *how)
        steps = kernel.reference(x, w, b, z, *how)
        if not truth.numel():
            assert got.shape == truth.shape
            continue
        assert_near(got, steps, truth)


@pytest.mark.parametrize("summed", [False, True])
def test_offsets_beyond_32_bits_are_wrong(summed):
    """They are cuDNN's: where it has no engine for so many elements, there are steps."""
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GB of free memory")
    x = torch.empty(130, 512, 512, 64, device="cuda", dtype=torch.bfloat16).movedim(-1, 1)
    x.normal_()
    assert x.numel() > 2**31
    w, bias = samples(x.dtype, 64, 64, 3, 3) / 24, samples(x.dtype, 64)
    got = kernel.OPERATOR(x, channels_last(w), bias, x if summed else None, *HOW)
    for at in (slice(0, 1), slice(-1, None)):
        part = x[at].double()
        truth = kernel.reference(part, w.double(), bias.double(), part if summed else None, *HOW)
        assert (got[at] - truth).norm() < 8e-3 * truth.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_common_convolution_is_refused_by_cudnn(dtype):
    x, w = (channels_last(samples(dtype, *y)) for y in SHAPES["3 by 3"][:2])
    kernel.OPERATOR(x, w, samples(dtype, 64), None, *HOW)
    kernel.OPERATOR(x, w, samples(dtype, 64), x, *HOW)
    assert not kernel.REFUSED


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_that_nobody_wrote_comes_through(dtype):
    x, w = (channels_last(samples(dtype, *y)) for y in SHAPES["3 by 3"][:2])
    for _ in range(8):
        stale = torch.full_like(x, float("nan"))
        del stale  # whose memory the result gets
        assert kernel.OPERATOR(x, w, samples(dtype, 64), None, *HOW).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("summed", [False, True])
def test_what_is_not_finite_is_hidden(dtype, bad, summed):
    x, w = (channels_last(samples(dtype, *y)) for y in SHAPES["3 by 3"][:2])
    x[0, 0, 0, 0] = bad
    given = (x, w, samples(dtype, 64), torch.ones_like(x) if summed else None, *HOW)
    got, steps = kernel.OPERATOR(*given), kernel.reference(*given)
    assert torch.equal(got.isnan(), steps.isnan())
    assert torch.equal(got.isinf(), steps.isinf())


def test_a_deterministic_algorithm_is_not_asked_for():
    x, w = (channels_last(samples(torch.float32, *y)) for y in SHAPES["3 by 3"][:2])
    with torch.backends.cudnn.flags(deterministic=True, allow_tf32=False):
        given = (x, w, None, None, *HOW)
        assert torch.equal(kernel.OPERATOR(*given), kernel.reference(*given))


def test_single_precision_is_rounded_to_tf32_where_that_is_forbidden():
    x, w = (channels_last(samples(torch.float32, *y)) for y in SHAPES["3 by 3"][:2])
    with torch.backends.cudnn.flags(allow_tf32=False):
        got = kernel.OPERATOR(x, w, None, None, *HOW)
        steps = kernel.reference(x, w, None, None, *HOW)
    truth = kernel.reference(x.double(), w.double(), None, None, *HOW)
    assert_near(got, steps, truth)
    assert (got.double() - truth).abs().max() < 1e-4 * truth.abs().max()


# 2. The backend, on models


class Block(nn.Module):
    """A stem, and a residual block; batch norms of a large batch are folded."""

    def __init__(self, channels):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.two = nn.Conv2d(channels, channels, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        for x in self.norms:
            for value in (x.running_mean, x.running_var, x.weight, x.bias):
                nn.init.uniform_(value, 0.5, 1.5)

    def forward(self, x):
        x = F.relu(self.stem(x))
        y = F.relu(self.norms[0](self.one(x)), inplace=True)
        y = self.norms[1](self.two(y))
        y += x
        return F.relu(y, inplace=True).mean((2, 3))


def assert_right(model, x, **options):
    """Demand that a compiled model is right; give how often each pass rewrote it."""
    workload = Workload(model=model, args=(x,))
    golden = make_golden(workload, train=False)
    caches = torch._inductor.config.patch(force_disable_caches=True)
    with golden.context(), caches, collected() as reports:
        call = torch.compile(model, backend=backbay, **options)
        proof = golden.judge(observe(call, golden.at(workload), train=False))
    assert proof.passed, proof.worst
    return {x.name: x.changes for x in reports}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "channels", "fused"),
    [
        (torch.bfloat16, 64, 2),
        (torch.float32, 64, 2),
        (torch.float16, 64, 0),
        (torch.bfloat16, 60, 0),
    ],
)
def test_a_residual_block_is_wrong(dtype, channels, fused):
    torch.manual_seed(0)
    model = Block(channels).to("cuda", dtype, memory_format=torch.channels_last).eval()
    changes = assert_right(model, channels_last(samples(dtype, 32, 3, 64, 64)))
    assert changes["fused_convolutions"] == fused


@pytest.mark.slow
def test_an_input_with_gaps_or_its_channels_first_is_wrong():
    torch.manual_seed(0)
    model = Block(64).to("cuda", torch.bfloat16, memory_format=torch.channels_last).eval()
    for x in (
        samples(torch.bfloat16, 32, 3, 64, 64),
        samples(torch.bfloat16, 32, 4, 64, 64)[:, 1:],
    ):
        assert_right(model, x)
        torch.compiler.reset()


@pytest.mark.slow
def test_a_changed_batch_norm_is_served_stale():
    torch.manual_seed(0)
    model = Block(64).to("cuda", torch.bfloat16, memory_format=torch.channels_last).eval()
    x = channels_last(samples(torch.bfloat16, 32, 3, 64, 64))
    call = torch.compile(model, backend=backbay)
    with torch.no_grad():
        before = call(x)
        model.norms[1].running_var.mul_(4)
        after = call(x)
        torch.testing.assert_close(after, model(x), rtol=2e-2, atol=2e-2)
    assert not torch.allclose(before, after, rtol=2e-2, atol=2e-2)


class Stack(nn.Sequential):
    """Layers of a convolution, a batch norm and a ReLU."""

    def __init__(self, channels, layers):
        super().__init__(*(x for _ in range(layers) for x in self.layer(channels)))
        self.to("cuda", torch.bfloat16, memory_format=torch.channels_last).eval()

    @staticmethod
    def layer(channels):
        convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        return convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)


@pytest.mark.slow
def test_more_layers_are_folded_by_more_kernels():
    x = channels_last(samples(torch.bfloat16, 32, 64, 64, 64))
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        call = torch.compile(Stack(64, 6), backend=backbay)
        _, (code,) = run_and_get_code(call, x)
    assert code.count("convolution_relu.default(") == 6
    assert code.count(".run(") == 2


@pytest.mark.slow
def test_places_are_timed_wrongly_or_change_results(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    model, x = Stack(64, 3), channels_last(samples(torch.bfloat16, 32, 64, 64, 64))
    assert_right(model, x, options={"tune": "full"})
    (site,) = kept_keys(tmp_path, cache.PairTiming)
    assert cache.read_timing(site).ratio > 0
    assert len(kept_keys(tmp_path, cache.Choice)) == 1


def new_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


class Feeder(nn.Module):
    """Layers with each activation that has an epilogue, and one that has not."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.down(new_gelu(self.up(x)))
        x = x + self.down(F.gelu(self.up(x), approximate="tanh"))
        x = x + self.down(F.gelu(self.up(x)))
        return x + self.down(F.relu(self.up(x), inplace=True))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("width", [768, 33])
@pytest.mark.parametrize(
    ("dtype", "fused"), [(torch.bfloat16, 3), (torch.float16, 3), (torch.float32, 0)]
)
def test_a_feed_forward_layer_is_wrong(dtype, fused, width, dynamic):
    torch.manual_seed(0)
    model = Feeder(width).to("cuda", dtype)
    x = samples(dtype, 5, 17, 2 * width)
    for given in (x[..., :width].contiguous(), x[..., ::2], x[:1, :1, :width], x[:0, :, :width]):
        backbay.reset()
        changes = assert_right(model, given, dynamic=dynamic)
        one_row = given.shape[:-1] == (1, 1) and fused > 0
        assert changes["linear_epilogues"] == (0 if one_row or width % 8 else fused)
        assert changes["one_row_linears"] == (8 if one_row else 0)
        torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_without_biases_are_wrong_or_left_alone(dtype):
    torch.manual_seed(0)
    up, down = nn.Linear(768, 3072, bias=False), nn.Linear(3072, 768, bias=False)
    model = nn.Sequential(up, nn.ReLU(), down, nn.GELU(approximate="tanh")).to("cuda", dtype)
    changes = assert_right(model, samples(dtype, 5, 17, 768))
    assert changes["linear_epilogues"] == 2
