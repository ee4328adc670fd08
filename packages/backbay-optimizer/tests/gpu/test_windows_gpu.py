"""Attention with a window on a CUDA device: right, forward and backward, and FlashAttention's."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from backbay_optimizer.backend import backbay  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def changes(reports):
    return {x.name: x.changes for x in reports}


def tensors(shape, dtype, *, train=False):
    """Return query, key and value as layers make them: heads beside their width in memory."""
    batch, heads, shared, queries, keys, width = shape
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = (batch, queries, heads, width), *((batch, keys, shared, width),) * 2
    made = [torch.randn(x, generator=generator, device="cuda").to(dtype) for x in shapes]
    return [x.transpose(1, 2).requires_grad_(train) for x in made]


def near(left, right):
    def attended(query, key, value):
        queries, keys = query.shape[2], key.shape[2]
        back = torch.arange(queries, device=query.device)[:, None] + keys - queries
        back = back - torch.arange(keys, device=query.device)
        times = query.shape[1] // key.shape[1]
        wide = (x.repeat_interleave(times, dim=1) for x in (key, value))
        mask = (back <= left) & (back >= -right)
        # Twice that: of one query, the result itself is laid out in another way.
        return 2 * F.scaled_dot_product_attention(query, *wide, attn_mask=mask)

    return attended


def results(call, given, cotangent):
    """Return the result, and gradients where they are recorded."""
    result = call(*given)
    if not given[0].requires_grad:
        return [result]
    return [result, *torch.autograd.grad(result, given, cotangent.to(result.dtype))]


def assert_as_good_as_eager(got, attended, given, cotangent):
    eager = results(attended, given, cotangent)
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in given]
    truth = results(attended, exact, cotangent)
    for one, other, true in zip(got, eager, truth, strict=True):
        assert one.dtype == other.dtype
        errors = [(x.double() - true).square().mean().sqrt() for x in (one, other)]
        assert errors[0] <= 1.5 * errors[1]


SHAPES = [  # sequences, heads, heads of keys, queries, keys, width; back, ahead
    ((2, 4, 1, 1024, 1024, 256), (127, 0)),
    ((1, 8, 2, 1111, 1111, 128), (200, 0)),
    ((3, 6, 6, 777, 777, 64), (64, 64)),
    ((1, 3, 3, 1000, 1000, 40), (0, 33)),
    ((1, 4, 2, 130, 1500, 64), (99, 0)),
    ((2, 4, 4, 1, 1500, 64), (99, 0)),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("shape", "window"), SHAPES, ids=str)
def test_a_window_is_wrong(shape, window, train, dtype, reports):
    given, attended = tensors(shape, dtype, train=train), near(*window)
    cotangent = torch.randn_like(given[0])
    compiled = torch.compile(attended, backend=backbay, dynamic=False)
    got = results(compiled, given, cotangent)
    assert changes(reports)["windowed_attention"] == 1
    assert_as_good_as_eager(got, attended, given, cotangent)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_a_cuda_graph_of_it_is_wrong(train, reports):
    given = tensors((2, 4, 1, 1024, 1024, 128), torch.bfloat16, train=train)
    attended, cotangent = near(100, 0), torch.randn_like(given[0])
    compiled = torch.compile(attended, backend=backbay, mode="reduce-overhead")
    for _ in range(3):
        got = [x.clone() for x in results(compiled, given, cotangent)]
    assert changes(reports)["windowed_attention"] >= 1
    assert_as_good_as_eager(got, attended, given, cotangent)


@pytest.mark.parametrize("width", [36, 264])
def test_a_width_that_the_kernel_lacks_is_taken(width, reports):
    given = tensors((1, 2, 2, 1024, 1024, width), torch.bfloat16)
    torch.compile(near(100, 0), backend=backbay)(*given)
    assert changes(reports)["windowed_attention"] == 0


def test_a_kernel_that_is_switched_off_is_used(reports):
    given = tensors((1, 2, 2, 1024, 1024, 64), torch.bfloat16)
    with sdpa_kernel(SDPBackend.MATH):
        torch.compile(near(100, 0), backend=backbay)(*given)
    assert changes(reports)["windowed_attention"] == 0
    torch.compiler.reset()
    reports.clear()
    torch.compile(near(100, 0), backend=backbay)(*given)
    assert changes(reports)["windowed_attention"] == 1
