"""LayerNorm and RMSNorm on a CUDA device: the kernels themselves, and what the backend makes."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import row_norm as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(1, 16), (5, 40), (300, 769), (1000, 96), (513, 4096), (300, 5120), (70, 16384), (0, 64)]


def drawn(*shapes, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(x, generator=generator, device="cuda").to(dtype) for x in shapes]


def widened(tensors):
    return [None if x is None else x.double() for x in tensors]


def assert_as_right(found, eager, truth):
    """Assert that a result is as near to the truth as eager's, give or take a rounding."""
    errors = [(x.double() - truth).norm() for x in (found, eager)]
    assert found.dtype == eager.dtype
    assert errors[0] <= 1.1 * errors[1] + 2e-6 * truth.norm(), errors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_centred", [True, False])
@pytest.mark.parametrize(("count", "adds"), [(1, False), (3, True)])
def test_gradients_are_further_from_the_truth_than_the_references(
    shape, dtype, is_centred, count, adds
):
    x, weight, *dys = drawn(shape, shape[1:], *[shape] * (count + adds), dtype=dtype)
    x, extra = x * 2 + 1, dys.pop() if adds else None
    for w in {weight, weight.float()}:
        *_, mean, rstd = module.row_norm(x, w, None, 1e-6, 1.0, is_centred)
        mean = mean if is_centred else None
        how = (1.0, extra, True)
        assert module.refusal(x, w) is None or not x.numel()
        found = module.row_norm_backward(dys, x, w, mean, rstd, *how)
        eager = module.reference_backward(dys, x, w, mean, rstd, 1.0, extra)
        wide = widened((x, w))
        _, mean, rstd = module.reference(*wide, None, 1e-6, 1.0, is_centred=is_centred)
        truth = module.reference_backward(
            widened(dys), *wide, mean if is_centred else None, rstd, 1.0, *widened([extra])
        )
        for given in zip(found, eager, truth, strict=True):
            assert_as_right(*given)


def test_places_need_more_than_32_bits():
    x, weight = (
        torch.empty(600_000, 4096, device="cuda", dtype=torch.bfloat16).normal_(),
        drawn(4096)[0],
    )
    assert x.numel() > 2**31
    *_, rstd = module.row_norm(x[-50:], weight, None, 1e-6, 0.0, False)  # noqa: FBT003 (an operator's)
    rstd = torch.cat((x.new_ones(len(x) - 50, 1, dtype=torch.float32), rstd))
    dx, *_ = module.row_norm_backward([x], x, weight, None, rstd, 0.0, None, False)  # noqa: FBT003
    wanted, *_ = module.reference_backward([x[-50:]], x[-50:], weight, None, rstd[-50:], 0.0)
    torch.testing.assert_close(dx[-50:], wanted)


@pytest.mark.parametrize("is_centred", [True, False])
def test_places_of_what_is_summed_need_more_than_32_bits(is_centred):
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GB of free memory")
    x, dy = (
        torch.empty(600_000, 4096, device="cuda", dtype=torch.bfloat16).normal_(1, 2)
        for _ in range(2)
    )
    assert x.numel() > 2**31
    dy[2**19 :] += x[2**19 :]  # rows that lie beyond add more
    (weight,) = drawn(4096, dtype=torch.float32)
    made = []
    for parts in zip(dy.split(10_000), x.split(10_000), strict=True):
        wide_dy, wide, scale = widened((*parts, weight))
        _, mean, rstd = module.reference(wide, scale, None, 1e-6, 1.0, is_centred=is_centred)
        how = (wide, scale, mean if is_centred else None, rstd, 1.0, wide_dy)
        dx, *sums = module.reference_backward([wide_dy, wide], *how)
        made.append((mean.float(), rstd.float(), dx[-50:].clone(), *sums))
    means, rstds, ends, *others = zip(*made, strict=True)
    given = (x, weight, torch.cat(means) if is_centred else None, torch.cat(rstds), 1.0, dy, True)
    dx, *found = module.row_norm_backward([dy, x], *given)
    assert (dx[-50:] - ends[-1]).norm() < 4e-3 * ends[-1].norm()
    for one, other in zip(found, map(sum, others), strict=True):
        assert (one - other).norm() < 1e-4 * other.norm()


def test_as_many_rows_as_32_bits_count_are_wrong():
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GB of free memory")
    # Ones and twos: what a thread adds of their squares is exact in float32.
    x = torch.empty(2**31 - 8, 1, device="cuda", dtype=torch.bfloat16).bernoulli_().add_(1)
    weight, rstd = torch.ones(1, device="cuda"), torch.ones(len(x), 1, device="cuda")
    dx, dweight, _ = module.row_norm_backward([x], x, weight, None, rstd, 0.0, None, False)  # noqa: FBT003
    for part in (slice(50), slice(-50, None)):
        given = x[part], weight, None, rstd[part], 0.0
        wanted, *_ = module.reference_backward([x[part]], *given)
        torch.testing.assert_close(dx[part], wanted)
    squares = sum(t.double().square().sum() for t in x.split(2**27))
    assert (dweight - squares).abs() < 1e-6 * squares


def test_gradients_are_other_bits_the_next_time():
    x, weight, dy = drawn((4096, 1024), (1024,), (4096, 1024))
    *_, mean, rstd = module.row_norm(x, weight, None, 1e-6, 0.0, True)  # noqa: FBT003
    found = [
        module.row_norm_backward([dy], x, weight, mean, rstd, 0.0, None, True)  # noqa: FBT003
        for _ in range(3)
    ]
    assert all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )


def test_torch_finds_fault_in_the_registration():
    assert callable(module.row_norm)
    x, weight, dy = drawn((64, 128), (128,), (64, 128), dtype=torch.float32)
    *_, mean, rstd = module.row_norm(x, weight, weight, 1e-6, 0.0, True)  # noqa: FBT003
    given = ([dy, dy], x, weight, mean, rstd, 0.0, dy, True)
    torch.library.opcheck(torch.ops.backbay.row_norm_backward.default, given)
    leaves = [t.requires_grad_() for t in (x, weight)]
    torch.library.opcheck(torch.ops.backbay.row_norm.default, (*leaves, weight, 1e-6, 0.0, True))


def rms_norm(x, weight):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def block(x, weight, bias, *layers):
    """Compute with both norms, each with several readers, and a residual branch."""
    one, other, last = layers
    y = F.layer_norm(x, x.shape[-1:], weight, bias)
    h = x + F.linear(F.linear(y, one) * F.linear(y, other), last)
    z = rms_norm(h, weight)
    return h + F.linear(F.silu(F.linear(z, one)), last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_backbay_leaves_norms_to_inductor_or_strays(dtype, dynamic, monkeypatch):
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setattr(module, "FEWEST_ELEMENTS", 0)
    torch.compiler.reset()
    n = 1024
    compiled = torch.compile(block, backend=backbay, options={"cuda_graphs": False})
    for rows in (128, 96, 160)[: 3 if dynamic else 1]:
        given = drawn((2, rows, n), (n,), (n,), (n, n), (n, n), (n, n), dtype=dtype)
        given[3:] = [w / n**0.5 for w in given[3:]]
        if dynamic:
            torch._dynamo.mark_dynamic(given[0], 1)
        leaves = [t.requires_grad_() for t in given]

        def run(leaves=leaves):
            y = compiled(*leaves)
            return y, *torch.autograd.grad(y.float().square().sum(), leaves)

        found, codes = run_and_get_code(run)
        if rows == 128:
            code = "".join(codes)
            assert code.count("row_norm_backward_kernel") > 1
            assert "native_layer_norm" not in code
        eager, truth = (
            (y, *torch.autograd.grad(y.to(wide).square().sum(), xs))
            for xs, wide in (
                (leaves, torch.float32),
                ([t.detach().double().requires_grad_() for t in leaves], torch.float64),
            )
            for y in [block(*xs)]
        )
        for one, other, right in zip(found, eager, truth, strict=True):
            assert_as_right(one, other, right)
