"""Softmax and losses on a CUDA device: the kernels themselves, and what the backend makes."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import softmax as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CASES = [  # rows, columns, and those that are cut off
    (300, 32000, 0),
    (300, 50257, 0),
    (300, 128256, 8),
    (300, 2049, 5),
    (300, 5, 1),
    (700, 8192, 8),
    (900, 4096, 0),
    (300, 12000, 0),
    (3, 151936, 0),
    (1, 50257, 0),
    (7, 262144, 0),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def logits(rows, columns, cut=0, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(rows, columns + cut, generator=generator, device="cuda") * 5
    return x.to(dtype)[:, :columns]


def targets(rows, columns):
    generator = torch.Generator("cuda").manual_seed(1)
    t = torch.randint(columns, (rows,), generator=generator, device="cuda")
    return t.masked_fill(torch.arange(rows, device="cuda") % 5 == 1, -100)


def with_specials(x):
    if x.shape[0] > 5:
        x[0] = -torch.inf
        x[1, x.shape[1] // 2] = torch.nan
        x[2, -1] = torch.inf
        x[3, : x.shape[1] // 2 + 1] = -torch.inf
        x[4, -1] = 60
    return x


def assert_as_right(found, eager, truth):
    """Assert that a result is as near to the truth as eager's, give or take two roundings."""
    assert torch.equal(found.isnan(), truth.isnan())
    errors = [(x.double() - truth).abs().nan_to_num(0, 0, 0).max() for x in (found, eager)]
    assert errors[0] <= 3 * errors[1] + 1e-9, errors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("is_log", [True, False])
def test_a_softmax_is_further_from_the_truth_than_torchs(case, dtype, is_log):
    x = with_specials(logits(*case, dtype))
    function = torch.log_softmax if is_log else torch.softmax
    assert module.refusal(x) is None
    for scale in (1.0, 1 / 0.7):
        truth = function(x.double() * scale, -1)
        for out in {torch.float32, dtype}:
            for is_written in (True, False):
                y = module.softmax(x, scale, out, is_log, is_written)
                assert_as_right(y, function(x.float() * scale, -1).to(out), truth)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_or_gradients_are_further_from_the_truth_than_torchs(case, dtype):
    x, t = with_specials(logits(*case, dtype)).requires_grad_(), targets(*case[:2])
    losses, *_ = module.cross_entropy(x, t, 1.0, -100)
    eager = F.cross_entropy(x.float(), t, reduction="none")
    wide = x.detach().double().requires_grad_()
    truth = F.cross_entropy(wide, t, reduction="none")
    dy = torch.randn_like(losses)
    assert_as_right(losses, eager, truth)
    gradients = (
        torch.autograd.grad(y, z, dy.to(y.dtype))[0]
        for y, z in ((losses, x), (eager, x), (truth, wide))
    )
    assert_as_right(*gradients)


def test_places_need_more_than_32_bits():
    x = torch.empty(70_000, 32_000, device="cuda", dtype=torch.bfloat16).normal_()
    assert x.numel() > 2**31
    t = targets(*x.shape)
    losses, *_ = module.cross_entropy(x, t, 1.0, -100)
    wanted = F.cross_entropy(x[-50:].float(), t[-50:], reduction="none")
    torch.testing.assert_close(losses[-50:], wanted)
    y = module.softmax(x, 1.0, torch.bfloat16, False, True)  # noqa: FBT003 (an operator's)
    torch.testing.assert_close(y[-50:], torch.softmax(x[-50:], -1))


@pytest.mark.parametrize("compiled", [False, True])
def test_places_of_gradients_need_more_than_32_bits(compiled):
    if torch.cuda.mem_get_info()[0] < 48 * 2**30:
        pytest.skip("needs 48 GB of free memory")
    x = torch.empty(70_000, 32_000, device="cuda", dtype=torch.bfloat16).normal_()
    assert x.numel() > 2**31
    t = targets(*x.shape)
    assert callable(module.cross_entropy)

    def program(x):
        return module.cross_entropy(x, t, 1.0, -100)[0].sum()

    if compiled:
        program = torch.compile(program, backend=backbay, options={"cuda_graphs": False})
    (dx,) = torch.autograd.grad(program(x.requires_grad_()), x)
    for at in (slice(0, 50), slice(-50, None)):
        part = x[at].detach().float().requires_grad_()
        loss = F.cross_entropy(part, t[at], reduction="sum")
        (wanted,) = torch.autograd.grad(loss, part)
        torch.testing.assert_close(dx[at].float(), wanted, rtol=2**-7, atol=1e-9)


@pytest.mark.parametrize("rows", [17_000, 5])
def test_places_of_long_rows_need_more_than_32_bits(rows):
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GB of free memory")
    columns = 128_256 if rows > module.FEW_ROWS else module.MOST_COLUMNS
    x = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16).normal_()
    assert x.numel() > 2**31
    x[-1] *= 3
    t = torch.full((rows,), columns - 1, device="cuda")
    losses, m, _ = module.cross_entropy(x, t, 1.0, -100)
    wanted = x[-1].double().logsumexp(0) - x[-1, -1]
    torch.testing.assert_close(losses[-1].double(), wanted, rtol=1e-5, atol=1e-5)
    assert m[-1] == x[-1].max()
    if rows > module.FEW_ROWS:
        y = module.softmax(x, 1.0, torch.bfloat16, False, True)  # noqa: FBT003 (an operator's)
        torch.testing.assert_close(y[-1], torch.softmax(x[-1], -1), rtol=2**-7, atol=1e-9)


def test_a_row_has_more_parts_than_a_grid_has_programs():
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GB of free memory")
    x = torch.empty(1, module.MOST_COLUMNS + 8, device="cuda", dtype=torch.bfloat16).normal_()
    x[0, -1] = 60
    assert "columns" in module.refusal(x)
    t = torch.full((1,), x.shape[1] - 1, device="cuda")
    losses, m, _ = module.cross_entropy(x, t, 1.0, -100)
    assert (losses.item(), m.item()) == (0, 60)


def test_torch_finds_fault_in_the_registration():
    assert callable(module.softmax)
    x, t = logits(300, 4096, dtype=torch.float32), targets(300, 4096)
    for is_written in (True, False):
        given = (x, 0.5, torch.bfloat16, True, is_written)
        torch.library.opcheck(torch.ops.backbay.softmax.default, given)
    torch.library.opcheck(
        torch.ops.backbay.cross_entropy.default, (x.requires_grad_(), t, 1.0, -100)
    )


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "FEWEST_ELEMENTS", 0)


def loss_of(x, w, t):
    return F.cross_entropy(F.linear(x, w).float(), t)


@pytest.mark.parametrize("columns", [32000, 50257])
@pytest.mark.parametrize("pads", [True, False])
def test_backbay_leaves_a_loss_to_inductor_or_reads_what_it_padded_elsewhere(columns, pads, small):
    from torch._inductor.utils import run_and_get_code

    x, w = (logits(n, 256) / 8 for n in (1024, columns))
    x, w, t = x.requires_grad_(), w.requires_grad_(), targets(1024, columns)
    compiled = torch.compile(loss_of, backend=backbay, options={"force_shape_pad": pads})

    def run():
        y = compiled(x, w, t)
        return y, *torch.autograd.grad(y, (x, w))

    found, codes = run_and_get_code(run)
    wanted = loss_of(x, w, t)
    torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-4)
    for one, other in zip(found[1:], torch.autograd.grad(wanted, (x, w)), strict=True):
        torch.testing.assert_close(one, other, rtol=3e-2, atol=1e-5)
    assert "softmax_statistics_kernel" in "".join(codes)


def test_backbay_leaves_sampling_to_inductor_or_has_another_number_of_rows(small):
    from torch._inductor.utils import run_and_get_code

    def program(x):
        return torch.softmax(x.float() / 0.7, -1)

    compiled = torch.compile(program, backend=backbay)
    for rows in (64, 300, 70, 400):
        x = logits(rows, 32000)
        torch._dynamo.mark_dynamic(x, 0)
        found, codes = run_and_get_code(compiled, x)
        torch.testing.assert_close(found, program(x), rtol=1e-4, atol=1e-7)
        if rows == 64:
            assert "softmax_statistics_kernel" in "".join(codes)
