"""The operator against float64: on the CPU, in Triton's interpreter, on a GPU where one is."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from backbay_example_backend import kernel

Operator = Callable[[Tensor], Tensor]

OPERATORS = torch.ops.backbay_example_backend
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float64: 1e-15, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""One rounding to the dtype."""

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def samples(dtype: torch.dtype, size: int = 999, seed: int = 0) -> Tensor:
    """Return numbers around zero, the same each time."""
    return (4 * torch.randn(size, generator=torch.Generator().manual_seed(seed))).to(dtype)


def layouts() -> dict[str, Tensor]:
    """Return one tensor of each layout."""
    x = samples(torch.float32, 420).view(2, 6, 5, 7)
    return {
        "contiguous": x,
        "channels last": x.to(memory_format=torch.channels_last),
        "transposed": x[0, 0].t(),
        "strided": x[:, ::2, 1:4],
        "expanded": x[:1].expand(3, 6, 5, 7),
        "empty": x[:, :0],
        "scalar": torch.tensor(1.25),
    }


def assert_right(y: Tensor, dx: Tensor, x: Tensor, dy: Tensor) -> None:
    """Compare a result and a gradient with those of eager in float64."""
    wide = x.detach().double().requires_grad_()
    truth = torch.relu(wide) ** 2
    (gradient,) = torch.autograd.grad(truth, wide, dy.double())
    tolerance = TOLERANCE[x.dtype]
    assert y.dtype == dx.dtype == x.dtype
    torch.testing.assert_close(y.detach().double(), truth.detach(), rtol=tolerance, atol=1e-7)
    torch.testing.assert_close(dx.double(), gradient, rtol=tolerance, atol=1e-7)


def run(x: Tensor, dy: Tensor, operator: Operator = kernel.relu_squared) -> tuple[Tensor, Tensor]:
    """Return the operator's result and gradient."""
    x = x.detach().requires_grad_()
    y = operator(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    return y, dx


@pytest.mark.parametrize("dtype", [torch.float64, *DTYPES], ids=str)
def test_the_operator_is_the_function_to_the_last_bits(dtype: torch.dtype) -> None:
    x, dy = samples(dtype), samples(dtype, seed=1)
    assert_right(*run(x, dy), x, dy)


def test_the_comparison_with_float64_can_fail() -> None:
    x, dy = samples(torch.bfloat16), samples(torch.bfloat16, seed=1)
    y, dx = run(x, dy)
    with pytest.raises(AssertionError):
        assert_right(y * 1.02, dx, x, dy)
    with pytest.raises(AssertionError):
        assert_right(y, dx * 1.02, x, dy)


def test_the_gradient_and_its_gradient_are_those_of_the_function() -> None:
    x = samples(torch.float64, 12).requires_grad_()
    assert torch.autograd.gradcheck(kernel.relu_squared, (x,))
    assert torch.autograd.gradgradcheck(kernel.relu_squared, (x,))


@pytest.mark.parametrize("name", layouts())
def test_torch_finds_no_fault_in_the_registration(name: str) -> None:
    x = layouts()[name].requires_grad_()
    torch.library.opcheck(OPERATORS.relu_squared.default, (x,))
    dy = torch.randn(x.shape, requires_grad=True)
    torch.library.opcheck(OPERATORS.relu_squared_backward.default, (dy, x))


@pytest.mark.parametrize("name", layouts())
def test_every_layout_gives_eagers_values_and_strides(name: str) -> None:
    x = layouts()[name]
    dy = torch.randn(x.shape)
    y, dx = run(x, dy)
    assert y.stride() == torch.relu(x).square().stride()
    assert_right(y, dx, x, dy)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_comes_out_as_from_torch(dtype: torch.dtype) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0], dtype=dtype)
    y, dx = run(x, torch.ones_like(x))
    expected = torch.tensor([float("nan"), float("inf"), 0, 0, 0], dtype=dtype)
    torch.testing.assert_close(y.detach(), expected, equal_nan=True)
    torch.testing.assert_close(dx, expected, equal_nan=True)


def test_the_kernel_takes_and_refuses_what_it_should() -> None:
    assert kernel.refusal(samples(torch.float32)) == "the tensor is on cpu, not on cuda"
    with FakeTensorMode():  # tensors without values: no GPU is needed
        x = torch.empty(6, 4, device="cuda")
        for dtype in DTYPES:
            assert kernel.refusal(x.to(dtype)) is None
        assert kernel.refusal(torch.empty(0, 4, device="cuda")) is None
        assert kernel.refusal(x.double()) == "no kernel for torch.float64"
        assert kernel.refusal(x.t()) == "it is not contiguous"
        assert kernel.refusal(x.narrow(1, 1, 2)) == "it is not contiguous"
        assert kernel.refusal(torch.empty(kernel.LARGEST, device="cuda")) is None
        large = torch.empty(kernel.LARGEST + 1, device="cuda")
        assert kernel.refusal(large) == f"{large.numel()} elements: at most {kernel.LARGEST}"


POINTERS = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}


@pytest.mark.parametrize("name", ["forward_kernel", "backward_kernel"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernels_compile_for_a_gpu_and_compute_nothing_in_float64(
    name: str, dtype: torch.dtype
) -> None:
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        pytest.skip(f"nothing is compiled without a GPU: {error}")
    bare = getattr(kernel, name)
    # A parameter that is a Python float is "fp64": so Inductor hands it over.
    kinds = {x: POINTERS[dtype] if x.endswith("_ptr") else "i32" for x in bare.arg_names}
    kinds["block"] = "constexpr"
    code = ASTSource(bare, kinds, {(bare.arg_names.index("block"),): kernel.BLOCK})
    made = triton.compile(code, target=GPUTarget("cuda", 90, 32))
    assert "f64" not in made.asm["ptx"]


INTERPRETED = """
import sys
import torch
from backbay.kit.guarded_memory import guard_memory
from backbay_example_backend import kernel
from torch.testing import assert_close

guard_memory()  # a kernel that reads or writes beside its tensors is ended: a mask is missing
dtype, tolerance = getattr(torch, sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
for size in (0, 1, 1023, 1024, 1025, 5000):
    x, dy = (4 * torch.randn(size)).to(dtype), torch.randn(size).to(dtype)
    y = kernel.launch(kernel.forward_kernel, x)
    dx = kernel.launch(kernel.backward_kernel, dy, x)
    assert y.dtype == dx.dtype == dtype
    wide = x.double()
    truth = kernel.reference(wide), kernel.reference_backward(dy.double(), wide)
    assert_close((y.double(), dx.double()), truth, rtol=tolerance, atol=1e-7)
x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]).to(dtype)
y = kernel.launch(kernel.forward_kernel, x)
assert_close(y, kernel.reference(x), equal_nan=True)
dx = kernel.launch(kernel.backward_kernel, torch.ones_like(x), x)
assert_close(dx, kernel.reference_backward(torch.ones_like(x), x), equal_nan=True)
print("right")
"""


@with_triton
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernels_are_right_in_tritons_interpreter(dtype: torch.dtype) -> None:
    # The interpreter cuts float32 off to bfloat16 where a GPU rounds to the nearest.
    tolerance = TOLERANCE[dtype] * (2 if dtype == torch.bfloat16 else 1)
    name = str(dtype).removeprefix("torch.")
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, name, str(tolerance)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "right\n", done.stderr


def squared(x: Tensor) -> Tensor:
    """Call the operator from a function, which torch.compile wants."""
    return kernel.relu_squared(x)


@on_a_gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernels_are_right_on_a_gpu(dtype: torch.dtype, compiled: bool) -> None:
    torch.compiler.reset()
    operator = torch.compile(squared, fullgraph=True) if compiled else squared
    for size in (1, 1024, 99_999):
        x, dy = samples(dtype, size).cuda(), samples(dtype, size, seed=1).cuda()
        assert kernel.refusal(x) is None
        assert_right(*run(x, dy, operator), x, dy)
