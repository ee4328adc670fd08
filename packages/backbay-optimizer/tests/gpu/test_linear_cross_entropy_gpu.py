"""Losses of linear layers on a CUDA device: results, memory, CUDA graphs, whole models."""

import textwrap

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import linear_cross_entropy as module  # noqa: E402
from backbay_optimizer.kernels.softmax_device import cross_entropy_gradient_kernel  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CASES = [  # rows, features, columns
    (2, 64, 1000),
    (37, 24, 50257),
    (300, 64, 50257),
    (2048, 256, 32000),
    (5000, 128, 4099),
    (70, 1000, 151936),
]


def layer(rows, features, columns, dtype=torch.bfloat16):
    drawn = torch.Generator("cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=drawn, device="cuda").to(dtype).requires_grad_()

    x, bias = normal(rows, features), normal(columns)
    weight = (3 * normal(columns, features) / features**0.5).detach().requires_grad_()
    target = torch.randint(columns, (rows,), generator=drawn, device="cuda")
    target[3::7] = -100
    return x, weight, bias, target


def gradients(x, weight, bias, target, how):
    """Return the loss and gradients, by the operator."""
    wanted = [t is not None and t.requires_grad for t in (x, weight, bias)]
    loss, *_ = module.linear_cross_entropy(x, weight, bias, target, *how, *wanted)
    inputs = [t for t, y in zip((x, weight, bias), wanted, strict=True) if y]
    return loss, *torch.autograd.grad(loss * 0.37, inputs)


def eager(x, weight, bias, target, scale=1.0):
    logits = F.linear(x, weight, bias)
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    loss = F.cross_entropy(logits * scale, target, reduction="sum")
    inputs = [t for t in (x, weight, bias) if t is not None and t.requires_grad]
    return loss, *torch.autograd.grad(loss * 0.37, inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_loss_or_a_gradient_is_further_from_the_truth_than_torchs(case, dtype, scale):
    inputs = layer(*case, dtype)
    found = gradients(*inputs, module.How(scale, -100, dtype))
    other = eager(*inputs, scale)
    wide = [t.detach().double().requires_grad_() for t in inputs[:3]]
    truth = eager(*wide, inputs[3], scale)
    for one, that, exact in zip(found, other, truth, strict=True):
        errors = [(t.double() - exact).norm() / exact.norm() for t in (one, that)]
        assert errors[0] <= 1.1 * errors[1] + 1e-6, errors
    assert [t.dtype for t in found] == [t.dtype for t in other]


def test_a_float32_weight_gets_a_rounded_gradient():
    inputs = layer(3000, 64, 5000, torch.float32)
    found = gradients(*inputs, module.How())
    with torch.autocast("cuda", torch.bfloat16):
        other = eager(*inputs)
    wide = [t.detach().bfloat16().double().requires_grad_() for t in inputs[:3]]
    truth = eager(*wide, inputs[3])
    for one, that, exact in list(zip(found, other, truth, strict=True))[1:]:
        assert one.dtype == torch.float32
        assert (one - exact).norm() < (that - exact).norm()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 40, 2048, 2049, 50257])
def test_the_kernel_is_stray_or_misread(columns, dtype):
    logits = torch.randn(5, -(-columns // 64) * 64, device="cuda").to(dtype)
    target = torch.randint(columns, (5,), device="cuda")
    given = torch.tensor([1.0, 0.0, 0.5, 1.0, 1.0], device="cuda")
    read = logits[:, :columns].float() * 0.5
    total = read.logsumexp(1)
    wanted = ((read - total[:, None]).exp() - F.one_hot(target, columns)) * given[:, None]
    how = (given, target, total, columns, 0.5)
    module.launch_gradient(cross_entropy_gradient_kernel, logits, *how)
    torch.testing.assert_close(logits[:, :columns], wanted.to(dtype), rtol=2**-7, atol=1e-5)
    assert not logits[:, columns:].any()


def test_places_need_more_than_32_bits():
    logits = torch.empty(20_000, 128_256, device="cuda", dtype=torch.bfloat16).normal_()
    assert logits.numel() > 2**31
    last = logits[-3:].clone()
    target = torch.randint(128_256, (20_000,), device="cuda")
    total = torch.full((20_000,), 12.0, device="cuda")
    how = (torch.ones(20_000, device="cuda"), target, total, 128_256, 1.0)
    module.launch_gradient(cross_entropy_gradient_kernel, logits, *how)
    wanted = (last.float() - 12).exp() - F.one_hot(target[-3:], 128_256)
    torch.testing.assert_close(logits[-3:], wanted.bfloat16())


def test_a_sum_begins_with_what_was_in_memory():
    """A product that is not added multiplies it by zero."""
    for dtype in DTYPES:
        one, other = (torch.randn(64, 64, device="cuda").to(dtype) for _ in range(2))
        to = torch.full((64, 64), torch.nan, device="cuda")
        module._multiply(to, one, other, 0.5, add=False)
        torch.testing.assert_close(to, 0.5 * (one.float() @ other.float()), rtol=1e-2, atol=1e-2)


def test_torch_finds_fault_in_the_registration():
    x, weight, bias, target = layer(600, 64, 1000)
    assert callable(module.linear_cross_entropy)
    given = (x, weight, bias, target, *module.How(0.5), True, True, True)
    torch.library.opcheck(
        torch.ops.backbay.linear_cross_entropy.default,
        given,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


def loss_of(x, weight, bias, target):
    logits = F.linear(x.view(2, -1, x.shape[-1]), weight, bias)
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), target)


def peak_of(call):
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("frozen", [False, True])
def test_backbay_holds_all_logits_or_has_other_gradients(mode, frozen):
    x, weight, _, target = layer(16384, 128, 32000)
    inputs = (x, weight.detach() if frozen else weight, None, target)
    wanting = [t for t in inputs[:2] if t.requires_grad]

    def compiled(backend, **options):
        torch.compiler.reset()
        if mode and backend == "backbay":
            options["triton.cudagraphs"] = True
        call = torch.compile(loss_of, backend=backend, options=options)
        return lambda: torch.autograd.grad(call(*inputs), wanting)

    ours, stock = compiled("backbay", linear_cross_entropy=True), compiled("inductor")
    logits = 16384 * 32000 * 2
    for _ in range(3):
        found = ours()
    for one, other in zip(found, stock(), strict=True):
        assert (one - other).float().norm() < 5e-3 * other.float().norm()
    if mode is None:
        assert peak_of(ours) < 0.45 * logits
        assert peak_of(stock) > logits


def test_a_decoder_in_training_holds_all_logits_or_learns_otherwise():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64000,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).cuda().bfloat16().train()
    ids = torch.randint(64000, (4, 2048), device="cuda")

    def loss(ids):
        return model(input_ids=ids, labels=ids).loss

    found = []
    # A recording's pool and copies are no part of what a loss holds.
    ours = {"linear_cross_entropy": True, "cuda_graphs": False}
    for backend, options in (("inductor", {}), ("backbay", ours)):
        torch.compiler.reset()
        call = torch.compile(loss, backend=backend, options=options)

        def step(call=call):
            model.zero_grad()
            value = call(ids)
            value.backward()
            return value

        peak = peak_of(step)
        found.append((step().item(), [p.grad.clone() for p in model.parameters()], peak))
    (one, gradients_of_one, peak), (other, gradients_of_other, less) = found
    assert abs(one - other) < 1e-3
    for a, b in zip(gradients_of_one, gradients_of_other, strict=True):
        assert (a - b).float().norm() < 2e-2 * a.float().norm() + 1e-6
    assert peak - less > 0.5 * 4 * 2048 * 64000 * 2


def test_a_target_that_is_no_column_is_taken(run_python):
    program = """
        import torch
        from backbay_optimizer.kernels import linear_cross_entropy as module
        x, weight = torch.randn(9, 8, device="cuda"), torch.randn(33, 8, device="cuda")
        target = torch.full((9,), 33, device="cuda")
        how = module.How(dtype=torch.float32)
        module.linear_cross_entropy(x, weight, None, target, *how, True, True, False)
        torch.cuda.synchronize()
    """
    done = run_python(textwrap.dedent(program), check=False)
    assert done.returncode
    assert "device-side assert" in done.stderr
