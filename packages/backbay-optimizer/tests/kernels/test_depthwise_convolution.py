"""Depthwise convolutions on the CPU: reference, registration, kernels in Triton's interpreter."""

import importlib.util
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from backbay_optimizer.kernels import depthwise_convolution as module  # noqa: E402

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def inputs(dtype, *shape, size=3):
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)

    x = draw(*shape).contiguous(memory_format=torch.channels_last)
    return x, draw(shape[1], 1, size, size), draw(shape[1])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_operator_strays_from_float64(dtype):
    x, weight, bias = inputs(dtype, 2, 5, 8, 7)
    y = module.depthwise_convolution(x, weight, bias, [2, 1], [1, 0])
    wanted = module.reference(x.double(), weight.double(), bias.double(), [2, 1], [1, 0])
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_gradients_are_not_those_of_the_function():
    given = [t.requires_grad_() for t in inputs(torch.float64, 2, 3, 5, 4)]

    def plain(*tensors):
        return module.depthwise_convolution(*tensors, [1, 2], [1, 1])

    assert torch.autograd.gradcheck(plain, given)
    x, weight, _ = given
    assert torch.autograd.gradcheck(lambda x: plain(x, weight.detach(), None), (x,))


class Nothing:
    """A kernel that does nothing, and notes how it is launched."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *given, **constants: self.launches.append((grid, given, constants))


@pytest.mark.parametrize("stride", [1, 2])
def test_sizes_that_are_symbols_cannot_be_cut(stride):
    kernel, how = Nothing(), ([stride] * 2, [1, 1])

    def program(dy, x, weight, bias):
        y = module.launch(kernel, x, weight, bias, *how)
        dx = module.launch_input(kernel, kernel, dy, x, weight, *how)
        return y, dx, *module.launch_weight(kernel, dy, x, weight, *how)

    x, weight, bias = inputs(torch.float32, 2, 32, 8, 8)
    dy = module.reference(x, weight, bias, *how)
    traced = make_fx(program, tracing_mode="symbolic")
    traced(dy, x, weight, bias)
    assert len(kernel.launches) == 3


def test_torch_finds_fault_in_the_registration():
    given = [t.requires_grad_() for t in inputs(torch.float32, 2, 3, 5, 4)]
    x, weight, bias = given
    y = module.depthwise_convolution(*given, [1, 1], [1, 1]).detach()
    operators = torch.ops.backbay
    torch.library.opcheck(
        operators.depthwise_convolution.default, (x, weight, bias, [1, 1], [1, 1])
    )
    torch.library.opcheck(
        operators.depthwise_convolution_input.default,
        (y, x.detach(), weight.detach(), [1, 1], [1, 1]),
    )
    torch.library.opcheck(
        operators.depthwise_convolution_weight.default,
        (y, x.detach(), weight.detach(), [1, 1], [1, 1]),
    )


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_a_gradient_is_wrong_or_computed_though_nobody_wants_it(wanted, monkeypatch):
    called = []

    def noted(operator):
        def call(*given):
            called.append(operator._qualname.split("_")[-1])
            return operator(*given)

        return call

    _, *others = module._operators()
    monkeypatch.setattr(module, "_operators", lambda: (None, *map(noted, others)))
    given = inputs(torch.float64, 2, 3, 5, 4)
    chosen = [given[i].requires_grad_() for i in wanted]
    found, others = (
        torch.autograd.grad(f(*given, [2, 2], [1, 1]).sin().sum(), chosen)
        for f in (module.depthwise_convolution, module.reference)
    )
    torch.testing.assert_close(found, others)
    assert called == ["input"] * (0 in wanted) + ["weight"] * (wanted != (0,))


def test_filters_without_a_bias_get_no_gradient():
    x, weight, _ = inputs(torch.float64, 2, 3, 5, 4)
    found, other = (
        torch.autograd.grad(f(x, weight.requires_grad_(), None, [1, 1], [1, 1]).sum(), weight)
        for f in (module.depthwise_convolution, module.reference)
    )
    torch.testing.assert_close(found, other)


def test_a_second_derivative_is_silently_wrong():
    x, weight, bias = (t.requires_grad_() for t in inputs(torch.float64, 1, 2, 4, 4))
    y = module.depthwise_convolution(x, weight, bias, [1, 1], [1, 1])
    once = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
    with pytest.raises(RuntimeError, match=r"no autograd formula|does not require grad"):
        (once[0].sum() + once[1].sum()).backward()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_program_breaks_or_differs(dynamic):
    def program(x, weight, bias):
        return module.depthwise_convolution(x * 2, weight, bias, [1, 1], [1, 1]).sin()

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for side in (5, 6):
        given = [t.requires_grad_() for t in inputs(torch.float32, 2, 4, side, 7)]
        found, wanted = (f(*given) for f in (compiled, program))
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()
        gradients = [torch.autograd.grad(y.sum(), given) for y in (found, wanted)]
        torch.testing.assert_close(*gradients)


INTERPRETED = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few
    from torch.testing import assert_close
    from backbay_optimizer.kernels import depthwise_convolution as module
    from backbay_optimizer.kernels import depthwise_convolution_device as device

    few(40)

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
        tolerance = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
        size = draw(st.sampled_from([(3, 3), (5, 3), (7, 7), (2, 4), (1, 1)]))
        stride = draw(st.sampled_from([(1, 1), (2, 2), (1, 2)]))
        padding = tuple(draw(st.integers(0, n + 1)) for n in size)
        images, channels = draw(st.integers(0, 2)), draw(st.sampled_from([1, 4, 5, 8]))
        sides = [draw(st.integers(n, 11)) for n in size]
        torch.manual_seed(draw(st.integers(0, 9)))
        x = torch.randn(images, channels, *sides).to(dtype)
        if draw(st.booleans()):
            x = x.contiguous(memory_format=torch.channels_last)
        weight = torch.randn(channels, 1, *size).to(dtype)
        bias = torch.randn(channels).to(dtype) if draw(st.booleans()) else None
        plans = [None, module.Plan(4, 2, 4, 2, 1), module.Plan(2, 4, 2, 1, 3)]
        plan = draw(st.sampled_from([*plans, module.Plan(8, 2, 8, 5, 2)]))
        how = stride, padding
        y = module.launch(device.depthwise_kernel, x, weight, bias, *how, plan)
        wide = [None if t is None else t.double() for t in (x, weight, bias)]
        wanted = module.reference(*wide, *how)
        assert y.shape == wanted.shape
        assert_close(y.double(), wanted, rtol=tolerance, atol=tolerance)
        dy = torch.randn_like(y)
        kernels = device.depthwise_kernel, device.depthwise_input_kernel
        dx = module.launch_input(*kernels, dy, x, weight, *how, plan)
        wanted = module.reference_input(dy.double(), *wide[:2], *how)
        assert_close(dx.double(), wanted, rtol=tolerance, atol=tolerance)
        found = module.launch_weight(device.depthwise_weight_kernel, dy, x, weight, *how, plan)
        wanted = module.reference_weight(dy.double(), *wide[:2], *how)
        assert found[0].untyped_storage().data_ptr() != found[1].untyped_storage().data_ptr()
        for one, other in zip(found, wanted, strict=True):
            assert one.shape == other.shape and one.dtype == dtype
            strays = (one.double() - other).norm() / other.norm().clamp(min=1e-3)
            assert strays < tolerance / 4, strays

    check()
    print("right")
"""


def test_the_kernels_are_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)


ACCURACY = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import assert_as_near_as_eager, few, round_casts
    from backbay_optimizer.kernels import depthwise_convolution as module
    from backbay_optimizer.kernels import depthwise_convolution_device as device

    round_casts()
    few(2)

    NAMES = ["y", "dx", "dweight", "dbias"]

    def by_torch(x, weight, bias, dy, *how):
        y = module.reference(x, weight, bias, *how)
        dx = module.reference_input(dy, x, weight, *how)
        return y, dx, *module.reference_weight(dy, x, weight, *how)

    @given(st.data())
    def check(dtype, data):
        draw = data.draw
        size = draw(st.sampled_from([(3, 3), (5, 3)]))
        how = draw(st.sampled_from([(1, 1), (2, 2)])), tuple(n // 2 for n in size)
        torch.manual_seed(draw(st.integers(0, 9)))
        centre = draw(st.sampled_from([0.0, 3.0]))
        x = (torch.randn(1, 8, 7, 6) + centre).to(dtype)
        weight, bias = torch.randn(8, 1, *size).to(dtype), torch.randn(8).to(dtype)
        plan = draw(st.sampled_from([module.Plan(4, 2, 8, 1, 1), module.Plan(8, 2, 8, 2, 2)]))
        y = module.launch(device.depthwise_kernel, x, weight, bias, *how, plan)
        dy = torch.randn(y.shape).to(dtype)
        kernels = device.depthwise_kernel, device.depthwise_input_kernel
        dx = module.launch_input(*kernels, dy, x, weight, *how, plan)
        others = module.launch_weight(device.depthwise_weight_kernel, dy, x, weight, *how, plan)
        given_ = x, weight, bias, dy
        exact = by_torch(*(t.double() for t in given_), *how)
        assert_as_near_as_eager(NAMES, (y, dx, *others), by_torch(*given_, *how), exact)

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        check(dtype)
    print("right")
"""


def test_the_kernels_are_less_accurate_than_eager(assert_right_in_interpreter):
    assert_right_in_interpreter(ACCURACY)


LAUNCHES = {
    "depthwise_kernel": lambda k, y, *given: module.launch(k, *given[:2], None, *given[2:]),
    "depthwise_input_kernel": lambda k, *given: module.launch_input(k, k, *given),
    "depthwise_weight_kernel": module.launch_weight,
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_kernel_is_unrolled_where_inductor_reads_it(name, monkeypatch):
    """Inductor has Triton read a kernel three times or more for each launch, one after another."""
    import triton
    from torch._higher_order_ops.triton_kernel_wrap import generate_ttir
    from triton.backends.compiler import GPUTarget

    from backbay_optimizer.kernels import depthwise_convolution_device as device

    driver = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))
    monkeypatch.setattr(type(triton.runtime.driver), "active", driver)
    x, weight, _ = inputs(torch.bfloat16, 1, 16, 28, 28, size=5)
    how = ([2, 2], [2, 2])
    noted = Nothing()
    LAUNCHES[name](noted, module.reference(x, weight, None, *how), x, weight, *how)
    ((_, given, constants),) = noted.launches
    kernel = getattr(device, name)
    read, _ = generate_ttir(
        kernel, dict(zip(kernel.arg_names, given, strict=False)) | constants, {}
    )
    written = str(read)
    products = written.count("math.fma") + written.count("arith.mulf")
    assert 5 <= products <= 5 * 7, "more than a row of the filters for a strip"


def test_a_plan_is_no_power_of_two_or_no_multiple_of_a_stride():
    for width in (1, 7, 12, 14, 16, 56, 97):
        for stride in (1, 2, 3, 5):
            for channels in (1, 16, 96, 1152):
                plan = module.plan(4, width, width, channels, 9, stride)
                assert plan.across % stride == 0
                assert plan.block_r & (plan.block_r - 1) == plan.block_c & (plan.block_c - 1) == 0


def test_few_images_leave_most_of_the_gpu_idle_or_many_are_cut():
    assert module.plan(64, 56, 56, 96, 49).chunks == 1
    assert module.plan(1, 56, 56, 96, 49).chunks == 7
    assert module.plan(1, 7, 7, 768, 49).chunks == 1


@pytest.mark.parametrize(
    ("shape", "forward", "summed"),
    [
        ((128, 28, 28, 384), 64, 64),
        *(((128, side, side, channels), 32, 64) for side, channels in ((28, 192), (14, 384))),
        ((64, 7, 7, 768), 32, 32),
        ((128, 56, 56, 96), 32, 32),
    ],
)
def test_a_thread_has_two_channels_where_one_is_faster_or_the_other_way_round(
    shape, forward, summed
):
    """By ``benchmarks/results/2026-11-28-h200/plans_again.txt``."""
    assert module.plan(*shape, 49).block_c == forward
    assert module.plan(*shape, 49, filling=module._FILLING).block_c == summed
    assert module.plan(*shape, 49).block_r == 1
