"""SiLU on a CUDA device: the kernels as a GPU runs them, and what Inductor makes of them."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay.kit.kernels import silu as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 4.5e-3}
HUGE = 2**31 + 1025


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def samples(dtype, *shape):
    generator = torch.Generator("cuda").manual_seed(0)
    return (4 * torch.randn(shape, generator=generator, device="cuda")).to(dtype)


def layouts(dtype):
    x = samples(dtype, 3, 6, 15, 17)
    return {
        "contiguous": x,
        "channels_last": x.to(memory_format=torch.channels_last),
        "transposed": x[0, 0].t(),
        "permuted": x.permute(3, 0, 2, 1),
        "strided": x[:, ::2, 1:4],
        "expanded": x[:1].expand(3, 6, 15, 17),
        "misaligned": x.flatten()[3:],
        "empty": x[:, :0],
        "scalar": x[0, 0, 0, 0],
    }


def assert_silu(y, x):
    wide = x.detach().double()
    truth = wide * torch.sigmoid(wide)
    torch.testing.assert_close(y.detach().double(), truth, rtol=TOLERANCE[x.dtype], atol=1e-7)


def assert_gradient(dx, dy, x):
    wide = x.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(F.silu(wide), wide, dy.double())
    torch.testing.assert_close(dx.double(), truth, rtol=TOLERANCE[x.dtype], atol=1e-6)


@pytest.mark.parametrize("size", [1, 127, 1024, 1025, module.BLOCK, module.BLOCK + 1, 2**20 + 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size_is_right_forward_and_backward(dtype, size):
    x, dy = samples(dtype, size).requires_grad_(), samples(dtype, 2 * size)[size:]
    assert module.refusal(x) is None
    y = module.silu(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert_silu(y, x)
    assert_gradient(dx, dy, x)


@pytest.mark.parametrize("name", layouts(torch.float32) if torch.cuda.is_available() else [])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_is_right_and_a_dense_one_is_kept(dtype, name):
    x = layouts(dtype)[name].requires_grad_()
    assert (module.refusal(x) is None) == (name not in {"strided", "expanded"})
    y = module.silu(x)
    assert y.stride() == torch.empty_like(x).stride()
    assert_silu(y, x)
    for dy in (torch.randn_like(y), torch.ones((), device="cuda", dtype=dtype).expand(y.shape)):
        (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        assert_gradient(dx, dy, x)


def test_torch_finds_no_fault_in_the_registration():
    x = layouts(torch.float32)["channels_last"].requires_grad_()
    assert callable(module.silu)  # registers it
    torch.library.opcheck(torch.ops.backbay.silu.default, (x,))
    torch.library.opcheck(torch.ops.backbay.silu_backward.default, (torch.randn_like(x), x))


def test_what_is_not_finite_comes_out_as_from_torch():
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, -1e4, 1e4], device="cuda")
    x.requires_grad_()
    y, expected = module.silu(x), F.silu(x)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.signbit(y[3:5]).tolist() == [True, False]
    given, truth = (torch.autograd.grad(out.sum(), x) for out in (y, expected))
    torch.testing.assert_close(given, truth, rtol=0, atol=0, equal_nan=True)


def test_the_gradient_has_a_gradient():
    x = samples(torch.float32, 100).requires_grad_()
    wide = x.detach().double().requires_grad_()
    given, truth = (second_derivative(*pair) for pair in ((module.silu, x), (F.silu, wide)))
    torch.testing.assert_close(given.double(), truth, rtol=1e-5, atol=1e-6)


def second_derivative(function, x):
    (dx,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    return torch.autograd.grad(dx.sum(), x)[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_offsets_beyond_32_bits_are_right(compiled):
    if torch.cuda.mem_get_info()[0] < 6 * 2 * HUGE:
        pytest.skip("needs 26 GB of free memory")
    run = torch.compile(module.silu, fullgraph=True) if compiled else module.silu
    x = torch.empty(HUGE, device="cuda", dtype=torch.bfloat16).uniform_(-4, 4)
    y = run(x)
    dx = module.silu_backward(y, x)
    for part in (slice(0, 2048), slice(2**31 - 2048, None)):
        assert_silu(y[part], x[part])
        assert_gradient(dx[part], y[part], x[part])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inductor_trains_it_without_a_break(dtype, dynamic):
    compiled = torch.compile(module.silu, fullgraph=True, dynamic=dynamic)
    for size in (4096, 5001):
        x, dy = samples(dtype, size).requires_grad_(), samples(dtype, 2 * size)[size:]
        y = compiled(x)
        (dx,) = torch.autograd.grad(y, x, dy)
        assert_silu(y, x)
        assert_gradient(dx, dy, x)


def test_inductor_sees_the_kernel_and_copies_nothing_for_it():
    from torch._inductor.utils import run_and_get_code

    x = samples(torch.bfloat16, 64, 4096).requires_grad_()
    compiled = torch.compile(module.silu, fullgraph=True)
    y, codes = run_and_get_code(lambda: run_backward(compiled, x))
    forward, backward = codes
    assert "silu_forward_kernel" in forward
    assert "silu_backward_kernel" in backward
    for code in codes:
        assert "ops.backbay" not in code  # no call of an opaque operator
        assert "triton_poi" not in code  # nothing of Inductor's own, such as a copy
    assert_silu(y, x)


def run_backward(compiled, x):
    y = compiled(x)
    y.backward(torch.ones_like(y))
    return y


def test_the_traced_graph_holds_the_kernel():
    from torch._dynamo.backends.common import aot_autograd

    targets = []

    def record(graph_module, inputs):
        targets.extend(str(node.target) for node in graph_module.graph.nodes)
        return graph_module

    x = samples(torch.float32, 5000)
    y = torch.compile(module.silu, backend=aot_autograd(fw_compiler=record), fullgraph=True)(x)
    assert any("triton_kernel_wrapper" in target for target in targets), targets
    assert_silu(y, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layout_that_inductor_chose_itself_is_not_misread(dtype):
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(8, 16, 3, device="cuda", dtype=dtype)
    x = samples(dtype, 4, 8, 33, 31).requires_grad_()

    def model(x, function):
        inner = conv(function(conv_in(x)).relu() + 1)
        return function(inner).square() + function(inner.transpose(1, 3)).transpose(1, 3)

    def conv_in(x):
        return F.conv2d(x, conv.weight[:8], conv.bias[:8], padding=1)

    compiled = torch.compile(lambda x: model(x, module.silu), fullgraph=True)
    tolerance = {"rtol": 20 * TOLERANCE[dtype], "atol": 2e-3 if dtype == torch.float32 else 0.3}
    y, expected = compiled(x), model(x, F.silu)
    torch.testing.assert_close(y, expected, **tolerance)
    dy = torch.randn_like(y)
    given, wanted = (torch.autograd.grad(out, x, dy)[0] for out in (y, expected))
    error = (given.double() - wanted.double()).norm() / wanted.double().norm()
    assert error < (1e-2 if dtype == torch.float32 else 5e-2)


def test_a_captured_graph_replays_it():
    x = samples(torch.float32, 5001)
    module.silu(x)  # Triton compiles on the first launch, which capturing forbids
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = module.silu(x)
    x.neg_()
    graph.replay()
    assert_silu(y, x)
