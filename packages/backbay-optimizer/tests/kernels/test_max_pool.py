"""Maxima over windows on the CPU: reference, registration, kernels in Triton's interpreter."""

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import conditions, images  # noqa: E402
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
            return (
                tuple(map(images.laid_out, results))
                if name == "forward"
                else images.laid_out(results)
            )

        return launch

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


DRAWN = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few, round_casts
    from torch.testing import assert_close
    from backbay_optimizer.kernels import max_pool as module
    from backbay_optimizer.kernels import max_pool_device as device

    round_casts()
    few(28)
    DTYPES = [torch.float32, torch.float16, torch.bfloat16]

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from(DTYPES))
        size = [draw(st.sampled_from([3, 2, 4, 1])) for _ in range(2)]
        stride = [draw(st.integers(1, 3)) for _ in range(2)]
        padding = [draw(st.integers(0, n // 2)) for n in size]
        sides = [draw(st.integers(max(1, n - 2 * p), 7)) for n, p in zip(size, padding)]
        shape = draw(st.integers(1, 2)), draw(st.sampled_from([5, 8, 24, 65])), *sides
        torch.manual_seed(draw(st.integers(0, 9)))
        # Of few values: most windows have their maximum several times.
        x = torch.randint(-2, 3, shape) * draw(st.sampled_from([1.0, 3e4]))
        for value in draw(st.sampled_from([[], ["-inf"], ["nan"], ["inf", "-inf", "nan"]])):
            x[torch.rand(shape) < draw(st.sampled_from([0.9, 0.1]))] = float(value)
        x[0, 1:2] = float("-inf")  # all of a channel, if there are two
        x, dims = x.to(dtype), draw(st.sampled_from([None, (1, 3), (2, 3)]))
        # Of other strides, as of channels that are last or pixels that are turned.
        x = x if dims is None else x.transpose(*dims).contiguous().transpose(*dims)
        window = (size, stride, padding)
        y, offsets = module.launch(device.max_pool_kernel, x, *window)
        wanted = module.reference(x.double(), *window)
        assert_close(y.double(), wanted[0], equal_nan=True, rtol=0, atol=0)
        assert torch.equal(offsets, wanted[1])
        dy = (torch.randn(y.shape) * draw(st.sampled_from([1.0, 2.0**-16, 2.0**9]))).to(dtype)
        given_ = dy, offsets, *sides, *window
        dx = module.launch_backward(device.max_pool_backward_kernel, *given_)
        wanted = module.reference_backward(dy.double(), *given_[1:])
        assert dx.dtype == dtype
        # Sums of float32 that are rounded once, of float16 to multiples of 2^-24 at the least.
        atol = 2**-21 * dy.abs().max().item() + 2**-25
        assert_close(dx.double(), wanted, rtol=torch.finfo(dtype).eps / 2, atol=atol)

    check()
    print("right")
"""


def test_maxima_of_drawn_windows_or_their_gradient_stray_from_float64(assert_right_in_interpreter):
    assert_right_in_interpreter(DRAWN)


def test_no_images_are_given_to_a_kernel_or_have_other_maxima(monkeypatch):
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    with torch._subclasses.FakeTensorMode():
        assert module.refusal(torch.empty(0, 8, 7, 9, device="cuda")) == "it is empty"
        assert module.refusal(torch.empty(1, 8, 7, 9, device="cuda")) is None
    x = torch.empty(0, 4, 7, 9, requires_grad=True)
    y, offsets = module.max_pool(x, *WINDOWS[0])
    wanted = F.max_pool2d(x, *WINDOWS[0])
    torch.testing.assert_close(y, wanted)
    assert offsets.shape == wanted.shape
    torch.testing.assert_close(*(torch.autograd.grad(z.sum(), x) for z in (y, wanted)))
    for shape in ((2, 0, 7, 9), (2, 4, 0, 9)):
        for pool in (module.max_pool, F.max_pool2d):
            with pytest.raises(RuntimeError, match="optional 0 dim batch size"):
                pool(torch.empty(shape), *WINDOWS[0])
