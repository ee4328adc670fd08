"""Maxima over windows on a CUDA device: the kernels themselves, and their gradient."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import max_pool as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CASES = [  # images, channels, height, width
    (128, 64, 112, 112),
    (2, 70, 9, 23),
    (1, 1, 1, 1),
    (3, 24, 8, 7),
]
WINDOW = ([3, 3], [2, 2], [1, 1])


def image(case, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(0)
    # Of few values: most windows have their maximum several times.
    x = torch.randint(-3, 3, case, generator=generator, device="cuda").to(dtype)
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_maxima_or_gradients_are_not_torchs(case, dtype):
    x = image(case, dtype)
    with torch.no_grad():
        x[0, 0, 0, 0] = torch.nan
        x[-1, -1] = -torch.inf
    assert module.refusal(x) is None
    y, offsets = module.max_pool(x, *WINDOW)
    wanted, places = module.reference(x, *WINDOW)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(offsets, places)
    assert y.is_contiguous(memory_format=torch.channels_last)
    dy = torch.randn_like(y)
    found, other = (torch.autograd.grad(z, x, dy.to(z.dtype))[0] for z in (y, wanted))
    torch.testing.assert_close(found, other, rtol=1e-2, atol=3e-2)
    again = module.reference_backward(dy, places, *case[2:], *WINDOW)
    torch.testing.assert_close(found, again, rtol=1e-2, atol=1e-2)


def test_torch_finds_fault_in_the_registration():
    assert callable(module.max_pool)
    given = (image((2, 8, 9, 9), torch.float32).detach() + torch.rand(1, device="cuda"), *WINDOW)
    given[0].requires_grad_()
    torch.library.opcheck(torch.ops.backbay.max_pool.default, given)


def test_backbay_leaves_a_maximum_to_inductor(monkeypatch):
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setattr(module, "PAYS_FROM", 0)
    x = image((16, 64, 112, 112))
    compiled = torch.compile(lambda x: F.max_pool2d(x * 2, 3, 2, 1), backend=backbay)
    y, wanted = compiled(x), F.max_pool2d(x * 2, 3, 2, 1)
    assert torch.equal(y, wanted)
    assert y.stride() == wanted.stride()
    dy = torch.randn_like(y)
    found, other = (torch.autograd.grad(z, x, dy)[0] for z in (y, wanted))
    torch.testing.assert_close(found, other, rtol=1e-2, atol=3e-2)
    torch.compiler.reset()
    _, codes = run_and_get_code(lambda: compiled(x).sum().backward())
    assert "max_pool_backward_kernel" in "".join(codes)
