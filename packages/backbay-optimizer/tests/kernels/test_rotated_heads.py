"""Heads that are normalised and turned, on the CPU: reference, registration, the kernel."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import rotated_heads as module  # noqa: E402


def given(batch, tokens, heads, width, *, shared=True, dtype=torch.float64):
    """Return tensors of heads, their weights, cosines and sines."""
    drawn = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=drawn, dtype=torch.float64)

    angles = normal(1 if shared else batch, tokens, width)
    xs = [normal(batch, tokens, n, width).to(dtype) for n in heads]
    weights = [normal(width).to(dtype) for _ in heads]
    return xs, weights, angles.cos().to(dtype), angles.sin().to(dtype)


def written_out(xs, weights, cos, sin, how):
    """Return heads as models compute them."""
    return [one(x, weight, cos, sin, how) for x, weight in zip(xs, weights, strict=True)]


def one(x, weight, cos, sin, how):
    x = F.rms_norm(x, x.shape[-1:], weight + how.offset, how.eps).transpose(1, 2)
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


@pytest.mark.parametrize("how", [module.How(), module.How(1e-3, 1.0)], ids=str)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "sizes", [(1, 1, [1, 3], 2), (2, 5, [3, 1], 64), (3, 4, [8], 128)], ids=str
)
def test_heads_are_not_those_that_are_written_out(sizes, shared, how):
    inputs = given(*sizes, shared=shared)
    ys = module.rotated_heads(*inputs, *how)
    wanted = written_out(*inputs, how)
    torch.testing.assert_close(ys, wanted)
    assert [y.stride() for y in ys] == [y.stride() for y in wanted]


def test_what_is_rounded_is_rounded_twice():
    (x,), (weight,), *angles = given(2, 50, [4], 64, dtype=torch.bfloat16)
    (y,) = module.rotated_heads([x], [weight], *angles, *module.How())
    truth = one(*(t.double() for t in (x, weight, *angles)), module.How())
    eager = one(x, weight, *angles, module.How())
    assert (y - truth).norm() < 0.8 * (eager - truth).norm()


def test_torch_finds_fault_in_the_registration():
    inputs = given(2, 5, [3, 4], 64, dtype=torch.float32)
    assert callable(module.rotated_heads)
    torch.library.opcheck(torch.ops.backbay.rotated_heads.default, (*inputs, *module.How()))


INTERPRETED = """
    import itertools
    import torch
    from torch.testing import assert_close
    from backbay_optimizer.kernels import rotated_heads as module
    from backbay_optimizer.kernels.rotated_heads_device import rotated_heads_kernel as kernel

    torch.manual_seed(0)
    sizes = ((1, 3, [4, 1]), (2, 5, [3]), (1, 1, [1, 40]), (2, 2, [40, 9]))
    for (batch, tokens, heads), width, shared, dtype in itertools.product(
        sizes, (64, 128, 256), (True, False), (torch.float32, torch.bfloat16)
    ):
        xs = [torch.randn(batch, tokens, n + 1, width).to(dtype)[:, :, :n] for n in heads]
        weights = [torch.randn(width).to(dtype) for _ in heads]
        angles = torch.randn(1 if shared else batch, tokens, 2 * width)[..., :width]
        inputs = (xs, weights, angles.cos().to(dtype), angles.sin().to(dtype))
        how = module.How(1e-3, 0.5)
        found, wanted = module.launch(kernel, *inputs, how), module.reference(*inputs, how)
        # The interpreter cuts numbers off where hardware rounds.
        rtol = 2**-7 if dtype == torch.bfloat16 else 1e-5
        assert_close(found, wanted, rtol=rtol, atol=1e-5)
    print("right")
"""


def test_the_kernel_is_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)
