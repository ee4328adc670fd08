"""Layers of few rows on a CUDA device: the kernels themselves, and what the backend makes."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import few_row_linears as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SIZES = {
    "even": (512, (256, 64, 64)),
    "odd": (200, (40, 8, 24)),
    "two": (896, (896, 128)),
    "one": (1040, (72,)),
    "large": (4096, (4096, 1024, 1024)),
}


def drawn(*shapes, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(x, generator=generator, device="cuda").to(dtype) for x in shapes]


def widened(tensors):
    return [None if x is None else x.double() for x in tensors]


def assert_as_right(found, eager, truth):
    """Assert that a result is as near to the truth as eager's, give or take a rounding."""
    errors = [(x.double() - truth).norm() for x in (found, eager)]
    assert found.dtype == eager.dtype
    assert found.shape == eager.shape
    assert found.stride() == eager.stride()
    assert errors[0] <= 1.1 * errors[1] + 2e-6 * truth.norm(), errors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 64, 65, 300])
@pytest.mark.parametrize("name", SIZES)
def test_results_stray_further_from_the_truth_than_eagers(name, rows, dtype):
    inner, sizes = SIZES[name]
    x, *weights = drawn((rows, inner), *((n, inner) for n in sizes), dtype=dtype)
    weights = [(w * inner**-0.5).contiguous() for w in weights]
    biases = [None, *drawn(*((n,) for n in sizes[1:]), dtype=dtype)]
    assert (module.refusal(x, *weights) is None) == (dtype != torch.float32)
    found = module.few_row_linears(x, weights, biases)
    eager = [F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    truth = module.reference(x.double(), widened(weights), widened(biases))
    for given in zip(found, eager, truth, strict=True):
        assert_as_right(*given)
    gate, up = weights[0], weights[0].flip(0).contiguous()
    (bias,) = drawn(sizes[:1], dtype=dtype)
    for activation in ("silu", "gelu_tanh"):
        activate = {"silu": F.silu, "gelu_tanh": lambda y: F.gelu(y, approximate="tanh")}
        found = module.gated_linears(x, gate, up, bias, None, activation)
        eager = activate[activation](F.linear(x, gate, bias)) * F.linear(x, up)
        wide = widened((x, gate, up, bias, None))
        assert_as_right(found, eager, module.gated_reference(*wide, activation))


def test_an_input_with_gaps_is_misread():
    wide, *weights = drawn((24, 1024), (64, 512), (64, 512))
    x = wide[:, ::2]
    found = module.few_row_linears(x, weights, [None, None])
    wanted = module.few_row_linears(x.contiguous(), weights, [None, None])
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_results_are_other_bits_the_next_time():
    x, *weights = drawn((16, 2048), (2048, 2048), (512, 2048), (512, 2048))
    first, *others = (module.few_row_linears(x, weights, [None] * 3) for _ in range(4))
    assert all(torch.equal(*pair) for y in others for pair in zip(first, y, strict=True))


@pytest.mark.parametrize("columns", [2**19 - 1, 2**19 + 64])
def test_places_of_weights_need_32_bits_or_more(columns):
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GB of free memory")
    (x,) = drawn((5, 4096))
    weight = torch.empty(columns, 4096, device="cuda", dtype=torch.bfloat16).normal_()
    assert bool(module.refusal(x, weight)) == (weight.numel() >= 2**31)
    (y,) = module.few_row_linears(x, [weight], [None])
    gated = module.gated_linears(x, weight, weight, None, None, "silu")
    for at in (slice(0, 50), slice(-50, None)):
        wanted = F.linear(x.double(), weight[at].double())
        assert (y[:, at] - wanted).norm() < 3e-3 * wanted.norm()
        wanted = F.silu(wanted) * wanted
        assert (gated[:, at] - wanted).norm() < 3e-3 * wanted.norm()


def test_torch_finds_fault_in_the_registration():
    assert callable(module.few_row_linears)
    x, *weights, bias = drawn((16, 512), (64, 512), (64, 512), (64,))
    namespace = torch.ops.backbay
    torch.library.opcheck(namespace.few_row_linears.default, (x, weights, [None, bias]))
    torch.library.opcheck(namespace.gated_linears.default, (x, *weights, bias, None, "silu"))


class Layer(nn.Module):
    """A decoder's layer: norms, queries, keys and values with biases, and a gated network."""

    def __init__(self, width, inner):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.q, self.k, self.v = (nn.Linear(width, n) for n in (width, width // 4, width // 4))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, keys, values):
        y = self.norms[0](x)
        q, k, v = (
            z.view(*z.shape[:2], -1, 64).transpose(1, 2) for z in (self.q(y), self.k(y), self.v(y))
        )
        k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), k, v


class Decoder(nn.Module):
    """Layers, each with keys and values of earlier steps."""

    def __init__(self, width=512, inner=1536, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, inner) for _ in range(layers))

    def forward(self, x, keys, values):
        new = []
        for layer, *cache in zip(self.layers, keys, values, strict=True):
            x, *found = layer(x, *cache)
            new += found
        return x, *new


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch", [2, 16, 40])
@torch.no_grad()
def test_backbay_leaves_a_step_of_generation_to_cublas_or_strays(batch, dtype, monkeypatch):
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setattr(module, "FEWEST", 0)
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Decoder().to("cuda", dtype)
    x, keys, values = drawn((batch, 1, 512), *[(2, batch, 2, 24, 64)] * 2, dtype=dtype)
    compiled = torch.compile(model, backend=backbay, options={"cuda_graphs": False})
    found, codes = run_and_get_code(compiled, x, keys, values)
    code = "".join(codes)
    assert "linears_kernel" in code
    assert "gated_kernel" in code
    assert code.count("extern_kernels.mm(") + code.count("extern_kernels.addmm(") == 4
    eager = model(x, keys, values)
    truth = model.double()(x.double(), keys.double(), values.double())
    for one, other, right in zip(found, eager, truth, strict=True):
        assert_as_right(one, other, right)
    model.to(dtype)
    model.layers[0].q.weight.data.mul_(2)  # no copy of it is kept
    found, wanted = (f(x, keys, values)[0] for f in (compiled, model))
    torch.testing.assert_close(found, wanted, rtol=5e-2, atol=5e-2)


@torch.no_grad()
def test_backbay_strays_under_autocast_or_where_weights_are_hoisted():
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Decoder(layers=1).cuda()
    x, keys, values = drawn((16, 1, 512), *[(1, 16, 2, 24, 64)] * 2, dtype=torch.float32)

    def step(*given):
        with torch.autocast("cuda", torch.bfloat16):
            return model(*given)

    truth = model(x, keys, values)[0].double()
    for how in ({}, {"options": {"parameter_hoist": True}}):
        torch.compiler.reset()
        found = torch.compile(step, backend=backbay, **how)(x, keys, values)[0].clone()
        assert_as_right(found, step(x, keys, values)[0], truth)
