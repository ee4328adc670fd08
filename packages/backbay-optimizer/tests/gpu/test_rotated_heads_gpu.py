"""Heads that are normalised and turned, on a CUDA device."""

import re

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import rotated_heads as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CASES = [  # batch, tokens, heads of each tensor, width
    (1, 1, [1], 64),
    (1, 2048, [16, 8], 128),
    (2, 300, [3], 64),
    (3, 7, [1, 40], 256),
    (2, 5, [4, 1], 256),
    (1, 8192, [32, 2], 128),
]


def given(batch, tokens, heads, width, dtype, *, shared=True):
    drawn = torch.Generator("cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=drawn, device="cuda")

    angles = normal(1 if shared else batch, tokens, width)
    xs = [normal(batch, tokens, n + 1, width).to(dtype)[:, :, :n] for n in heads]
    weights = [normal(width).to(dtype) for _ in heads]
    return xs, weights, angles.cos().to(dtype), angles.sin().to(dtype)


def written_out(x, weight, cos, sin):
    x = F.rms_norm(x, x.shape[-1:], weight, 1e-6).transpose(1, 2)
    first, second = x.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_heads_are_stray_or_misread_or_further_from_the_truth_than_torchs(case, shared, dtype):
    xs, weights, *angles = given(*case, dtype, shared=shared)
    assert module.refusal(xs, *weights, *angles) is None
    ys = module.rotated_heads(xs, weights, *angles, 1e-6, 0.0)
    for y, x, weight in zip(ys, xs, weights, strict=True):
        eager = written_out(x, weight, *angles)
        truth = written_out(*(t.double() for t in (x, weight, *angles)))
        assert (y - truth).norm() <= 1.1 * (eager - truth).norm() + 2e-7 * truth.norm()
        assert y.dtype == dtype
        assert y.stride() == eager.stride()


def test_places_need_more_than_32_bits():
    x = torch.empty(1, 140_000, 128, 128, device="cuda", dtype=torch.bfloat16).normal_()
    assert x.numel() > 2**31
    (little,), (weight,), cos, sin = given(1, 140_000, [1], 128, torch.bfloat16)
    for xs in ([x], [little, x]):
        y = module.rotated_heads(xs, [weight] * len(xs), cos, sin, 1e-6, 0.0)[-1]
        wanted = written_out(x[:, -3:], weight, cos[:, -3:], sin[:, -3:])
        torch.testing.assert_close(y[:, :, -3:], wanted, rtol=2e-2, atol=2e-2)


def test_another_number_of_tokens_is_compiled_again():
    def both(xs, weights, cos, sin):
        return [written_out(x, w, cos, sin) for x, w in zip(xs, weights, strict=True)]

    from torch._dynamo.testing import CompileCounterWithBackend

    frames = CompileCounterWithBackend("backbay")
    compiled = torch.compile(both, backend=frames)
    for tokens in (300, 17, 512):
        inputs = given(2, tokens, [8, 4], 128, torch.bfloat16)
        for y, wanted in zip(compiled(*inputs), both(*inputs), strict=True):
            torch.testing.assert_close(y, wanted, rtol=2e-2, atol=4e-2)
    assert frames.frame_count == 2


@pytest.mark.parametrize("model", ["Qwen3", "Gemma3"])
@pytest.mark.parametrize("shape", [(1, 2048), (2, 17), (3, 1)], ids=str)
def test_backbay_leaves_heads_of_models_to_inductor(model, shape):
    transformers = pytest.importorskip("transformers")
    from torch._inductor.utils import run_and_get_code

    kind = getattr(transformers, "Gemma3TextConfig" if model == "Gemma3" else "Qwen3Config")
    config = kind(
        hidden_size=1024,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=128,
        vocab_size=1000,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{model}ForCausalLM")(config).cuda().bfloat16().eval()
    ids = torch.randint(1000, shape, device="cuda")
    with torch.no_grad():
        call = torch.compile(lambda ids: model(input_ids=ids).logits, backend="backbay")
        found, codes = run_and_get_code(call, ids)
        wanted = model(input_ids=ids).logits
    assert (found - wanted).float().norm() < 2e-2 * wanted.float().norm()
    assert len(re.findall(r"rotated_heads_kernel_\d+\.run\(", "".join(codes))) == 2
