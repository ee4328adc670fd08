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
OTHERS = [
    *[([3, 3], [2, 2], [0, 0]), ([2, 2], [2, 2], [0, 0]), ([3, 3], [1, 1], [1, 1])],
    ([5, 4], [2, 3], [2, 1]),
]


def image(case, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(0)
    # Of few values: most windows have their maximum several times.
    x = torch.randint(-3, 3, case, generator=generator, device="cuda", dtype=torch.int8).to(dtype)
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("window", [WINDOW, *OTHERS], ids=str)
def test_maxima_or_gradients_are_not_torchs(case, dtype, window):
    size, _, padding = window
    if any(n + 2 * p < k for n, k, p in zip(case[2:], size, padding, strict=True)):
        pytest.skip("no window fits")
    x = image(case, dtype)
    with torch.no_grad():
        x[0, 0, 0, 0] = torch.nan
        x[-1, -1] = -torch.inf
    assert module.refusal(x) is None
    y, offsets = module.max_pool(x, *window)
    wanted, places = module.reference(x, *window)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(offsets, places)
    assert y.is_contiguous(memory_format=torch.channels_last)
    dy = torch.randn_like(y)
    found, other = (torch.autograd.grad(z, x, dy.to(z.dtype))[0] for z in (y, wanted))
    torch.testing.assert_close(found, other, rtol=1e-2, atol=3e-2)
    again = module.reference_backward(dy, places, *case[2:], *window)
    torch.testing.assert_close(found, again, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("case", [(36, 64, 1024, 1024), (9, 1, 16384, 16384)], ids=str)
def test_places_need_more_than_32_bits(case):
    x = image(case).detach()
    y, offsets = module.max_pool(x, *WINDOW)
    dx = module.max_pool_backward(y, offsets, *case[2:], *WINDOW)
    assert bool(module.refusal(x)) == (case[1] == 1)
    for one in (slice(0, 1), slice(-1, None)):
        wanted, places = module.reference(x[one], *WINDOW)
        assert torch.equal(y[one], wanted)
        assert torch.equal(offsets[one], places)
        again = module.reference_backward(wanted, places, *case[2:], *WINDOW)
        torch.testing.assert_close(dx[one], again, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("window", [([5, 5], [1, 1], [2, 2]), ([2, 2], [5, 5], [0, 0])], ids=str)
def test_a_program_holds_more_than_it_should(window, monkeypatch):
    launched = []
    monkeypatch.setattr(module, "launch_backward", lambda *_: launched.append("too much"))
    x = image((2, 8, 19, 17), torch.float32)
    y, _ = module.max_pool(x, *window)
    dy = torch.randn_like(y)
    found, other = (torch.autograd.grad(z, x, dy)[0] for z in (y, F.max_pool2d(x, *window)))
    torch.testing.assert_close(found, other)
    assert not launched


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
