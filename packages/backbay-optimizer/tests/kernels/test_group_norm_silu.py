"""Group norm and SiLU on the CPU: reference, registration, kernels in Triton's interpreter."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import conditions, elsewhere  # noqa: E402
from backbay_optimizer.kernels import group_norm_silu as module  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def inputs(shape, dtype, *, last=False, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)

    x = 2 * draw(*shape) + 1
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    return x, draw(shape[1]), draw(shape[1]), draw(shape[0], shape[1])


def truth(x, weight, bias, groups, shift=None):
    x, weight, bias, shift = (None if t is None else t.double() for t in (x, weight, bias, shift))
    if shift is not None:
        x = x + shift.reshape(*shift.shape, *[1] * (x.dim() - 2))
    return F.silu(F.group_norm(x, groups, weight, bias, 1e-5))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, *DTYPES])
def test_the_operator_strays_from_float64(dtype, last):
    x, weight, bias, shift = inputs((2, 8, 5, 7), dtype, last=last)
    y, mean, rstd = module.group_norm_silu(x, weight, bias, 4, 1e-5, shift=shift)
    assert y.dtype == dtype
    assert y.stride() == x.stride()
    assert mean.shape == rstd.shape == (2, 4)
    wanted = truth(x, weight, bias, 4, shift)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(y.double(), wanted, rtol=tolerance, atol=tolerance)


def test_the_check_against_float64_passes_anything():
    x, weight, bias, _ = inputs((2, 8, 5, 7), torch.bfloat16)
    wrong = truth(x, weight, bias, 2)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(wrong, truth(x, weight, bias, 4), rtol=3e-2, atol=3e-2)


def test_gradients_are_not_those_of_the_function():
    x, weight, bias, shift = (
        t.requires_grad_() for t in inputs((2, 4, 3, 2), torch.float64, last=True)
    )
    residual = torch.randn_like(x).requires_grad_()

    def plain(x, weight, bias, shift):
        return module.group_norm_silu(x, weight, bias, 2, 1e-5, shift=shift)[0]

    def added(x, residual, weight, bias, shift):
        y, total, _, _ = module.add_group_norm_silu(
            x, residual, weight, bias, 2, 1e-5, silu=False, shift=shift
        )
        return y * total.sin()

    assert torch.autograd.gradcheck(plain, (x, weight, bias, shift))
    assert torch.autograd.gradcheck(plain, (x, weight, bias, shift[0].detach().requires_grad_()))
    assert torch.autograd.gradcheck(added, (x, residual, weight, bias, shift))


@pytest.mark.parametrize("result", [0, 1])
@pytest.mark.parametrize("per_sample", [False, True])
def test_a_result_that_is_not_read_has_a_gradient(result, per_sample, monkeypatch):
    x, weight, bias, shift = (
        t.requires_grad_() for t in inputs((2, 4, 3, 2), torch.float64, last=True)
    )
    shift = shift if per_sample else shift[0].detach().requires_grad_()
    given, read = (x, torch.randn_like(x).requires_grad_(), weight, bias, shift), []
    gradients = module._gradients
    monkeypatch.setattr(
        module, "_gradients", lambda *given, **how: read.append(given) or gradients(*given, **how)
    )

    def one(x, residual, weight, bias, shift):
        return module.add_group_norm_silu(x, residual, weight, bias, 2, 1e-5, shift=shift)[result]

    one(*given).sum().backward()
    assert [extra is None for *_, extra in read] == [True] * (1 - result)  # no zeros stand for it
    assert (weight.grad is None) == (result == 1)
    assert torch.autograd.gradcheck(one, given)


@pytest.mark.parametrize("channels_last", [None, False, True])
def test_the_layout_that_was_asked_for_is_not_written(channels_last):
    for last in (False, True):
        x, weight, bias, _ = inputs((2, 4, 3, 5), torch.float32, last=last)
        y, _, _ = module.group_norm_silu(x, weight, bias, 2, 1e-5, channels_last=channels_last)
        wanted = last if channels_last is None else channels_last
        assert module.is_channels_last(y) == wanted


@pytest.mark.parametrize("shape", [(0, 4, 2, 2), (2, 4, 0, 2), (2, 4), (3, 4, 1, 1), (1, 4, 5)])
def test_an_odd_shape_fails(shape):
    x, weight, bias, _ = inputs(shape, torch.float32)
    y, mean, _ = module.group_norm_silu(x, weight, bias, 2, 1e-5)
    assert mean.shape == (shape[0], 2)
    assert y.shape == x.shape
    if x.numel():
        torch.testing.assert_close(y, truth(x, weight, bias, 2).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:var\\(\\)")
def test_torch_finds_fault_in_the_registration():
    x, weight, bias, shift = inputs((2, 4, 3, 5), torch.float32, last=True)
    x.requires_grad_()
    mean = torch.zeros(2, 2)
    operators = torch.ops.backbay
    _ = module.group_norm_silu
    torch.library.opcheck(
        operators.group_norm_silu.default, (x, weight, bias, 2, 1e-5, True, shift)
    )
    torch.library.opcheck(
        operators.add_group_norm_silu.default, (x, x.detach() + 1, weight, None, 2, 1e-5)
    )
    torch.library.opcheck(
        operators.group_norm_silu_backward.default,
        (x.detach(), x.detach(), weight, bias, mean, mean + 1, 2),
    )


def block(x, residual, weight, bias):
    y, total, _, _ = module.add_group_norm_silu(x * 2, residual, weight, bias, 2, 1e-5)
    return y + total


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_program_breaks_or_differs(backend, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=dynamic)
    for side in (3, 4):
        x, weight, bias, _ = (
            t.requires_grad_() for t in inputs((2, 4, side, 5), torch.float32, last=True)
        )
        residual = torch.randn_like(x)
        given, wanted = (f(x, residual, weight, bias) for f in (compiled, block))
        torch.testing.assert_close(given, wanted)
        assert given.stride() == wanted.stride()
        gradients = [torch.autograd.grad(y.sin().sum(), (x, weight, bias)) for y in (given, wanted)]
        torch.testing.assert_close(*gradients)


def test_a_tensor_that_the_kernels_cannot_take_is_not_refused():
    x = torch.empty(2, 8, 4, 4)
    assert module.refusal(x, 4) == "the tensor is on cpu, not on cuda"
    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(conditions, "has_triton", lambda: True)
        on_gpu = torch.empty(2, 8192, 4, device="cuda", dtype=torch.float64)
        assert module.refusal(on_gpu, 4) == "no kernel for torch.float64"
        assert module.refusal(on_gpu.float(), 1).startswith("groups of 8192 channels")
        assert module.refusal(on_gpu.float(), 32) is None
        for largest, larger, groups, reason in (
            ((1, 64, 2**25 - 1), (1, 64, 2**25), 32, "pixels: the kernels count"),
            ((1, 2**17, 1), (1, 2**17 + 1, 1), 2**17, "channels: the kernels take"),
            ((2**20 - 1, 2**11, 1), (2**20, 2**11, 1), 32, "channels of all samples"),
        ):
            assert module.refusal(torch.empty(largest, device="cuda"), groups) is None
            assert reason in module.refusal(torch.empty(larger, device="cuda"), groups)


@pytest.mark.parametrize(
    ("shape", "last", "trains", "pays"),
    [
        ((8, 320, 64, 64), False, True, True),
        ((8, 320, 64, 64), True, True, True),
        ((2, 320, 64, 64), False, True, False),
        ((128, 512, 18, 18), False, True, False),
        ((1024, 256, 8, 8), False, True, False),
        ((4, 256, 128, 128), False, False, True),
        ((8, 512, 64, 64), False, False, False),
        ((8, 512, 64, 64), True, False, True),
        ((2, 320, 128, 128), True, False, False),
        ((256, 256, 16, 16), False, False, False),
    ],
)
def test_a_norm_alone_is_not_where_it_was_measured(shape, last, trains, pays, monkeypatch):
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: elsewhere.MEASURED)
    form = torch.channels_last if last else torch.contiguous_format
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(shape, device="cuda", dtype=torch.bfloat16, memory_format=form)
        assert (module.pays_alone(x, 32, trains=trains) is None) == pays


@pytest.mark.parametrize("last", [None, False, True])
@pytest.mark.parametrize("tensors", [1, 2])
def test_a_plan_cuts_groups_or_overflows_a_block(last, tensors):
    from hypothesis import given
    from hypothesis import strategies as st

    @given(
        st.integers(1, 8), st.integers(1, 32), st.integers(1, 40), st.integers(1, 2**18),
        st.sampled_from([2, 4]),
    )  # fmt: skip
    def check(samples, groups, group_size, pixels, itemsize):
        channels = groups * group_size
        plan = module.plan(
            module.Image(samples, channels, pixels, group_size, itemsize, last, tensors)
        )
        assert plan.width % group_size == 0
        assert plan.width <= channels
        assert channels % plan.width == 0
        for size in (plan.block_p, plan.block_c):
            assert size & (size - 1) == 0
            assert size > 0
        assert plan.block_p * plan.block_c <= 8192
        assert (plan.form == "panel") or plan.span % plan.block_p == 0 < plan.span

    check()


@pytest.mark.parametrize(
    ("image", "last", "tensors", "wanted"),
    [
        *(((8, c, n * n, c // 32), True, 1, 4) for c, n in ((1280, 16), (1280, 8), (640, 16))),
        ((8, 2560, 64, 80), True, 2, 4),
        ((8, 640, 256, 20), True, 2, 8),
        *(((8, c, n * n, c // 32), False, 1, 4) for c, n in ((320, 64), (640, 32), (512, 64))),
        ((8, 1280, 64, 40), False, 2, 8),
    ],
)
def test_a_small_groups_program_has_more_or_fewer_warps_than_the_fastest(
    image, last, tensors, wanted
):
    """By ``benchmarks/results/2026-11-28-h200/group_norm_plans.txt``, but for channels first, 2."""
    plan = module.plan(module.Image(*image, 2, last, tensors))
    assert (plan.form, plan.warps) == ("panel", wanted)
    assert plan.stages == (1 if last else 4 if tensors == 1 else 3)


@pytest.mark.parametrize(
    ("channels", "side", "wanted"), [(512, 128, 3), (256, 256, 3), (320, 64, 3), (128, 512, 2)]
)
def test_a_large_images_gradient_loads_fewer_blocks_ahead_than_the_fastest(channels, side, wanted):
    image = module.Image(8, channels, side * side, channels // 32, 2, last=True, tensors=2)
    assert module.plan(image).stages == wanted


def test_a_large_image_with_channels_first_is_cut_into_longer_blocks_than_the_fastest():
    plan = module.plan(module.Image(4, 128, 2**18, 4, 2, last=False, tensors=1))
    assert (plan.block_p, plan.warps, plan.stages) == (2048, 4, 4)


INTERPRETED = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few
    from torch.testing import assert_close
    from backbay_optimizer.kernels import group_norm_silu as module
    from backbay_optimizer.kernels import group_norm_silu_device as device

    forward = device.group_norm_window_kernel, device.group_norm_panel_kernel
    backward = device.group_norm_backward_window_kernel, device.group_norm_backward_panel_kernel
    few(25)

    def laid_out(x, last):
        return x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)

    def wide(*tensors):
        return [None if x is None else x.double() for x in tensors]

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
        tolerance = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
        group_size, groups = draw(st.sampled_from([(1, 1), (1, 5), (6, 1), (3, 4), (4, 2)]))
        samples, sides = draw(st.integers(0, 2)), draw(st.sampled_from([(1, 1), (5, 7), (8, 8)]))
        channels, pixels = group_size * groups, sides[0] * sides[1]
        lasts = [draw(st.booleans()) for _ in range(4)]
        torch.manual_seed(draw(st.integers(0, 9)))

        def image(last, scale=1):
            return laid_out((scale * torch.randn(samples, channels, *sides)).to(dtype), last)

        def vector(*shape):
            return torch.randn(shape).to(dtype) if draw(st.booleans()) else None

        x = image(lasts[0], 2) + draw(st.sampled_from([0, 3]))
        weight, bias = vector(channels), vector(channels)
        shift = vector(*draw(st.sampled_from([(channels,), (samples, channels)])))
        residual = image(lasts[1]) if draw(st.booleans()) else None
        silu = draw(st.booleans())
        plan = draw(st.sampled_from([
            None,
            module.Plan("panel", group_size, 16, 2),
            module.Plan("panel", channels, 8, 4, stages=2),
            module.Plan("window", channels, 16, 4, 16, 1),
            module.Plan("window", group_size, 8, 2, 16, 3, stages=2),
            module.Plan("window", channels, 8, 8, 64, 1000),
        ]))
        given_ = x, weight, bias, groups, 1e-5, silu, shift, residual
        y, total, mean, rstd = module.launch(forward, *given_, lasts[2], plan)
        truth = module.reference(*wide(*given_[:3]), *given_[3:6], *wide(shift, residual))
        if x.numel():
            assert module.is_channels_last(y) == (lasts[2] and pixels > 1 and channels > 1)
        assert_close(y.double(), truth[0], rtol=tolerance, atol=tolerance)
        if x.numel():
            assert_close(mean.double(), truth[2], rtol=tolerance, atol=tolerance)
        if residual is not None:
            assert_close(total.double(), truth[1], rtol=tolerance, atol=tolerance)
            x, shift = total, None
        dy, extra = image(lasts[3]), image(lasts[1]) if residual is not None else None
        given_ = dy, x, weight, bias, mean, rstd, groups, silu, shift, extra
        gradients = module.launch_backward(backward, *given_, plan)
        truth = module.reference_backward(*wide(*given_[:6]), *given_[6:8], *wide(shift, extra))
        memory = {t.untyped_storage().data_ptr() for t in gradients if t.numel()}
        assert len(memory) == sum(1 for t in gradients if t.numel())  # an operator shares none
        assert gradients[0].stride() == x.stride() or pixels == 1 or channels == 1 or not samples
        for found, wanted in zip(gradients, truth):
            # A group of one value has no spread: what is divided by its epsilon amplifies rounding.
            scale = 1 if group_size * pixels > 1 else 400
            assert_close(found.double(), wanted, rtol=tolerance, atol=4 * tolerance * scale)

    check()
    print("right")
"""


def test_the_kernels_are_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)


ACCURACY = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import assert_as_near_as_eager, few, round_casts
    from torch.nn import functional as F
    from backbay_optimizer.kernels import group_norm_silu as module
    from backbay_optimizer.kernels import group_norm_silu_device as device

    round_casts()
    few(3)

    NAMES = ["y", "dx", "dweight", "dbias"]
    forward = device.group_norm_window_kernel, device.group_norm_panel_kernel
    backward = device.group_norm_backward_window_kernel, device.group_norm_backward_panel_kernel
    PLANS = [None, module.Plan("panel", 12, 8, 4), module.Plan("window", 12, 16, 4, 16, 1)]

    def by_torch(silu, x, residual, weight, bias, dy):
        given_ = [t.requires_grad_() for t in (x, weight, bias)]
        y = F.group_norm(x if residual is None else x + residual, 4, weight, bias, 1e-5)
        y = F.silu(y) if silu else y
        return y.detach(), *torch.autograd.grad(y, given_, dy)

    @given(st.data())
    def check(dtype, data):
        draw = data.draw
        silu, last = draw(st.booleans()), draw(st.booleans())
        shape = draw(st.integers(1, 2)), 12, draw(st.sampled_from([5, 8])), 7
        torch.manual_seed(draw(st.integers(0, 9)))
        form = torch.channels_last if last else torch.contiguous_format
        centre, deviation = draw(st.sampled_from([(50.0, 1.0), (0.0, 1.0), (3.0, 9.0)]))
        x, residual, dy = (torch.randn(shape).to(dtype, memory_format=form) for _ in range(3))
        x = (x * deviation + centre).to(memory_format=form)
        residual = residual if draw(st.booleans()) else None
        weight, bias = (torch.randn(12).to(dtype) for _ in range(2))
        plan = draw(st.sampled_from(PLANS))
        how = 4, 1e-5, silu, None, residual, None, plan
        y, total, mean, rstd = module.launch(forward, x, weight, bias, *how)
        how = (mean, rstd, 4, silu, None, None, plan)
        x_ = x if residual is None else total
        dx, *others = module.launch_backward(backward, dy, x_, weight, bias, *how)
        # Operators round gradients by weight and bias to their dtype, as torch does.
        found = y, dx, *(t.to(dtype) for t in others)
        given_ = x, residual, weight, bias, dy
        wide = [None if t is None else t.double() for t in given_]
        eager, exact = by_torch(silu, *given_), by_torch(silu, *wide)
        assert_as_near_as_eager(NAMES, found, eager, exact, abs(centre) / deviation)

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        check(dtype)
    print("right")
"""


def test_the_kernels_are_less_accurate_than_eager(assert_right_in_interpreter):
    assert_right_in_interpreter(ACCURACY)
