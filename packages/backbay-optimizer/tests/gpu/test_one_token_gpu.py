"""A step of generation on a CUDA device, with heads that are grouped; and what is timed there."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay import compile_log  # noqa: E402
from backbay_optimizer.backend import backbay  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def tensors(shape, dtype):
    batch, heads, shared, length, width = shape
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = (batch, heads, 1, width), *((batch, shared, length, width),) * 2
    made = [torch.randn(x, generator=generator, device="cuda").to(dtype) for x in shapes]
    return *made, torch.tensor(length * 2 // 3, device="cuda")


def repeated(x, heads):
    batch, shared, length, width = x.shape
    wide = x[:, :, None].expand(batch, shared, heads // shared, length, width)
    return wide.reshape(batch, heads, length, width)


def step(q, k, v, position):
    mask = (torch.arange(k.shape[2], device=q.device) <= position)[None, None, None]
    heads = q.shape[1]
    return F.scaled_dot_product_attention(q, repeated(k, heads), repeated(v, heads), mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("shape", [(32, 32, 8, 512, 64), (16, 14, 7, 333, 128), (65, 4, 1, 17, 40)])
def test_a_step_of_generation_is_wrong(shape, mode, dtype, reports):
    given = tensors(shape, dtype)
    with torch.no_grad():
        compiled = torch.compile(step, backend=backbay, mode=mode)
        for _ in range(3):
            result = compiled(*given).clone()
        truth = step(*(x.double() if x.is_floating_point() else x for x in given))
        eager = step(*given)
    changes = {x.name: x.changes for x in reports}
    assert changes["one_token_attention"] == 1
    assert result.stride() == eager.stride()
    errors = [(x.double() - truth).square().mean().sqrt() for x in (result, eager)]
    assert errors[0] <= 1.5 * errors[1]


def training(x, w):
    mask = torch.ones(512, 512, device=x.device).tril() > 0
    q, k, v = (F.linear(x, y).view(4, 512, 8, 64).transpose(1, 2) for y in w.chunk(3))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_what_is_timed_is_wrong_or_not_kept(mode, train):
    generator = torch.Generator("cuda").manual_seed(0)
    x, w = (
        torch.randn(y, generator=generator, device="cuda", dtype=torch.bfloat16).div(8)
        for y in ((4, 512, 512), (3 * 512, 512))
    )
    w.requires_grad_(train)
    options = {"tune": "full", "triton.cudagraphs": mode is not None}
    for _ in range(2):  # the second time what was found is read
        torch.compiler.reset()
        compiled = torch.compile(training, backend=backbay, options=options)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            w.grad = None
            result = compiled(x, w)
            if train:
                result.float().square().mean().backward()
    eager = training(x, w)
    torch.testing.assert_close(result, eager, rtol=2e-2, atol=2e-2)
    if train:
        (wanted,) = torch.autograd.grad(eager.float().square().mean(), w)
        torch.testing.assert_close(w.grad, wanted, rtol=5e-2, atol=5e-2 * wanted.abs().max().item())
    whys = [x.why or "" for x in compile_log.records() if x.asked == "backbay"]
    assert any(x.startswith("timed: ") for x in whys), whys
    assert any(x.startswith("timed on ") for x in whys), whys
