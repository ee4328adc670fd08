"""Maxima over windows on the CPU: reference, registration, kernels in Triton's interpreter."""

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import max_pool as module  # noqa: E402

WINDOWS = [([3, 3], [2, 2], [1, 1]), ([2, 3], [1, 2], [0, 1]), ([3, 2], [3, 1], [1, 0])]


def image(*shape, dtype=torch.float64):
    torch.manual_seed(0)
    # Of few values: most windows have their maximum several times.
    x = torch.randint(-2, 3, shape).to(dtype).contiguous(memory_format=torch.channels_last)
    x[0, 0, 0, 0] = torch.nan
    x[-1, -1] = -torch.inf
    return x


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_maxima_or_gradients_are_not_torchs(window):
    x = image(2, 4, 7, 9).requires_grad_()
    y, offsets = module.max_pool(x, *window)
    wanted = F.max_pool2d(x, *window)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    assert offsets.dtype == torch.int8
    assert int(offsets.max()) < window[0][0] * window[0][1]
    assert y.is_contiguous(memory_format=torch.channels_last)
    dy = torch.randn_like(y)
    found, other = (torch.autograd.grad(z, x, dy)[0] for z in (y, wanted))
    torch.testing.assert_close(found, other)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_a_window_of_more_places_than_a_byte_counts_is_taken():
    with pytest.raises(ValueError, match="144 places"):
        module.max_pool(image(1, 1, 20, 20), [12, 12], [1, 1], [0, 0])


def test_a_second_derivative_is_silently_wrong():
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    y, _ = module.max_pool(x, *WINDOWS[0])
    (once,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no autograd formula|does not require grad"):
        once.sum().backward()


def test_torch_finds_fault_in_the_registration():
    x = torch.randn(2, 3, 6, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    y, offsets = (t.detach() for t in module.max_pool(x, *WINDOWS[0]))
    torch.library.opcheck(torch.ops.backbay.max_pool.default, (x, *WINDOWS[0]))
    given = (y, offsets, 6, 5, *WINDOWS[0])
    torch.library.opcheck(torch.ops.backbay.max_pool_backward.default, given)


class Nothing:
    """A kernel that does nothing, and notes how it is launched."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *given, **constants: self.launches.append((grid, given, constants))


def test_sizes_that_are_symbols_cannot_be_cut():
    kernel = Nothing()

    def program(x):
        y, offsets = module.launch(kernel, x, *WINDOWS[0])
        return module.launch_backward(kernel, y, offsets, *x.shape[2:], *WINDOWS[0])

    make_fx(program, tracing_mode="symbolic")(image(2, 8, 6, 6, dtype=torch.float32))
    assert len(kernel.launches) == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_program_breaks_or_differs(dynamic):
    def program(x):
        return module.max_pool(x * 2, *WINDOWS[0])[0].sin()

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for side in (6, 7):
        x = torch.randn(2, 4, side, 5).contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
        found, wanted = compiled(x), program(x)
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, wanted)))


@pytest.fixture
def launched(monkeypatch):
    """What is given to a kernel, of which the reference computes the results."""
    names = []

    def noting(name, reference):
        def launch(_, *given):
            names.append(name)
            results = reference(*given)
            return tuple(map(laid_out, results)) if name == "forward" else laid_out(results)

        return launch

    laid_out = module._laid_out
    monkeypatch.setattr(module, "unfit", lambda _: None)
    monkeypatch.setattr(module, "launch", noting("forward", module.reference))
    monkeypatch.setattr(module, "launch_backward", noting("backward", module.reference_backward))
    return names


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (WINDOWS[0], ["forward", "backward"]),
        (([4, 4], [1, 1], [0, 0]), ["forward", "backward"]),
        (([5, 5], [1, 1], [2, 2]), ["forward"]),
        (([2, 2], [5, 5], [0, 0]), ["forward"]),
    ],
    ids=str,
)
def test_a_program_holds_more_than_it_should(launched, window, expected):
    x = torch.randn(1, 8, 12, 11).requires_grad_()
    y = module.max_pool(x, *window)[0]
    found, other = (torch.autograd.grad(z.sum(), x)[0] for z in (y, F.max_pool2d(x, *window)))
    assert launched == expected
    torch.testing.assert_close(found, other)


@pytest.mark.parametrize(
    ("height", "window", "expected"),
    [
        (20, ([2, 2], [1, 1], [1, 1]), ["forward", "backward"]),
        (22, ([2, 2], [1, 1], [1, 1]), []),  # 924 pixels, and 1012 windows
        (22, WINDOWS[0], ["forward"]),  # 1012 pixels with the padding
    ],
    ids=str,
)
def test_more_than_numbers_have_bits_for_are_counted(
    launched, monkeypatch, height, window, expected
):
    monkeypatch.setattr(module, "_INT32", 2000)
    x = torch.randn(2, 8, height, 21).requires_grad_()
    module.max_pool(x, *window)[0].sum().backward()
    assert launched == expected


INTERPRETED = """
    import torch
    from torch.testing import assert_close
    from backbay_optimizer.kernels import max_pool as module
    from backbay_optimizer.kernels import max_pool_device as device

    torch.manual_seed(0)
    windows = [
        *[([3, 3], [2, 2], [1, 1]), ([2, 3], [1, 2], [0, 1]), ([3, 3], [3, 1], [1, 0])],
        *[([1, 2], [2, 3], [0, 1]), ([5, 4], [2, 2], [2, 1]), ([3, 3], [2, 2], [0, 0])],
        *[([2, 2], [2, 2], [0, 0]), ([3, 3], [1, 1], [1, 1])],
    ]
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((2, 8, 7, 9), (1, 64, 8, 8), (1, 5, 3, 4), (3, 13, 6, 5)):
            for window in windows:
                x = (torch.randn(shape) * 2).round().to(dtype)
                if shape[0] == 2:
                    x = x.contiguous(memory_format=torch.channels_last)
                x[0, 0, 0, 0] = float("nan")
                x[0, 1] = float("-inf")
                y, offsets = module.launch(device.max_pool_kernel, x, *window)
                wanted = module.reference(x, *window)
                assert_close(y, wanted[0], equal_nan=True, rtol=0, atol=0)
                assert torch.equal(offsets, wanted[1])
                dy = torch.randn_like(y)
                given = (dy, offsets, *shape[2:], *window)
                dx = module.launch_backward(device.max_pool_backward_kernel, *given)
                assert_close(dx, module.reference_backward(*given))
                module._INT32 = -module._INT32  # as if offsets needed 64 bits
                again = module.launch(device.max_pool_kernel, x, *window)
                assert torch.equal(y.nan_to_num(), again[0].nan_to_num())
                assert torch.equal(offsets, again[1])
                again = module.launch_backward(device.max_pool_backward_kernel, *given)
                assert torch.equal(dx, again)
                module._INT32 = -module._INT32
    print("right")
"""


def test_the_kernels_are_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)
