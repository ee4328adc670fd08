"""SiLU on the CPU: the reference, the registration, and the kernels in Triton's interpreter."""

import importlib.util
import math

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay.kit.kernels import silu as module  # noqa: E402

BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 4.5e-3}


def layouts():
    """Return one tensor of each layout; name to tensor."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 6, 5, 7, generator=generator)
    return {
        "contiguous": x,
        "channels_last": x.to(memory_format=torch.channels_last),
        "transposed": x[0, 0].t(),
        "permuted": x.permute(3, 0, 2, 1),
        "one_pixel": x[:, :, :1, :1].contiguous(memory_format=torch.channels_last),
        "one_image": x[:1].to(memory_format=torch.channels_last),
        "strided": x[:, ::2, 1:4],
        "expanded": x[:1].expand(3, 6, 5, 7),
        "offset": x.flatten()[3:],
        "empty": x[:, :0],
        "scalar": torch.tensor(1.25),
        "one_element": torch.tensor([-1.25]),
        "odd": torch.randn(1025, generator=generator),
    }


def assert_silu(y, x):
    wide = x.double()
    truth = wide * torch.sigmoid(wide)
    torch.testing.assert_close(y.double(), truth, rtol=TOLERANCE[x.dtype], atol=1e-7)


def assert_gradient(dx, dy, x):
    wide = x.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(F.silu(wide), wide, dy.double())
    torch.testing.assert_close(dx.double(), truth, rtol=TOLERANCE[x.dtype], atol=1e-6)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def samples(dtype, size=999):
    return (4 * torch.randn(size, generator=torch.Generator().manual_seed(0))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, *DTYPES])
def test_the_operator_is_silu_to_the_last_bits_of_its_dtype(dtype):
    x = samples(dtype).requires_grad_()
    dy = samples(dtype, 1998)[999:]
    y = module.silu(x)
    y.backward(dy)
    assert y.dtype == dtype
    assert x.grad.dtype == dtype
    assert_silu(y.detach(), x.detach())
    assert_gradient(x.grad, dy, x)


def test_the_check_against_float64_can_fail():
    x = samples(torch.bfloat16)
    with pytest.raises(AssertionError):
        assert_silu(F.silu(x) * 1.01, x)
    with pytest.raises(AssertionError):
        assert_gradient(torch.sigmoid(x), torch.ones_like(x), x)


def test_the_gradient_and_its_gradient_are_those_of_the_function():
    x = samples(torch.float64, 12).requires_grad_()
    assert torch.autograd.gradcheck(module.silu, (x,))
    assert torch.autograd.gradgradcheck(module.silu, (x,))
    dy = samples(torch.float64, 24)[12:].requires_grad_()
    assert torch.autograd.gradcheck(module.silu_backward, (dy, x))


@pytest.mark.parametrize("name", layouts())
def test_every_layout_gives_eagers_values_and_keeps_dense_strides(name):
    x = layouts()[name].requires_grad_()
    y = module.silu(x)
    assert y.stride() == torch.empty_like(x).stride()
    assert_silu(y.detach(), x.detach())
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert_gradient(dx, dy, x)


@pytest.mark.parametrize("name", ["contiguous", "channels_last", "strided", "expanded", "empty"])
def test_torch_finds_no_fault_in_the_registration(name):
    x = layouts()[name].clone(memory_format=torch.preserve_format)
    torch.library.opcheck(torch.ops.backbay.silu.default, (x.requires_grad_(),))
    dy = torch.randn_like(x).requires_grad_()
    torch.library.opcheck(torch.ops.backbay.silu_backward.default, (dy, x))


def test_a_gradient_of_another_layout_is_not_read_in_the_order_of_memory():
    x = layouts()["channels_last"]
    for dy in (torch.randn(x.shape), torch.randn(1).expand(x.shape)):
        dx = module.silu_backward(dy, x)
        assert dx.stride() == x.stride()
        assert_gradient(dx, dy, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_comes_out_as_from_torch(dtype):
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, -1e4, 1e4], dtype=dtype)
    y, expected = module.silu(x), F.silu(x)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(y[3:5]), torch.tensor([True, False]))
    x.requires_grad_()
    (dx,) = torch.autograd.grad(module.silu(x).sum(), x)
    (truth,) = torch.autograd.grad(F.silu(x).sum(), x)
    torch.testing.assert_close(dx, truth, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("x", [torch.arange(3), torch.ones(2, dtype=torch.complex64)])
def test_what_is_not_a_real_number_is_refused(x):
    with pytest.raises(TypeError, match=f"floating-point tensors, not {x.dtype}: convert it"):
        module.silu(x)


def block(x, weight):
    return module.silu(x @ weight) * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_program_has_no_graph_break_and_eagers_results(backend, train, dynamic):
    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (3, 8):
        x = samples(torch.float32, rows * 5).view(rows, 5).requires_grad_(train)
        weight = torch.linspace(-1, 1, 20).view(5, 4).requires_grad_(train)
        y, expected = compiled(x, weight), block(x, weight)
        torch.testing.assert_close(y, expected)
        if train:
            given = torch.autograd.grad(y.square().sum(), (x, weight))
            wanted = torch.autograd.grad(expected.square().sum(), (x, weight))
            torch.testing.assert_close(given, wanted)


def test_a_dynamic_shape_is_compiled_once():
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module.silu, backend=counter, fullgraph=True, dynamic=True)
    for size in (2, 3, 1000, 1001):
        compiled(samples(torch.float32, size))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["channels_last", "transposed", "strided", "scalar", "empty"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_program_keeps_the_layout(backend, name):
    x = layouts()[name]
    y = torch.compile(module.silu, backend=backend, fullgraph=True)(x)
    assert y.shape == x.shape
    assert y.stride() == module.silu(x).stride() or not x.numel()  # Inductor gives an empty its own
    torch.testing.assert_close(y, module.silu(x))


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_leaves_the_dtype_as_it_comes(compiled):
    run = torch.compile(block, backend="aot_eager", fullgraph=True) if compiled else block
    x, weight = samples(torch.float32, 6).view(2, 3), torch.ones(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module.silu(x).dtype == torch.float32
        y = run(x, weight)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, (2 * F.silu(x @ weight)).bfloat16(), rtol=3e-2, atol=3e-2)


def test_the_kernel_is_refused_with_a_reason():
    x = samples(torch.float32)
    assert module.refusal(x) == module.pays(x) == "the tensor is on cpu, not on cuda"
    on_gpu = torch.empty_strided
    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(module, "has_triton", lambda: False)
        assert module.refusal(on_gpu((4,), (1,), device="cuda")) == "Triton is not installed"
        m.setattr(module, "has_triton", lambda: True)
        wide = on_gpu((4,), (1,), device="cuda", dtype=torch.float64)
        assert module.refusal(wide) == "no kernel for torch.float64"
        gaps = on_gpu((4, 4), (8, 1), device="cuda")
        assert module.refusal(gaps) == "not dense: strides (8, 1) of shape (4, 4)"
        small = on_gpu((4, 4), (1, 4), device="cuda")
        assert module.refusal(small) is None
        assert module.pays(small).startswith("16 elements: below ")
        assert module.pays(on_gpu((2**28,), (1,), device="cuda")) is None


def test_a_direct_launch_refuses_gaps(monkeypatch):
    monkeypatch.setattr(module, "kernels", lambda: module.Kernels(None, None))
    with pytest.raises(ValueError, match=r"dense tensor, not strides \(8, 1\): clone it"):
        module.launch(torch.empty(4, 8)[:, :4])


def test_importing_the_kernels_imports_no_triton(run_python):
    program = """
        import sys
        import backbay_optimizer.kernels
        print("torch" in sys.modules, "triton" in sys.modules)
        import backbay.kit.kernels.silu
        print("torch" in sys.modules, "triton" in sys.modules)
        from backbay.kit.kernels.silu import silu
        print("triton" in sys.modules)
    """
    done = run_python(program)
    has_triton = importlib.util.find_spec("triton") is not None
    assert done.stdout.split() == ["False", "False", "True", "False", str(has_triton)]
    assert done.stderr == ""


def test_what_the_package_has_not_is_an_attribute_error():
    import backbay_optimizer.kernels

    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = backbay_optimizer.kernels.absent
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = module.absent


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_are_right_in_tritons_interpreter(dtype, run_python, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    # The interpreter cuts float32 off to bfloat16 where a GPU rounds to the nearest.
    tolerance = TOLERANCE[dtype] * (2 if dtype == torch.bfloat16 else 1)
    program = f"""
        import torch
        from backbay.kit.kernels import silu
        from torch.testing import assert_close
        torch.manual_seed(0)
        for size in (0, 1, 127, 1024, 1025, 5000):
            x = (4 * torch.randn(size)).to({dtype})
            dy = torch.randn(size).to({dtype})
            y, dx = silu.launch(x), silu.launch_backward(dy, x)
            assert y.dtype == dx.dtype == {dtype}
            wide, wide_dy = x.double(), dy.double()
            truth = silu.reference(wide), silu.reference_backward(wide_dy, wide)
            assert_close((y.double(), dx.double()), truth, rtol={tolerance}, atol=1e-6)
        x = torch.randn(3, 5, 7).to({dtype}).permute(2, 0, 1)
        dy = torch.randn(7, 3, 5).to({dtype})
        y, dx = silu.launch(x), silu.launch_backward(dy, x)
        assert y.stride() == dx.stride() == x.stride()
        truth = silu.reference(x), silu.reference_backward(dy, x)
        assert_close((y, dx), truth, rtol=2 * {tolerance}, atol=1e-6)
        print("right")
    """
    assert run_python(program).stdout == "right\n"
