"""Layers merged in training on a CUDA device: they fire, and results and gradients are right."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HEAD = 64


class Attention(nn.Module):
    """Queries, keys and values of one input, of unequal widths, and what attends to them."""

    def __init__(self, width, shared, *, bias):
        super().__init__()
        sizes = ((width, width), (width, shared), (width, shared), (width, width))
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in sizes)

    def forward(self, x):
        q, k, v, o = self.layers
        q, k, v = (y(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return o(y.transpose(1, 2).flatten(2))


def made(sizes, dtype, *, bias, shape=(2, 1024)):
    torch.manual_seed(0)
    model = Attention(*sizes, bias=bias).to("cuda", dtype)
    x = torch.randn(*shape, sizes[0], device="cuda", dtype=dtype)
    return model, x.requires_grad_()


def results(call, model, x):
    """Return the result and every gradient."""
    result, wanted = call(x), [x, *model.parameters()]
    torch.manual_seed(0)
    cotangent = torch.randint(-8, 9, result.shape, device="cuda") / 8  # the same in each dtype
    return [result, *torch.autograd.grad(result, wanted, cotangent.to(result.dtype))]


def merged(reports):
    return sum(x.changes for x in reports if x.name == "horizontal_fusion")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("sizes", [(768, 768), (2048, 512)], ids=str)
def test_gradients_of_merged_layers_are_wrong(sizes, mode, bias, dtype, reports):
    model, x = made(sizes, dtype, bias=bias)
    options = {"triton.cudagraphs": mode is not None}
    compiled = torch.compile(model, backend=backbay, options=options)
    for _ in range(3):
        got = [y.clone() for y in results(compiled, model, x)]
    assert merged(reports) == 2
    eager = results(model, model, x)
    truth = results(model.double(), model, x.detach().double().requires_grad_())
    for one, other, true in zip(got, eager, truth, strict=True):
        assert one.dtype == other.dtype == dtype
        errors = [(y.double() - true).square().mean().sqrt() for y in (one, other)]
        assert errors[0] <= 1.5 * errors[1]


def test_weights_that_learn_are_copied_once(reports):
    model, x = made((768, 768), torch.bfloat16, bias=True)
    compiled = torch.compile(model, backend=backbay)
    for _ in range(3):
        got, eager = (results(y, model, x) for y in (compiled, model))
        for one, other in zip(got, eager, strict=True):
            difference = (one.float() - other.float()).square().mean().sqrt()
            assert difference <= 2e-2 * other.float().square().mean().sqrt()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
    assert merged(reports) == 2


@pytest.mark.parametrize("shape", [(2, 100), (16, 1024)], ids=["few rows", "many rows"])
def test_layers_of_other_rows_are_merged(shape, reports):
    model, x = made((768, 768), torch.bfloat16, bias=False, shape=shape)
    torch.compile(model, backend=backbay)(x)
    assert not merged(reports)


def test_autocast_on_a_gpu_is_forgotten(reports):
    model, x = made((768, 768), torch.float32, bias=True)
    compiled = torch.compile(model, backend=backbay)
    with torch.autocast("cuda", torch.bfloat16):
        got, eager = (results(y, model, x) for y in (compiled, model))
    assert merged(reports) == 2
    for one, other in zip(got, eager, strict=True):
        assert one.dtype == other.dtype
        difference = (one.float() - other.float()).square().mean().sqrt()
        assert difference <= 2e-2 * other.float().square().mean().sqrt()
