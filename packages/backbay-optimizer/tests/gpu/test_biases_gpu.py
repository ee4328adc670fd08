"""Attention that is written out with a bias, by fused kernels on a CUDA device."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay.kit.observing import collected  # noqa: E402
from backbay_optimizer.backend import backbay  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
B, H = 3, 32


def attend(query, key, value, bias):
    scores = torch.matmul(query, key.transpose(2, 3)) * 0.2 + bias
    weights = F.softmax(scores.float(), dim=-1).to(value.dtype)
    return torch.matmul(weights, value).transpose(1, 2).reshape(len(query), query.shape[2], -1)


def tensors(queries, keys, width, bias, dtype, *, train=False):
    torch.manual_seed(0)
    shapes = (B, queries, H, width), (B, keys, H, width), (B, keys, H, width)
    made = [torch.randn(x, device="cuda", dtype=dtype).transpose(1, 2) for x in shapes]
    made.append(torch.randn(bias, device="cuda", dtype=dtype))
    return [x.requires_grad_(train) for x in made]


def compiled(inputs, changes=1):
    with collected() as reports:
        result = torch.compile(attend, backend=backbay)(*inputs)
    assert {x.name: x.changes for x in reports}["fused_attention"] == changes
    return result


def error(result, truth):
    return (result.double() - truth).square().mean().sqrt()


SHAPES = {
    "T5": (512, 512, 64, (1, H, 512, 512)),
    "padding": (256, 256, 64, (B, 1, 1, 256)),
    "whole": (128, 128, 128, (B, H, 128, 128)),
    "cross": (40, 300, 64, (1, 1, 40, 300)),
    "windows": (49, 49, 32, (1, H, 49, 49)),
    "patches": (197, 197, 64, (1, H, 197, 197)),
    "odd width": (130, 130, 24, (H, 130, 130)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_attention_with_a_bias_is_wrong(name, dtype):
    inputs = tensors(*SHAPES[name], dtype)
    result, eager = compiled(inputs), attend(*inputs)
    truth = attend(*(x.double() for x in inputs))
    assert result.stride() == eager.stride()
    assert error(result, truth) <= 1.1 * error(eager, truth)


def is_taken(queries, keys, *, learnt):
    return (queries % 128 == 0 and keys % 128 == 0 and not learnt) or keys % 8 != 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("learnt", [False, True], ids=["fixed bias", "learnt bias"])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_attention_with_a_bias_are_wrong(name, learnt, dtype):
    queries, keys, *_ = shape = SHAPES[name]
    inputs = tensors(*shape, dtype, train=True)
    inputs[3].requires_grad_(learnt)
    if not is_taken(queries, keys, learnt=learnt):
        compiled(inputs, 0)
        return
    result = compiled(inputs)
    wanted = [x for x in inputs if x.requires_grad]
    cotangent = torch.randn_like(result)
    doubles = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
    truth = torch.autograd.grad(
        attend(*doubles), [x for x in doubles if x.requires_grad], cotangent.double()
    )
    eager = torch.autograd.grad(attend(*inputs), wanted, cotangent)
    ours = torch.autograd.grad(result, wanted, cotangent)
    for one, other, right in zip(ours, eager, truth, strict=True):
        assert error(one, right) <= 1.1 * error(other, right)


@pytest.mark.parametrize("number", [float("-inf"), "lowest"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ["T5", "padding", "windows", "patches"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_query_that_sees_no_key_is_otherwise(name, number, train, dtype):
    inputs = tensors(*SHAPES[name], dtype, train=train)
    bias = inputs[3].detach().clone()
    lowest = torch.finfo(dtype).min if number == "lowest" else number
    bias[..., -1, :] = lowest
    bias[..., : bias.shape[-1] // 2] = lowest
    inputs[3] = bias
    result, eager = compiled(inputs), attend(*inputs)
    assert torch.equal(result.isnan(), eager.isnan())
    truth = attend(*(x.double() for x in inputs))
    for rows in (slice(-1, None), slice(None, -1)):
        right = truth[:, rows].nan_to_num()
        ours, theirs = (error(x[:, rows].nan_to_num(), right) for x in (result, eager))
        assert ours <= 1.2 * theirs


def test_scores_far_below_zero_have_no_gradient():
    # What cuDNN's backward gives NaN for at 704 keys with a mask (pytorch issue 196678).
    for keys in (704, 640, 197):
        inputs = tensors(keys, keys, 64, (1, 1, keys, keys), torch.bfloat16)
        query, key, value, bias = inputs
        query.mul_(0.1)[..., 0] = 1.0
        key.mul_(0.1)[..., 0] = -120.0 * 5
        bias.zero_()
        three = [x.requires_grad_() for x in (query, key, value)]
        torch.compiler.reset()
        result = torch.compile(attend, backend=backbay)(*three, bias)
        gradients = torch.autograd.grad(result.float().sum(), three)
        assert all(bool(x.isfinite().all()) for x in gradients)
