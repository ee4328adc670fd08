"""Batch norm in training on the CPU: reference, registration, kernels in Triton's interpreter."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import batch_norm as module  # noqa: E402
from backbay_optimizer.kernels import conditions  # noqa: E402

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ACTIVATIONS = {"none": lambda x: x, "relu": F.relu, "silu": F.silu, "hardswish": F.hardswish}


def inputs(dtype, *shape):
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator, dtype=torch.float64)

    x = (draw(*shape) * 3 + 1).to(dtype).contiguous(memory_format=torch.channels_last)
    return x, draw(shape[1]).to(dtype), draw(shape[1]).to(dtype)


def torchs(x, weight, bias, activation="none"):
    return ACTIVATIONS[activation](
        F.batch_norm(x, None, None, weight, bias, training=True, eps=1e-3)
    )


def ours(x, weight, bias, activation="none"):
    return module.batch_norm(x, weight, bias, 1e-3, activation)[0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_operator_strays_from_float64(dtype, activation):
    x, weight, bias = inputs(dtype, 2, 5, 8, 7)
    y, mean, variance, rstd = module.batch_norm(x, weight, bias, 1e-3, activation)
    wide = [t.double() for t in (x, weight, bias)]
    assert y.stride() == x.stride()
    assert y.dtype == dtype
    torch.testing.assert_close(
        y.double(), torchs(*wide, activation), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(mean.double(), wide[0].mean((0, 2, 3)), **close)
    torch.testing.assert_close(variance.double(), wide[0].var((0, 2, 3), correction=0), **close)
    torch.testing.assert_close(rstd, (variance + 1e-3).rsqrt())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_gradients_are_not_torchs(activation, wanted):
    given = inputs(torch.float64, 3, 4, 5, 2)
    chosen = [given[i].requires_grad_() for i in wanted]
    found, others = (
        torch.autograd.grad(f(*given, activation).sin().sum(), chosen) for f in (ours, torchs)
    )
    torch.testing.assert_close(found, others)


@pytest.mark.parametrize("activation", ["relu", "hardswish"])
def test_where_an_activation_bends_the_gradient_is_not_torchs(activation):
    x = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1).expand(2, 4, 1, 1).contiguous()
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.zeros(4)
    bias = torch.tensor([0.0, -3.0, 3.0, torch.nan])
    dy = torch.ones_like(x)
    _, z = module._normalised(x, torch.zeros(4), torch.ones(4), weight, bias)
    leaf = z.detach().requires_grad_()
    (wanted,) = torch.autograd.grad(ACTIVATIONS[activation](leaf), leaf, dy)
    assert torch.equal(module._before(dy, z, activation), wanted)
    assert not torch.isnan(module._before(dy * torch.inf, z * 0 - 9, activation)[:, :3]).any()


def test_statistics_ask_for_gradients_that_nobody_computes():
    given = [t.requires_grad_() for t in inputs(torch.float32, 2, 4, 3, 3)]
    wanted = [t.requires_grad for t in module.batch_norm(*given, 1e-3)]
    assert wanted == [True, False, False, False]


def test_one_value_a_channel_has_a_variance():
    x, weight, bias = inputs(torch.float32, 1, 4, 1, 1)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        module.batch_norm(x, weight, bias, 1e-3)


def test_an_unknown_activation_is_taken_for_none():
    x, weight, bias = inputs(torch.float32, 2, 4, 3, 1)
    with pytest.raises(ValueError, match="tanh"):
        module.batch_norm(x, weight, bias, 1e-3, "tanh")


def test_a_second_derivative_is_silently_wrong():
    given = [t.requires_grad_() for t in inputs(torch.float64, 2, 3, 4, 4)]
    once = torch.autograd.grad(ours(*given, "silu").square().sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no autograd formula|does not require grad"):
        sum(x.sum() for x in once).backward()


def test_torch_finds_fault_in_the_registration():
    given = [t.requires_grad_() for t in inputs(torch.float32, 2, 3, 5, 4)]
    x, weight, bias = given
    y, mean, _, rstd = (t.detach() for t in module.batch_norm(*given, 1e-3, "relu"))
    torch.library.opcheck(torch.ops.backbay.batch_norm.default, (*given, 1e-3, "relu"))
    plain = [t.detach() for t in (x, mean, rstd, weight, bias)]
    torch.library.opcheck(torch.ops.backbay.batch_norm_sums.default, (y, *plain, "relu"))


class Nothing:
    """A kernel that does nothing, and notes how it is launched."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *given, **constants: self.launches.append((grid, given, constants))


def test_sizes_that_are_symbols_cannot_be_cut():
    kernel = Nothing()

    def program(dy, x, weight, bias):
        mean, variance = module.launch_statistics(kernel, x)
        return module.launch_sums(kernel, dy, x, mean, variance, weight, bias, "silu")

    x, weight, bias = inputs(torch.float32, 2, 32, 8, 8)
    make_fx(program, tracing_mode="symbolic")(x, x, weight, bias)
    assert len(kernel.launches) == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_program_breaks_or_differs(dynamic):
    def program(x, weight, bias):
        return ours(x * 2, weight, bias, "silu").sin()

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
    from backbay_optimizer.kernels import batch_norm as module
    from backbay_optimizer.kernels import batch_norm_device as device

    few(25)

    def strays(found, wanted):
        return (found.double() - wanted).norm() / wanted.norm().clamp(min=1e-3)

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
        shape = [draw(st.integers(1, 3)), draw(st.sampled_from([1, 5, 8, 24, 130]))]
        shape += [draw(st.integers(1, 7)), draw(st.integers(1, 7))]
        torch.manual_seed(draw(st.integers(0, 9)))
        centre, deviation = draw(st.sampled_from([(0.0, 1.0), (200.0, 0.5), (-3.0, 7.0)]))
        x = (torch.randn(shape) * deviation + centre).to(dtype)
        dy = torch.randn(shape).to(dtype)
        if draw(st.booleans()):
            x = x.contiguous(memory_format=torch.channels_last)
        elif draw(st.booleans()):
            x, dy = x.transpose(2, 3), dy.transpose(2, 3)
        plans = [module.Plan(16, 16, 3), module.Plan(4, 64, 12), module.Plan(8, 8, 8, 4, 2)]
        plan = draw(st.sampled_from([*plans, module.Plan(1, 8, 1), module.Plan(32, 32, 2)]))
        mean, variance = module.launch_statistics(device.batch_norm_statistics_kernel, x, plan)
        wanted = module.reference_statistics(x.double())
        assert_close(mean.double(), wanted[0], rtol=1e-5, atol=1e-5)
        assert_close(variance.double(), wanted[1], rtol=1e-4, atol=1e-6)
        activation = draw(st.sampled_from(module.ACTIVATIONS))
        kind = draw(st.sampled_from([torch.float32, dtype]))
        weight, bias = (torch.randn(shape[1]).to(kind) for _ in range(2))
        rest = (x, mean, (variance + 1e-3).rsqrt(), weight, bias)
        kernel = device.batch_norm_sums_kernel
        found = module.launch_sums(kernel, dy, *rest, activation, plan)
        wanted = module.reference_sums(dy.double(), *(t.double() for t in rest), activation)
        sizes = module.reference_sums(dy.double().abs(), *(t.double() for t in rest), "none")
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == torch.float32
            assert (one.double() - other).norm() < 1e-4 * (sizes[0].norm() + other.norm())
        again = module.launch_sums(kernel, dy, *rest, activation, plan)
        assert all(map(torch.equal, found, again))

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
    from backbay_optimizer.kernels import batch_norm as module
    from backbay_optimizer.kernels import batch_norm_device as device

    round_casts()
    few(4)

    NAMES = ["y", "dweight", "dbias"]
    FUNCTIONS = {"none": lambda x: x, "relu": F.relu, "silu": F.silu, "hardswish": F.hardswish}

    def by_torch(activation, x, weight, bias, dy):
        given_ = [t.requires_grad_() for t in (weight, bias)]
        y = F.batch_norm(x, None, None, weight, bias, training=True, eps=1e-3)
        y = FUNCTIONS[activation](y)
        return y.detach(), *torch.autograd.grad(y, given_, dy)

    @given(st.data())
    def check(dtype, data):
        draw = data.draw
        activation = draw(st.sampled_from(module.ACTIVATIONS))
        shape = draw(st.integers(2, 3)), draw(st.sampled_from([5, 24])), 6, 7
        torch.manual_seed(draw(st.integers(0, 9)))
        centre, deviation = draw(st.sampled_from([(50.0, 1.0), (0.0, 1.0), (3.0, 9.0)]))
        x, dy = (torch.randn(shape).to(dtype) for _ in range(2))
        x = (x * deviation + centre).contiguous(memory_format=torch.channels_last)
        weight, bias = (torch.randn(shape[1]).to(dtype) for _ in range(2))
        plan = draw(st.sampled_from([module.Plan(32, 32, 2), module.Plan(16, 32, 3)]))
        # Only sums are the kernels': what is pointwise is the operator's, in float32.
        mean, variance = module.launch_statistics(device.batch_norm_statistics_kernel, x, plan)
        rest = x, mean, (variance + 1e-3).rsqrt(), weight, bias
        y = module._activated(module._normalised(*rest)[1], activation).to(dtype)
        kernel = device.batch_norm_sums_kernel
        dbias, dweight = module.launch_sums(kernel, dy, *rest, activation, plan)
        given_ = x, weight, bias, dy
        eager, exact = (
            by_torch(activation, *ts) for ts in (given_, [t.double() for t in given_])
        )
        found = y, dweight.to(dtype), dbias.to(dtype)
        assert_as_near_as_eager(NAMES, found, eager, exact, abs(centre) / deviation)

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        check(dtype)
    print("right")
"""


def test_the_kernels_are_less_accurate_than_eager(assert_right_in_interpreter):
    assert_right_in_interpreter(ACCURACY)


FAR = """
    import torch
    from backbay_optimizer.kernels import batch_norm as module
    from backbay_optimizer.kernels import batch_norm_device as device

    torch.manual_seed(0)
    x = torch.randn(2**19, 1, 1, 1).bfloat16()
    x[-512:] += 3
    plan = module.Plan(512, 1, 1)
    mean, variance = module.launch_statistics(device.batch_norm_statistics_kernel, x, plan)
    wanted = module.reference_statistics(x.double())
    print(*((y - z).abs().item() for y, z in zip((mean, variance), wanted, strict=True)))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_what_is_read_first_and_far_from_the_rest_has_all_sums_rounded_one_way(
    run_python, monkeypatch
):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = run_python(FAR, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    mean, variance = map(float, done.stdout.split())
    assert mean < 1e-6
    assert variance < 1e-5


def test_a_plan_is_no_power_of_two_or_leaves_the_gpu_idle():
    for channels in (1, 16, 24, 40, 64, 96, 112, 1152, 2048, 5000):
        for tensors in (1, 2):
            plan = module.plan(channels, tensors)
            assert plan.block_r & (plan.block_r - 1) == plan.block_c & (plan.block_c - 1) == 0
            assert plan.programs * -(-channels // plan.block_c) >= 264
    assert module.plan(24, 2).block_c == 32
    assert module.plan(40, 2).block_c == 16


@pytest.mark.filterwarnings("ignore:var\\(\\)")
@pytest.mark.parametrize("shape", [(0, 4, 3, 3), (2, 4, 0, 3)], ids=str)
def test_no_pixels_are_given_to_a_kernel_or_have_another_gradient(shape, monkeypatch):
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    with torch._subclasses.FakeTensorMode():
        assert module.refusal(torch.empty(shape, device="cuda")) == "it is empty"
        assert module.refusal(torch.empty(1, 4, 1, 1, device="cuda")) is None
    given = [t.requires_grad_() for t in inputs(torch.float32, *shape)]
    found, wanted = (f(*given, "silu") for f in (ours, torchs))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), given) for y in (found, wanted)))
