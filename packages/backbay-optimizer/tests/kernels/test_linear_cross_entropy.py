"""Losses of linear layers in parts, on the CPU: reference, registration, memory, the kernel."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from backbay_optimizer.kernels import linear_cross_entropy as module  # noqa: E402

IGNORED = -100
ALL = (True, True, True)
DOUBLE = module.How(1.0, IGNORED, torch.float64)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(module, "FEWEST_ROWS", 4)
    monkeypatch.setattr(module, "MOST_ROWS", 8)


def layer(rows, columns=33, features=12, dtype=torch.float64, *, bias=True):
    """Return rows, a weight, a bias and targets."""
    drawn = torch.Generator().manual_seed(0)
    shapes = ((rows, features), (columns, features), (columns,))
    made = [torch.randn(x, generator=drawn, dtype=torch.float64).to(dtype) for x in shapes]
    target = torch.randint(columns, (rows,), generator=drawn)
    target[1:2] = IGNORED
    inputs = [t.requires_grad_() for t in made]
    return *inputs[:2], (inputs[2] if bias else None), target


def both(x, weight, bias, target, how):
    """Return losses of the operator and of the reference."""
    found, *_ = module.linear_cross_entropy(
        x, weight, bias, target, *how, *ALL[:2], bias is not None
    )
    return found, module.reference(x, weight, bias, target, how)


def assert_same_gradients(found, wanted, inputs, factor=0.37, **tolerances):
    inputs = [t for t in inputs if t is not None]
    for one, other in zip(
        *(torch.autograd.grad(y * factor, inputs) for y in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(one, other, **tolerances)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 40])
def test_a_loss_or_a_gradient_is_not_that_of_all_logits(rows, bias, scale):
    *inputs, target = layer(rows, bias=bias)
    found, wanted = both(*inputs, target, DOUBLE._replace(scale=scale))
    torch.testing.assert_close(found, wanted)
    assert_same_gradients(found, wanted, inputs)


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_rounded_to_16_bits_is_rounded_twice(given, dtype):
    *inputs, target = layer(400, dtype=given)
    how = module.How(1.0, IGNORED, dtype)
    found, wanted = both(*inputs, target, how)
    torch.testing.assert_close(found, wanted)
    wide = [t.to(dtype).double().detach().requires_grad_() for t in inputs]
    truth = torch.autograd.grad(module.reference(*wide, target, DOUBLE), wide)
    for one, other, exact in zip(
        torch.autograd.grad(found, inputs), torch.autograd.grad(wanted, inputs), truth, strict=True
    ):
        errors = [(t.double() - exact).norm() for t in (one, other)]
        assert errors[0] <= 1.05 * errors[1], errors
        assert one.dtype == given


def test_a_loss_that_is_scaled_in_16_bits_has_other_gradients():
    *inputs, target = layer(40, dtype=torch.float16)
    found, _ = both(*inputs, target, module.How(1.0, IGNORED, torch.float16))
    wide = [t.detach().double().requires_grad_() for t in inputs]
    truth = torch.autograd.grad(module.reference(*wide, target, DOUBLE), wide)
    for factor in (2.0**-14, 2.0**10):
        gradients = torch.autograd.grad(found * factor, inputs, retain_graph=True)
        for one, exact in zip(gradients, truth, strict=True):
            error = (one.double() - exact * factor).norm()
            assert error <= 2**-9 * (exact * factor).norm() + 2**-25 * one.numel() ** 0.5


@pytest.mark.parametrize("scale", [1 / 64, 1.0, 3.0, 1e5])
def test_gradients_of_rare_words_vanish_in_16_bits(scale):
    """They are small, and an optimizer may make them large again."""
    x, weight, _, target = layer(64, 4096, 16, torch.float16, bias=False)
    x, weight = ((t.detach() / 4 / max(scale, 1) ** 0.5).requires_grad_() for t in (x, weight))
    target = target.clamp(max=99)
    how = module.How(scale, IGNORED, torch.float16)
    found, *_ = module.linear_cross_entropy(x, weight, None, target, *how, *ALL[:2], False)  # noqa: FBT003 (no bias)
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    truth = torch.autograd.grad(
        module.reference(*wide, None, target, DOUBLE._replace(scale=scale)), wide[1]
    )[0][100:]
    one = torch.autograd.grad(found * 2.0**10 / scale, weight)[0][100:].double() * scale / 2**10
    errors = (one - truth).norm(dim=1) / truth.norm(dim=1)
    assert errors.median() < 2e-3
    assert errors.max() < 2e-2


@pytest.mark.parametrize("sizes", [(20, 19), (19, 20), (20, 1), (2, 0)])
def test_a_target_for_another_number_of_rows_is_taken(sizes):
    rows, count = sizes
    x, weight, bias, _ = layer(rows)
    with pytest.raises(ValueError, match=f"{rows} rows and targets of"):
        module.linear_cross_entropy(
            x, weight, bias, torch.zeros(count, dtype=torch.int64), *DOUBLE, *ALL
        )


def test_a_second_derivative_is_silently_wrong():
    x, weight, bias, target = layer(20)
    loss, *_ = module.linear_cross_entropy(x, weight, bias, target, *DOUBLE, *ALL)
    (once,) = torch.autograd.grad(loss.square(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no autograd formula|does not require grad"):
        once.square().sum().backward()


def test_what_lies_with_gaps_or_turned_is_another():
    x, weight, bias, target = layer(20)
    turned = [t.t().contiguous().t().detach().requires_grad_() for t in (x, weight)]
    halves = [torch.stack((t, t), 1)[:, 0].detach().requires_grad_() for t in (x, weight)]
    wanted = module.reference(x, weight, bias, target, DOUBLE)
    for inputs in (turned, halves):
        found, *_ = module.linear_cross_entropy(*inputs, bias, target, *DOUBLE, *ALL)
        torch.testing.assert_close(found, wanted)
        for one, other in zip(
            torch.autograd.grad(found, inputs),
            torch.autograd.grad(wanted, (x, weight), retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(one, other)


SPECIAL = st.sampled_from([0.0, 1.0, -3.5, 60.0, float("inf"), float("-inf"), float("nan")])


@given(
    rows=st.lists(st.lists(SPECIAL, min_size=4, max_size=4), min_size=1, max_size=9), data=st.data()
)
@settings(max_examples=60, deadline=None)
def test_rows_with_infinities_and_nan_have_other_losses(rows, data):
    columns = st.lists(
        st.sampled_from([*range(4), IGNORED]), min_size=len(rows), max_size=len(rows)
    )
    target = torch.tensor(data.draw(columns))
    bias = torch.zeros(4, requires_grad=True)
    # The rows themselves are logits: a product would add infinities times zero.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "linear", lambda x, weight, _: F.pad(x, (0, len(weight) - 4)))
        x = torch.tensor(rows)
        how = module.How(1.0, IGNORED, torch.float32)
        found, *_, dbias = module._summed(x, torch.eye(4), bias, target, how, (False, False, True))
    logits = x.requires_grad_()
    wanted = F.cross_entropy(logits, target, reduction="sum", ignore_index=IGNORED)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    (gradient,) = torch.autograd.grad(wanted, logits)
    torch.testing.assert_close(dbias, gradient.sum(0), equal_nan=True)


@pytest.mark.parametrize("wrong", [-1, 33, -99])
def test_a_target_that_is_no_column_is_taken(wrong):
    x, weight, bias, target = layer(9)
    target[-1] = wrong
    with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
        module.linear_cross_entropy(x, weight, bias, target, *DOUBLE, *ALL)


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_a_gradient_that_nobody_wants_is_computed_or_one_that_is_wanted_is_zero(wanted):
    x, weight, bias, target = layer(20)
    loss, *_ = module.linear_cross_entropy(x, weight, bias, target, *DOUBLE, *wanted)
    with pytest.raises(RuntimeError, match="a gradient that was not computed"):
        loss.backward()
    inputs = [t.detach().requires_grad_(x) for t, x in zip((x, weight, bias), wanted, strict=True)]
    loss, _, *found = module.linear_cross_entropy(*inputs, target, *DOUBLE, *wanted)
    assert [t.numel() > 0 for t in found] == [*wanted]
    mine = [t for t in inputs if t.requires_grad]
    assert_same_gradients(loss, module.reference(*inputs, target, DOUBLE), mine)


def test_backward_cannot_be_called_twice_or_changes_what_it_gave():
    x, weight, bias, target = layer(20)
    found, wanted = both(x, weight, bias, target, DOUBLE)
    for factor in (1.0, 3.0):
        once, other = (
            torch.autograd.grad(y * factor, (x, weight), retain_graph=True) for y in (found, wanted)
        )
        for a, b in zip(once, other, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("factor", [1.0, float("nan")])
def test_rows_that_do_not_count_have_gradients(factor):
    x, weight, bias, target = layer(20)
    loss, count, *_ = module.linear_cross_entropy(
        x, weight, bias, target.fill_(IGNORED), *DOUBLE, *ALL
    )
    assert loss.item() == count.item() == 0
    for one in torch.autograd.grad(factor * loss / count, (x, weight, bias)):
        assert not one.any()


def test_torch_finds_fault_in_the_registration():
    for bias in (True, False):
        *inputs, target = layer(20, dtype=torch.float32, bias=bias)
        how = module.How(0.5, IGNORED, torch.bfloat16)
        module.linear_cross_entropy  # noqa: B018 (registers it)
        torch.library.opcheck(
            torch.ops.backbay.linear_cross_entropy.default,
            (*inputs, target, *how, True, True, bias),
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


class Largest(TorchDispatchMode):
    """Notes the largest tensor that an operator gives."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, tuple | list) else (result,):
            if isinstance(t, torch.Tensor):
                self.elements = max(self.elements, t.numel())
        return result


@pytest.mark.parametrize("rows", [16, 33, 400])
def test_all_logits_are_in_memory(rows):
    x, weight, bias, target = (t.detach() for t in layer(rows, columns=640, features=2))
    with Largest() as largest:
        module._summed(x, weight, bias, target, DOUBLE, ALL)
    assert largest.elements == module.rows_at_once(rows) * 640 < rows * 640


@pytest.mark.parametrize("rows", [0, 1, 5, 16, 17, 31, 33, 100])
def test_parts_are_uneven_or_too_large(rows):
    at_once = module.rows_at_once(rows)
    assert at_once <= module.MOST_ROWS
    assert not rows or 0 <= -(-rows // at_once) * at_once - rows < -(-rows // at_once)


MEASURED = [  # rows, features, columns, how, and MiB on an H200: with all logits, and in parts
    (8192, 2048, 128256, "16 bits", 2538, 1568),
    (8192, 2048, 128256, "float32", 3040, 2078),
    (8192, 2048, 128256, "frozen", 2036, 566),
    (16384, 2048, 128256, "float32", 5076, 2650),
    (32768, 2048, 128256, "16 bits", 8646, 2260),
    (32768, 2048, 128256, "frozen", 8144, 1258),
    (8192, 4096, 128256, "float32", 4072, 4136),
    (32768, 4096, 128256, "16 bits", 9274, 3518),
    (32768, 4096, 128256, "float32", 10276, 4552),
    (16384, 896, 151936, "16 bits", 5036, 1762),
    (16384, 896, 151936, "frozen", 4776, 1243),
]


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_it_is_taken_where_it_gains_nothing_or_counts_other_bytes(case, monkeypatch):
    monkeypatch.undo()  # parts as large as they are
    rows, features, columns, how, all_at_once, in_parts = case
    dtype = torch.float32 if how == "float32" else torch.bfloat16
    weight = torch.empty(columns, features, dtype=dtype, device="meta")
    given = (rows, weight, torch.bfloat16)
    why = module.pays(*given, of_weight=how != "frozen")
    assert (why is None) == (in_parts < 0.8 * all_at_once), why
    monkeypatch.setattr(module, "_MOST_LEFT", 0)
    ours, _, _, _, _, _, theirs, *_ = module.pays(*given, of_weight=how != "frozen").split()
    assert abs(int(ours) / in_parts - 1) < 0.03
    assert abs(int(theirs) / all_at_once - 1) < 0.03


def test_all_rows_are_a_part_and_it_is_taken():
    weight = torch.empty(128, 1, dtype=torch.bfloat16)
    assert module.pays(4, weight, torch.bfloat16, of_weight=False) is not None
    assert module.pays(64, weight, torch.bfloat16, of_weight=False) is None


def test_a_copy_of_the_weight_does_not_count():
    weight = torch.empty(130, 30, dtype=torch.bfloat16)
    assert module.pays(64, weight, torch.bfloat16, of_weight=False) is not None
    assert module.pays(64, weight[:128], torch.bfloat16, of_weight=False) is None


@pytest.mark.parametrize("columns", [64, 1000, 8192])
def test_a_gradient_that_is_larger_than_the_logits_does_not_count(columns):
    """Few columns: token classification."""
    weight = torch.empty(columns, 1024, dtype=torch.bfloat16)
    why = module.pays(16384, weight, torch.bfloat16, of_weight=False)
    assert (why is None) == (columns > 1000), why


def test_more_columns_than_a_grid_has_programs_for_are_given_to_the_kernel(monkeypatch):
    pytest.importorskip("triton")
    launched, computed = [], []
    monkeypatch.setattr(module, "launch_gradient", lambda kernel, x, *_: launched.append(x.shape))
    monkeypatch.setattr(module, "widened", lambda x: computed.append(x.shape) or torch.zeros(1, 1))
    with torch._subclasses.FakeTensorMode():
        for width in (module.MOST_COLUMNS, module.MOST_COLUMNS + 1):
            logits = torch.empty(2, width, dtype=torch.bfloat16, device="cuda")
            with contextlib.suppress(RuntimeError):  # there is no such device
                module._differentiate(logits, *[torch.empty(2)] * 3, width, 1.0)
    assert computed == [(2, module.MOST_COLUMNS + 1)]
    assert launched == [(2, module.MOST_COLUMNS)]


INTERPRETED = """
    import itertools
    import torch
    from torch.testing import assert_close
    from backbay_optimizer.kernels import linear_cross_entropy as module, softmax
    from backbay_optimizer.kernels.softmax_device import cross_entropy_gradient_kernel as kernel

    torch.manual_seed(0)
    for columns, width, scale, dtype in itertools.product(
        (1, 40, 2049), (0, 48), (1.0, 0.5), (torch.float32, torch.bfloat16)
    ):
        logits = (3 * torch.randn(5, -(-columns // 16) * 16 + width)).to(dtype)
        target = torch.randint(columns, (5,))
        given = torch.tensor([1.0, 0.0, 0.5, 1.0, 1.0])
        total = (logits[:, :columns].float() * scale).logsumexp(1)
        wanted = logits.clone()
        module._differentiate(wanted, given, target, total, columns, scale)
        assert not wanted[:, columns:].any()
        module.launch_gradient(kernel, logits, given, target, total, columns, scale)
        # The interpreter cuts numbers off where hardware rounds.
        rtol = 2**-7 if dtype == torch.bfloat16 else 1e-5
        assert_close(logits, wanted, rtol=rtol, atol=1e-6)
    softmax.refusal = lambda _: None  # who adds logits up takes the kernel
    for scale, dtype in itertools.product((1.0, 0.5), (torch.float32, torch.bfloat16)):
        logits = (3 * torch.randn(5, 2049)).to(dtype)
        total = (logits.float() * scale).logsumexp(1)
        assert_close(module._total(logits, scale), total, rtol=1e-5, atol=1e-5)
    print("right")
"""


def test_the_kernel_is_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)


DRAWN = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few, round_casts
    from torch.testing import assert_close
    from backbay_optimizer.kernels import linear_cross_entropy as module
    from backbay_optimizer.kernels.softmax_device import cross_entropy_gradient_kernel as kernel

    round_casts()
    few(30)
    DTYPES = [torch.float32, torch.float16, torch.bfloat16]
    module._BLOCK = 128

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from(DTYPES))
        rows = draw(st.integers(1, 4))
        columns = draw(st.sampled_from([1, 15, 16, 63, 128, 129, 200]))
        width = -(-columns // 16) * 16 + draw(st.sampled_from([0, 16, 48]))
        scale = draw(st.sampled_from([1.0, 0.5, 3.0]))
        torch.manual_seed(draw(st.integers(0, 9)))
        size = draw(st.sampled_from([1.0, 10.0, 300.0]))
        logits = (size * torch.randn(rows, width)).to(dtype)
        if columns > 1:
            logits[0, 0] = draw(st.sampled_from([0.0, float("-inf")]))
        logits[-1, -1] = draw(st.sampled_from([0.0, float("inf"), float("nan")]))  # maybe padding
        target = torch.randint(columns, (rows,))
        given_ = torch.tensor([1.0, 0.0, -0.5, 2.0**15])[:rows]
        total = (logits[:, :columns].double() * scale).logsumexp(1)
        wanted = logits.double()
        module._differentiate(wanted, given_.double(), target, total, columns, scale)
        module.launch_gradient(kernel, logits, given_, target, total.float(), columns, scale)
        assert not logits[:, columns:].any()
        # Exponentials have the error of their logits, which is theirs times float32's.
        error = 2**-21 * size * scale
        for one, other, factor in zip(logits.double(), wanted, given_.abs().tolist(), strict=True):
            close = {"rtol": torch.finfo(dtype).eps + error, "atol": (1e-6 + error) * factor}
            assert_close(one, other.to(dtype).double(), equal_nan=True, **close)

    check()
    print("right")
"""


def test_the_gradient_of_drawn_logits_strays_from_float64(assert_right_in_interpreter):
    assert_right_in_interpreter(DRAWN)
