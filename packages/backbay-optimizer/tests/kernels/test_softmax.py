"""Softmax and losses on the CPU: reference, registration, kernels in Triton's interpreter."""

import contextlib
import importlib.util
import itertools
import re

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import conditions  # noqa: E402
from backbay_optimizer.kernels import softmax as module  # noqa: E402

IGNORED = -100


def logits(*shape, dtype=torch.float64):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    return x.to(dtype)


def targets(rows, columns):
    drawn = torch.randint(columns, (rows,), generator=torch.Generator().manual_seed(1))
    return drawn.index_fill_(0, torch.tensor([0]), IGNORED)


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("is_log", [True, False])
@pytest.mark.parametrize("shape", [(5, 33), (1, 8), (2, 3, 7), (9,)], ids=str)
def test_a_softmax_is_not_torchs(shape, is_log, is_written):
    x = logits(*shape)
    function = torch.log_softmax if is_log else torch.softmax
    for scale in (1.0, 0.25):
        y = module.softmax(x, scale, torch.float64, is_log, is_written)
        torch.testing.assert_close(y, function(x * scale, -1))
    assert module.softmax(x, 1.0, torch.float32, is_log, is_written).dtype == torch.float32


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_loss_or_its_gradient_is_not_torchs(scale):
    x, t = logits(5, 33).requires_grad_(), targets(5, 33)
    losses, *_ = module.cross_entropy(x, t, scale, IGNORED)
    wanted = F.cross_entropy(x * scale, t, reduction="none")
    torch.testing.assert_close(losses, wanted)
    dy = torch.randn_like(losses)
    found, other = (torch.autograd.grad(y, x, dy)[0] for y in (losses, wanted))
    torch.testing.assert_close(found, other)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_backward_takes_logarithms_or_64_bits_for_each_logit(codes_for_cuda, monkeypatch):
    monkeypatch.setattr(module, "refusal", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    x = logits(module.FEW_ROWS, 4096, dtype=torch.bfloat16).requires_grad_()
    t = targets(*x.shape)
    forward, backward = codes_for_cuda(lambda x: module.cross_entropy(x, t, 1.0, IGNORED)[0], x)
    assert "softmax_statistics_kernel" in forward
    (kernel,) = re.findall(r"def triton_.*?device_str=", backward, re.DOTALL)
    assert ".exp(" in kernel
    assert not re.search(r"\.log\(|int64", kernel)


SPECIAL = st.sampled_from([0.0, 1.0, -3.5, 60.0, float("inf"), float("-inf"), float("nan")])


@pytest.mark.parametrize("is_written", [True, False])
@given(
    rows=st.lists(st.lists(SPECIAL, min_size=4, max_size=4), min_size=1, max_size=3), data=st.data()
)
@settings(max_examples=60, deadline=None)
def test_rows_with_infinities_and_nan_have_other_results(is_written, rows, data):
    x = torch.tensor(rows).requires_grad_()
    columns = st.lists(
        st.sampled_from([*range(4), IGNORED]), min_size=len(rows), max_size=len(rows)
    )
    t = torch.tensor(data.draw(columns))
    for is_log, function in ((True, torch.log_softmax), (False, torch.softmax)):
        y = module.softmax(x.detach(), 1.0, torch.float32, is_log, is_written)
        torch.testing.assert_close(y, function(x.detach(), -1), equal_nan=True)
    losses, *_ = module.cross_entropy(x, t, 1.0, IGNORED)
    wanted = F.cross_entropy(x, t, reduction="none")
    torch.testing.assert_close(losses, wanted, equal_nan=True)
    found, other = (torch.autograd.grad(y.sum(), x)[0] for y in (losses, wanted))
    torch.testing.assert_close(found, other, equal_nan=True)


def test_a_gradient_in_16_bits_is_rounded_twice():
    x, t = logits(6, 40, dtype=torch.bfloat16).requires_grad_(), targets(6, 40)
    losses, *_ = module.cross_entropy(x, t, 1.0, IGNORED)
    wanted = F.cross_entropy(x.float(), t, reduction="none")
    torch.testing.assert_close(losses, wanted)
    found, other = (torch.autograd.grad(y.sum(), x)[0] for y in (losses, wanted))
    torch.testing.assert_close(found, other, rtol=2**-8, atol=0)


def test_a_second_derivative_is_silently_wrong():
    x, t = logits(3, 5).requires_grad_(), targets(3, 5)
    losses, *_ = module.cross_entropy(x, t, 1.0, IGNORED)
    (once,) = torch.autograd.grad(losses.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no autograd formula|does not require grad"):
        once.sum().backward()


def test_torch_finds_fault_in_the_registration():
    x, t = logits(4, 9, dtype=torch.float32), targets(4, 9)
    losses, m, log_s = module.cross_entropy(x, t, 1.0, IGNORED)
    check = torch.library.opcheck
    check(torch.ops.backbay.softmax.default, (x, 0.5, torch.bfloat16, True, True))
    check(torch.ops.backbay.cross_entropy.default, (x.requires_grad_(), t, 0.5, IGNORED))
    given = (losses, x.detach(), t, m, log_s, 0.5, IGNORED)
    check(torch.ops.backbay.cross_entropy_backward.default, given)


class Nothing:
    """A kernel that does nothing, and notes how it is launched."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *given, **constants: self.launches.append((grid, given, constants))


def statistics(kernel, x):
    module.launch_statistics(kernel, x, 1.0)


def written(kernel, x):
    module.launch(kernel, x, 1.0, x.dtype, is_log=False)


def held(kernel, x):
    module.launch_held(kernel, x, 1.0, x.dtype, False)  # noqa: FBT003 (a search gives it so)


def launched(launch, x):
    kernel = Nothing()
    launch(kernel, x)
    ((grid, given, constants),) = kernel.launches
    return grid, given, constants


@pytest.mark.parametrize("launch", [statistics, held])
def test_numbers_of_rows_that_are_symbols_cannot_be_launched(launch):
    kernel = Nothing()

    def program(x):
        launch(kernel, x)
        return x

    make_fx(program, tracing_mode="symbolic")(logits(6, 8, dtype=torch.float32))
    assert len(kernel.launches) == 1


@pytest.mark.parametrize("launch", [statistics, written, held])
def test_rows_that_begin_anywhere_are_read_in_eights(launch):
    aligned = logits(2, 64, dtype=torch.float32)
    for x in (aligned, aligned[:, :56], aligned[:1]):
        assert launched(launch, x)[2]["is_aligned"]
    for x in (aligned[:, :50], logits(2, 63, dtype=torch.float32)[:, :56]):
        assert not launched(launch, x)[2]["is_aligned"]


def test_few_rows_are_one_program_each(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(module, "FEW_ROWS", 4)
    assert launched(statistics, logits(3, 40, dtype=torch.float32))[0] == (3, 3)
    assert launched(statistics, logits(4, 40, dtype=torch.float32))[0] == (4, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 200, 4096, 5000, 8193, 20000, module.HELD])
def test_a_row_that_is_held_fits_no_tile_or_rows_on_their_way_no_multiprocessor(columns, dtype):
    (programs,), _, constants = launched(held, logits(1, columns, dtype=dtype))
    tile = constants["depth"] * constants["lanes"]
    assert tile >= columns
    assert constants["lanes"] >= constants["num_warps"] * 32 * 8
    ahead = (constants["stages"] - 1) * tile * dtype.itemsize
    assert ahead * programs / 132 <= 227 * 1024 - 32 * 1024  # less what joins lanes


def test_rows_of_other_widths_get_another_plan():
    for columns in (4097, 6143, 12000, 12287):
        assert module.held_plan(columns, 2) == module.LOOSE
    for columns, tile in ((4096, 4096), (6144, 8192), (12288, 16384), (16385, 32768)):
        assert module.held_plan(columns, 2) == module.HELD_PLANS[tile]
    assert module.held_plan(module.HELD, 4).stages == 2
    with pytest.raises(ValueError, match="empty"):
        module.tile_of(module.HELD + 1)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_row_is_written_by_the_kernel_for_another_length(monkeypatch):
    taken = []

    def noting(name):
        return lambda _, x, *__, **___: taken.append(name) or torch.empty_like(x)

    monkeypatch.setattr(module, "refusal", lambda _: None)
    monkeypatch.setattr(module, "launch", noting("read again"))
    monkeypatch.setattr(module, "launch_held", noting("held"))
    for columns in (4096, module.HELD, module.HELD + 8):
        x = torch.empty(module.FEW_ROWS, columns, dtype=torch.bfloat16)
        module.softmax(x, 1.0, torch.bfloat16, False, True)  # noqa: FBT003 (an operator's)
    assert taken == ["held", "held", "read again"]


def test_a_plan_from_another_gpu_makes_another_tile():
    x = logits(1, 5000, dtype=torch.float32)
    for lanes in (256, 8192):
        kernel, how = Nothing(), module.HeldPlan(16, lanes, 1, 1)
        module.launch_held(kernel, x, 1.0, x.dtype, False, how)  # noqa: FBT003 (likewise)
        ((grid, _, constants),) = kernel.launches
        assert grid == (16,)
        assert constants["depth"] * constants["lanes"] == 8192


def test_a_search_compares_with_something_else_or_launches_otherwise(monkeypatch):
    asked = []

    def noted(plan, launch):
        asked.append(launch)
        return plan

    monkeypatch.setattr(module, "plan_here", noted)
    x = logits(2, 5000, dtype=torch.float32)
    first = launched(held, x)
    (this,) = asked
    torch.testing.assert_close(this.reference(*this.given), torch.softmax(x, -1))
    kernel = Nothing()
    this.run(kernel, *this.given, module.held_plan(5000, 4))
    ((grid, _, constants),) = kernel.launches
    assert (grid, constants) == (first[0], first[2])
    assert len(asked) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_program_breaks_or_differs(dynamic):
    def program(x, t):
        return module.cross_entropy(x, t, 1.0, IGNORED)[0].sin()

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (6, 7):
        x, t = logits(rows, 9, dtype=torch.float32).requires_grad_(), targets(rows, 9)
        found, wanted = compiled(x, t), program(x, t)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, wanted)))


INTERPRETED = """
    import torch
    from torch.testing import assert_close
    from backbay_optimizer.kernels import softmax as module
    from backbay_optimizer.kernels import softmax_device as device

    torch.manual_seed(0)
    inf = float("inf")
    module.STATISTICS = module.WRITTEN = module.Plan(2, 32, 1)
    module.CHUNK = 64
    shapes = ((5, 200, 0), (9, 203, 0), (3, 7, 0), (3, 1, 0), (4, 64, 8), (9, 129, 3), (1, 999, 0))
    how = {"equal_nan": True, "rtol": 2e-5, "atol": 2e-6}
    plan = module.HeldPlan(2, 1024, 4, 3)
    for dtype, (rows, columns, pad), few in (
        (dtype, shape, few)
        for dtype in (torch.float32, torch.bfloat16)
        for shape in shapes
        for few in (0, 1000)
    ):
        module.FEW_ROWS = few
        x = (torch.randn(rows, columns + pad) * 5).to(dtype)[:, :columns]
        if rows > 4:
            x[0] = -inf
            x[1, columns // 2] = float("nan")
            x[2, -1] = inf
            x[3, : columns // 2 + 3] = -inf
            x[4, -1] = 30
        m, s = module.launch_statistics(device.softmax_statistics_kernel, x, 1.5)
        logs = module.launch_statistics(device.softmax_statistics_kernel, x, 1.5, is_log=True)
        assert_close(logs, (m, s.log()), equal_nan=True)
        for is_log, function in ((True, torch.log_softmax), (False, torch.softmax)):
            wanted = function(x.double() * 1.5, -1)
            got = module._normalised(x, m, s, 1.5, is_log=is_log)
            assert_close(got, wanted.float(), **how)
            for out, near in ((torch.float32, how), (dtype, {"equal_nan": True})):
                got = module.launch(device.softmax_kernel, x, 1.5, out, is_log=is_log)
                assert_close(got, wanted.to(out), **near)
                got = module.launch_held(device.softmax_held_kernel, x, 1.5, out, is_log, plan)
                assert_close(got, wanted.to(out), **near)
    print("right")
"""


def test_the_kernels_are_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)


DRAWN = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few, round_casts
    from torch.testing import assert_close
    from torch.nn import functional as F
    from backbay_optimizer.kernels import softmax as module
    from backbay_optimizer.kernels import softmax_device as device

    round_casts()
    few(24)
    DTYPES = [torch.float32, torch.float16, torch.bfloat16]
    module.STATISTICS = module.WRITTEN = module.Plan(2, 32, 1)
    module.CHUNK = 64
    inf, nan = float("inf"), float("nan")
    FIRST = ["nothing", "-inf", "inf", "nan", "large", "a first half of -inf"]

    def put(x, what):
        if what == "a first half of -inf":
            x[: len(x) // 2] = -inf
        elif what == "large":
            x *= 1e3
        elif what != "nothing":
            x[(slice(None) if what == "-inf" else len(x) // 2)] = float(what)

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from(DTYPES))
        rows, columns = draw(st.integers(1, 5)), draw(st.sampled_from([1, 7, 64, 129, 200, 203]))
        pad = draw(st.sampled_from([0, 3, 8]))
        scale = draw(st.sampled_from([1.0, 1.5, 0.25]))
        module.FEW_ROWS = draw(st.sampled_from([0, 1000]))
        torch.manual_seed(draw(st.integers(0, 9)))
        whole = torch.randn(rows, columns + pad) * 4
        for row in whole:
            put(row, draw(st.sampled_from(FIRST)))
        whole[:, columns:] = inf  # belongs to nobody
        x = whole.to(dtype)[:, :columns]
        x = x[None] if draw(st.booleans()) else x
        target = torch.randint(columns, (rows,))
        target[draw(st.integers(0, rows - 1))] = -100
        close = {"rtol": 3e-5, "atol": 2e-6, "equal_nan": True}

        m, s = module.launch_statistics(device.softmax_statistics_kernel, x, scale)
        logs = module.launch_statistics(device.softmax_statistics_kernel, x, scale, is_log=True)
        assert m.shape == s.shape == (*x.shape[:-1], 1)
        flat = x.reshape(rows, columns)
        two = (t.view(rows, 1) for t in logs)
        losses = module.losses_of(flat, target, *two, scale, -100)
        wanted = F.cross_entropy(flat.double() * scale, target, reduction="none")
        assert_close(losses, wanted.float(), **close)
        plan = module.HeldPlan(draw(st.sampled_from([2, 7])), 1024, 4, 3)
        out = draw(st.sampled_from([torch.float32, dtype]))
        is_log = draw(st.booleans())
        wanted = (torch.log_softmax if is_log else torch.softmax)(x.double() * scale, -1)
        given_ = x, scale, out
        near = {**close, "rtol": max(close["rtol"], torch.finfo(out).eps)}
        for y in (
            module._normalised(x, m, s, scale, is_log=is_log).to(out),
            module.launch(device.softmax_kernel, *given_, is_log=is_log),
            module.launch_held(device.softmax_held_kernel, *given_, is_log, plan),
        ):
            assert_close(y, wanted.to(out), **near)

    check()
    print("right")
"""


def test_drawn_rows_that_are_held_or_their_statistics_stray_from_float64(
    assert_right_in_interpreter,
):
    assert_right_in_interpreter(DRAWN)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5)], ids=str)
def test_no_rows_are_given_to_a_kernel_or_have_another_softmax(shape, monkeypatch):
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    with torch._subclasses.FakeTensorMode():
        assert module.refusal(torch.empty(shape, device="cuda")) == "it is empty"
        assert module.refusal(torch.empty(1, 5, device="cuda")) is None
    x = torch.empty(shape)
    for is_log, is_written in itertools.product((True, False), repeat=2):
        y = module.softmax(x, 1.0, torch.bfloat16, is_log, is_written)
        assert (y.shape, y.dtype) == (x.shape, torch.bfloat16)
    x = torch.empty(0, 5, requires_grad=True)
    none = torch.empty(0, dtype=torch.int64)
    losses, *_ = module.cross_entropy(x, none, 1.0, IGNORED)
    torch.testing.assert_close(losses, F.cross_entropy(x, none, reduction="none"))
    assert torch.autograd.grad(losses.sum(), x)[0].shape == (0, 5)


def test_rows_of_no_columns_or_too_many_are_given_to_a_kernel(monkeypatch):
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    with torch._subclasses.FakeTensorMode():
        assert module.refusal(torch.empty(3, 0, device="cuda")) == "it is empty"
        assert module.refusal(torch.empty(3, module.MOST_COLUMNS, device="cuda")) is None
        most = f"the kernels take {module.MOST_COLUMNS}"
        assert most in module.refusal(torch.empty(3, module.MOST_COLUMNS + 1, device="cuda"))


@pytest.mark.parametrize("is_log", [False, True])
def test_rows_of_no_columns_have_another_softmax(is_log):
    x = torch.empty(3, 0)
    assert module.softmax(x, 1.0, torch.float32, is_log, is_written=True).shape == (3, 0)
    m, s = module.reference_statistics(x, 1.0)
    assert torch.equal(m, torch.full((3, 1), -torch.inf))
    assert torch.equal(s, torch.zeros(3, 1))
