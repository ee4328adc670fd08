"""Rows in float8 on a CUDA device: the kernel itself, and what the backend makes."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import float8_rows as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHAPES = [(5, 2048), (3, 14336), (7, 16384), (2, 3, 2560), (1, 8), (9, 40), (4, 1000), (3, 1)]
MOST = 448.0


def normal(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", module.KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_stray_or_differ_from_references(shape, kind, dtype):
    x, residual, gated = (normal(*shape, dtype=dtype, seed=n) for n in range(3))
    by = {"": None, "rms_norm": normal(shape[-1], dtype=dtype, seed=3), "silu": gated}[kind]
    for added in (None, residual):
        recipe = module.Recipe(kind, 1e-5, 1.0 if kind == "rms_norm" else 0.0, 1e-12)
        assert module.refusal(x, by, added) is None
        y, scale, total = module.float8_rows(x, by, added, *recipe)
        wanted, other, sums = module.reference(x, by, added, recipe)
        assert torch.equal(total, sums)
        torch.testing.assert_close(scale, other, rtol=1e-5, atol=0)
        # Last bits of float32 decide between two numbers in float8, seldom.
        assert (y.float() != wanted.float()).float().mean() < 1e-3 + 1 / x.numel()
        torch.testing.assert_close(y.float(), wanted.float(), rtol=2**-3, atol=2**-9)


@pytest.mark.parametrize("floor", [0.0, 1e-3])
def test_rows_of_zeros_infinities_or_nan_differ_from_references(floor):
    x = normal(5, 2048)
    x[0] = 0
    x[1, 3], x[2, 7], x[3, 9] = torch.nan, torch.inf, -torch.inf
    y, scale, _ = module.float8_rows(x, None, None, *module.Recipe(floor=floor))
    wanted, other, _ = module.reference(x, None, None, module.Recipe(floor=floor))
    torch.testing.assert_close(scale, other, equal_nan=True)
    torch.testing.assert_close(y.float(), wanted.float(), equal_nan=True)


def test_parts_of_rows_or_much_memory_are_misread():
    whole = normal(300, 2 * 4096)
    gate, up = whole.chunk(2, -1)
    recipe = module.Recipe("silu", floor=1e-12)
    y, scale, _ = module.float8_rows(gate, up, None, *recipe)
    wanted, other, _ = module.reference(gate, up, None, recipe)
    torch.testing.assert_close(scale, other, rtol=1e-5, atol=0)
    torch.testing.assert_close(y.float(), wanted.float(), rtol=2**-3, atol=2**-9)


def test_more_elements_than_32_bits_count_are_misread():
    if torch.cuda.get_device_properties(0).total_memory < 30 << 30:
        pytest.skip("needs 30 GiB")
    columns = 16384
    x = torch.zeros((2**31 // columns) + 2, columns, device="cuda", dtype=torch.bfloat16)
    x[-1] = normal(columns)
    y, scale, _ = module.float8_rows(x, None, None, *module.Recipe(floor=1e-12))
    wanted, other, _ = module.reference(x[-1:], None, None, module.Recipe(floor=1e-12))
    assert torch.equal(scale[-1:], other)
    assert torch.equal(y[-1:].float(), wanted.float())


def rounded(y):
    scale = y.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / MOST
    return (y.float() / scale).clamp(-MOST, MOST).to(torch.float8_e4m3fn), scale


def rms_norm(x, weight):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def layer(x, residual, norm, *weights):
    gate, up, down = weights
    total = x + residual
    y, scale = rounded(rms_norm(total, norm))
    inner = F.silu(linear(y, scale, *gate)) * linear(y, scale, *up)
    return total + linear(*rounded(inner), *down)


def linear(x, scale, weight, by):
    return torch._scaled_mm(
        x, weight.t(), scale, by.t(), out_dtype=torch.bfloat16, use_fast_accum=True
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_layer_in_float8_keeps_its_rounding_or_differs(dynamic):
    torch.compiler.reset()
    weights = [rounded(normal(*x, seed=n) / 50) for n, x in enumerate([(4096, 2048)] * 2)]
    weights.append(rounded(normal(2048, 4096, seed=4) / 50))
    norm = normal(2048, seed=5)
    options = {"cuda_graphs": False}
    compiled = torch.compile(layer, backend=backbay, dynamic=dynamic, options=options)
    for rows in (512, 768):
        x, residual = normal(rows, 2048), normal(rows, 2048, seed=1)
        with torch.no_grad():
            found, wanted = (
                compiled(x, residual, norm, *weights),
                layer(x, residual, norm, *weights),
            )
        error = (found - wanted).float().norm() / wanted.float().norm()
        assert error < 0.02


def test_a_layer_in_float8_has_fewer_than_its_two_kernels():
    weights = [rounded(normal(*x, seed=n) / 50) for n, x in enumerate([(4096, 2048)] * 2)]
    weights.append(rounded(normal(2048, 4096, seed=4) / 50))
    given = (normal(512, 2048), normal(512, 2048, seed=1), normal(2048, seed=5), *weights)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend=backbay, options={"cuda_graphs": False})
    with torch.no_grad():
        compiled(*given)
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            compiled(*given)
            torch.cuda.synchronize()
    calls = {x.key: x.count for x in profile.key_averages()}
    assert sum(n for name, n in calls.items() if "float8_rows_kernel" in name) == 2, calls
