"""LayerNorm and RMSNorm on the CPU: reference, registration, kernels in Triton's interpreter."""

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import row_norm as module  # noqa: E402

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SHAPES = [(5, 24), (2, 3, 16), (1, 8), (9,)]


def inputs(dtype, *shape):
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator, dtype=torch.float64)

    return [t.to(dtype) for t in (draw(*shape) * 3 + 1, draw(shape[-1]), draw(shape[-1]))]


def torchs(x, weight, bias, offset, *, is_centred):
    if is_centred:
        return F.layer_norm(x, x.shape[-1:], weight + offset, bias, 1e-3)
    return F.rms_norm(x, x.shape[-1:], weight + offset, 1e-3) + bias


def ours(x, weight, bias, offset, *, is_centred):
    return module.row_norm(x, weight, bias, 1e-3, offset, is_centred)


@pytest.mark.parametrize("is_centred", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_norm_strays_from_float64(dtype, shape, is_centred):
    given = inputs(dtype, *shape)
    y, again, third, same, mean, rstd = ours(*given, 1.0, is_centred=is_centred)
    wide = [t.double() for t in given]
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    wanted = torchs(*wide, 1.0, is_centred=is_centred)
    for one in (y, again, third):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), wanted, **close)
    assert torch.equal(same, given[0])
    assert len({t.data_ptr() for t in (given[0], y, again, third, same)}) == 5
    assert mean.numel() == (rstd.numel() if is_centred else 0)


def test_a_mean_far_from_zero_costs_more_than_it_does_eager():
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)) + 1000
    one, zero = torch.ones(512), torch.zeros(512)
    truth = torchs(x.double(), one.double(), zero.double(), 0.0, is_centred=True)
    found, eager = (
        f(x, one, zero, 0.0, is_centred=True) for f in (lambda *a, **k: ours(*a, **k)[0], torchs)
    )
    errors = [(y.double() - truth).norm() for y in (found, eager)]
    assert errors[0] <= errors[1] * 1.5  # both round the mean


@pytest.mark.parametrize("is_centred", [True, False])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("readers", [(0,), (2,), (0, 1, 2), (0, 3), (1, 2, 3), (3,)], ids=str)
def test_gradients_of_several_readers_are_not_torchs(is_centred, offset, readers):
    given = [t.requires_grad_() for t in inputs(torch.float64, 2, 3, 16)]
    cotangents = [torch.randn(2, 3, 16, dtype=torch.float64) for _ in readers]
    results = ours(*given, offset, is_centred=is_centred)
    y = torchs(*given, offset, is_centred=is_centred)
    wanted = [given[0] * 1 if n == module.COPIES else y for n in readers]
    found, others = (
        torch.autograd.grad(list(of), given, cotangents, allow_unused=True)
        for of in ([results[n] for n in readers], wanted)
    )
    for one, other in zip(found, others, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_a_gradient_that_is_expanded_or_has_gaps_is_another():
    given = [t.requires_grad_() for t in inputs(torch.float64, 4, 16)]
    for dy in (torch.ones(()).double().expand(4, 16), torch.randn(16, 4).double().t()):
        found, other = (
            torch.autograd.grad(y, given, dy)
            for y in (ours(*given, 0.0, is_centred=True)[0], torchs(*given, 0.0, is_centred=True))
        )
        torch.testing.assert_close(found, other)


def test_a_norm_without_a_bias_has_a_gradient_by_it():
    x, weight, _ = (t.requires_grad_() for t in inputs(torch.float64, 4, 16))
    found, other = (
        torch.autograd.grad(y.sin().sum(), (x, weight))
        for y in (
            ours(x, weight, None, 0.0, is_centred=False)[0],
            F.rms_norm(x, (16,), weight, 1e-3),
        )
    )
    torch.testing.assert_close(found, other)


def test_a_second_derivative_is_silently_wrong():
    given = [t.requires_grad_() for t in inputs(torch.float64, 2, 16)]
    y = ours(*given, 0.0, is_centred=True)[0]
    once = torch.autograd.grad(y.square().sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no autograd formula|does not require grad"):
        sum(x.sum() for x in once).backward()


def test_torch_finds_fault_in_the_registration():
    given = [t.requires_grad_() for t in inputs(torch.float32, 4, 16)]
    x, weight, _ = (t.detach() for t in given)
    *_, mean, rstd = ours(*given, 0.0, is_centred=True)
    check = torch.library.opcheck
    check(torch.ops.backbay.row_norm.default, (*given, 1e-3, 0.0, True))
    for extra, middle, has_bias in ((None, mean, True), (x, None, False)):
        how = (middle, rstd, 0.0, extra, has_bias)
        check(torch.ops.backbay.row_norm_backward.default, ([x, x], x, weight, *how))


class Nothing:
    """A kernel that does nothing, and notes how it is launched."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *given, **constants: self.launches.append((grid, given, constants))


def test_numbers_of_rows_that_are_symbols_cannot_be_launched():
    kernels = Nothing(), Nothing()

    def program(x, weight):
        rstd = x.new_ones((*x.shape[:-1], 1))
        return module.launch_backward(kernels, [x, x], x, weight, None, rstd, 0.0)

    make_fx(program, tracing_mode="symbolic")(*inputs(torch.float32, 6, 16)[:2])
    assert [len(k.launches) for k in kernels] == [1, 1]


def test_rows_in_another_order_are_read_as_they_lie():
    kernels = Nothing(), Nothing()
    x, weight, _ = inputs(torch.float32, 16, 16)
    rstd = torch.ones(16, 1)
    module.launch_backward(kernels, [x.t(), x], x, weight, None, rstd, 0.0, x[:1].expand(16, 16))
    (given,) = (given for _, given, _ in kernels[0].launches)
    for found, wanted in zip(given[:4], (x.t(), x, None, x[:1].expand(16, 16)), strict=True):
        assert (found is None) == (wanted is None)
        assert found is None or torch.equal(found, wanted.reshape(-1))
        assert found is None or found.is_contiguous()


@pytest.mark.parametrize("columns", [16, 96, 768, 1024, 2048, 4096, 5120, 8192, 16384])
@pytest.mark.parametrize("bytes_read", [4, 6, 10, 20])
def test_tiles_that_are_loaded_ahead_do_not_fit_in_shared_memory(columns, bytes_read):
    how = module.plan(columns, bytes_read)
    width = module._power_from(columns)
    ahead = how.stages * how.height * width * bytes_read * -(-how.programs // 132)
    assert how.stages == 1 or ahead <= 227 * 1024
    assert how.height * width // (32 * how.warps) <= 64  # elements of a thread


class Symbol:
    """A size of which a run tells more."""

    def __init__(self, hint):
        self.node = type("Node", (), {"hint": hint})

    def __repr__(self):  # a test's name, which all workers must agree on
        return f"Symbol({self.node.hint})"


class Rows:
    """A tensor on an H100."""

    dtype = torch.bfloat16

    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((4096, 4096), None),
        ((Symbol(4096), 4096), None),
        ((2, 4096, 768), None),
        ((200704, 96), None),
        ((Symbol(None), 4096), "only a run tells"),
        ((4096, 64), "eights of 96 to 8192"),
        ((4096, 16384), "eights of 96 to 8192"),
        ((4096, 4092), "eights of 96 to 8192"),
        ((4096, 5120), "idle"),
        ((2048, 1024), "fewer than 4194304"),
    ],
    ids=str,
)
def test_a_shape_that_was_not_measured_is_taken(shape, reason, monkeypatch):
    for name in ("refusal", "unmeasured"):
        monkeypatch.setattr(module, name, lambda *_: None)
    found = module.pays(Rows(*shape), Rows(shape[-1]))
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_program_breaks_or_differs(dynamic):
    def program(x, weight, bias):
        y, again, _, same, *_ = ours(x * 2, weight, bias, 0.0, is_centred=True)
        return same + y.sin() * again

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (5, 6):
        given = [t.requires_grad_() for t in inputs(torch.float32, rows, 16)]
        found, wanted = (f(*given) for f in (compiled, program))
        torch.testing.assert_close(found, wanted)
        gradients = [torch.autograd.grad(y.sum(), given) for y in (found, wanted)]
        torch.testing.assert_close(*gradients)


def test_a_compiler_keeps_the_copies():
    from torch._inductor.utils import run_and_get_code

    def program(x, one, other, weight):
        y, again, third, same, *_ = ours(x.sin(), weight, None, 0.0, is_centred=False)
        return same + F.linear(y, one) * F.linear(again, other) + F.linear(third, one)

    torch._dynamo.reset()
    compiled = torch.compile(program)
    generator = torch.Generator().manual_seed(0)
    shapes = ((6, 16), (16, 16), (16, 16), (16,))
    given = [torch.randn(x, generator=generator).requires_grad_() for x in shapes]
    found, codes = run_and_get_code(
        lambda: (y := compiled(*given), *torch.autograd.grad(y.sum(), given))
    )
    y = program(*given)
    wanted = (y, *torch.autograd.grad(y.sum(), given))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert "clone" not in "".join(codes)


INTERPRETED = """
    import torch
    from torch.testing import assert_close
    from backbay_optimizer.kernels import row_norm as module
    from backbay_optimizer.kernels import row_norm_device as device

    torch.manual_seed(0)
    kernels = device.row_norm_backward_kernel, device.row_norm_totals_kernel
    Plan = module.Plan
    for dtype, tolerance in ((torch.float32, 3e-5), (torch.bfloat16, 2e-2)):
        for rows, columns, plan in (
            (5, 40, Plan(2, 2, 1)),
            (7, 33, Plan(3, 1, 1)),
            (8, 64, Plan(70, 4, 1)),
            (6, 9, Plan(2, 4, 1)),
            (1, 16, None),
        ):
            for count, is_centred, adds in ((1, True, False), (3, False, True), (2, True, True)):
                x, *dys, extra = (torch.randn(rows, columns).to(dtype) for _ in range(count + 2))
                x, extra = x * 2 + 1, extra if adds else None
                weight = torch.randn(columns)
                _, mean, rstd = module.reference(x, weight, None, 1e-6, 1.0, is_centred=is_centred)
                given = (dys, x, weight, mean if is_centred else None, rstd, 1.0, extra)
                found = module.launch_backward(kernels, *given, is_centred, plan)
                wanted = module.reference_backward(*given)
                for one, other in zip(found[: 2 + is_centred], wanted):
                    assert_close(one, other, rtol=tolerance, atol=tolerance)
                assert found[2].numel() == (columns if is_centred else 0)
    print("right")
"""


def test_the_kernels_are_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)


DRAWN = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few, round_casts
    from torch.testing import assert_close
    from backbay_optimizer.kernels import row_norm as module
    from backbay_optimizer.kernels import row_norm_device as device

    round_casts()
    few(40)
    DTYPES = [torch.float32, torch.float16, torch.bfloat16]
    kernels = device.row_norm_backward_kernel, device.row_norm_totals_kernel
    PLANS = [module.Plan(2, 2, 1), module.Plan(3, 1, 1), module.Plan(7, 4, 1)]

    def wide(x):
        return None if x is None else x.double()

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from(DTYPES))
        rows, columns = draw(st.integers(1, 9)), draw(st.sampled_from([1, 8, 9, 16, 33, 64]))
        torch.manual_seed(draw(st.integers(0, 9)))
        spreads = [(0.0, 1.0), (200.0, 1.0), (0.0, 1e-3), (1.0, 1e4)]
        centre, deviation = draw(st.sampled_from(spreads))
        x = (torch.randn(rows, columns) * deviation + centre).to(dtype)
        scale = draw(st.sampled_from([1.0, 2.0**-10, 2.0**8]))

        def gradient():
            dy = (torch.randn(rows, columns) * scale).to(dtype)
            return draw(st.sampled_from([dy, dy.t().contiguous().t(), dy[:1].expand_as(dy)]))

        dys = [gradient() for _ in range(draw(st.integers(1, module.COPIES)))]
        extra = gradient() if draw(st.booleans()) else None
        weight = torch.randn(columns).to(draw(st.sampled_from([torch.float32, dtype])))
        is_centred, has_bias = draw(st.booleans()), draw(st.booleans())
        offset, plan = draw(st.sampled_from([0.0, 1.0])), draw(st.sampled_from(PLANS))
        _, mean, rstd = module.reference(x, weight, None, 1e-5, offset, is_centred=is_centred)
        mean = mean if is_centred else None
        found = module.launch_backward(
            kernels, dys, x, weight, mean, rstd, offset, extra, has_bias, plan
        )
        given_ = (wide(x), wide(weight), wide(mean), wide(rstd), offset)
        wanted = module.reference_backward([*map(wide, dys)], *given_, wide(extra))
        # What is added up, by magnitude: it may cancel.
        dy = sum(wide(t).abs() for t in dys)
        n = ((wide(x) - (0 if mean is None else wide(mean))) * wide(rstd)).abs()
        normal = 1 + n * n.mean(-1, keepdim=True)
        of_rows = (dy * (wide(weight) + offset).abs()).amax(-1, keepdim=True) * normal * wide(rstd)
        of_rows = of_rows if extra is None else of_rows + wide(extra).abs()
        sizes = of_rows.max(), (dy * n).sum(0).max(), dy.sum(0).max()
        kinds = dtype, weight.dtype, weight.dtype
        if not has_bias:
            assert found[2].numel() == 0
        for one, other, size, kind in zip(found[: 2 + has_bias], wanted, sizes, kinds):
            assert one.dtype == kind and one.shape == other.shape
            close = {"rtol": torch.finfo(kind).eps, "atol": 2**-20 * size.item()}
            assert_close(one.double(), other.to(kind).double(), **close)

    check()
    print("right")
"""


def test_gradients_of_drawn_rows_stray_from_float64(assert_right_in_interpreter):
    assert_right_in_interpreter(DRAWN)
