"""Each kernel of a compilation is looked at once, and what is found is what torch finds."""

import contextlib
import gc
import importlib
import weakref

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from torch._higher_order_ops import triton_kernel_wrap
from torch._subclasses import FakeTensorMode

from backbay_optimizer.inductor import kernel_analysis
from backbay_optimizer.inductor.kernel_analysis import analyses_kept
from backbay_optimizer.kernels import max_pool, max_pool_device

NAME = next(x for x in kernel_analysis._NAMES if hasattr(triton_kernel_wrap, x))


@triton.jit
def one(x_ptr, y_ptr, size, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < size), mask=at < size)


@triton.jit
def other(x_ptr, y_ptr, size, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(x_ptr + at, tl.load(y_ptr + at, mask=at < size), mask=at < size)


tuned = triton.runtime.autotuner.Autotuner(
    one, one.arg_names, [triton.Config({"block": 16})], [], None, None
)


@pytest.fixture(autouse=True)
def nothing_is_known():
    kernel_analysis.forget()
    yield
    kernel_analysis.forget()


@pytest.fixture
def asked(monkeypatch):
    seen = []

    def analyse(kernel, kwargs, tma):
        seen.append((kernel, kwargs, tma))
        return object()

    monkeypatch.setattr(triton_kernel_wrap, NAME, analyse)
    return seen


def find(kernel, tma=(), **kwargs):
    return getattr(triton_kernel_wrap, NAME)(kernel, kwargs, dict(tma))


def given(size=8, dtype=torch.float32, numel=8, **more):
    with FakeTensorMode():
        x, y = torch.empty(numel, dtype=dtype), torch.empty(numel)
    return {"x_ptr": x, "y_ptr": y, "size": size, "block": 16, **more}


def symbol(name):
    return importlib.import_module("sympy").Symbol(name)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (given(), given()),
        (given(), given(numel=32)),
        (given(symbol("s0")), given(symbol("s1"))),
        (given(block=tl.float32), given(block=tl.float32)),
    ],
)
def test_calls_that_are_alike_are_looked_at_once(asked, first, second):
    with analyses_kept():
        assert find(one, **first) is find(one, **second)
    assert len(asked) == 1


def test_a_kernel_that_is_tuned_is_looked_at_as_its_first_configuration(asked):
    with analyses_kept():
        arguments = given()
        del arguments["block"]
        assert find(tuned, **arguments) is find(one, **given(block=16))
        assert find(one, **given(block=32)) is not find(tuned, **arguments)
    assert len(asked) == 2


@pytest.mark.parametrize(
    "second",
    [
        given(dtype=torch.float16),
        given(size=9),
        given(size=8.0),
        given(size=None),
        given(size=symbol("s0")),
        given(size=given()["x_ptr"]),
        given(block=32),
        given(num_warps=8),
    ],
)
def test_others_are_looked_at_themselves(asked, second):
    with analyses_kept():
        assert find(one, **given()) is not find(one, **second)
        assert find(one, **given()) is not find(other, **given())
        assert find(one, **given(size=1)) is not find(one, **given(size=True))
    assert len(asked) == 5


@pytest.mark.parametrize(
    ("arguments", "tma"),
    [
        (given(size=object()), {}),
        (given(x_ptr=torch.empty(8)), {}),
        (given(), {"x_ptr": ("stable", ([16],))}),
    ],
)
def test_what_is_not_known_is_looked_at_at_each_call(asked, arguments, tma):
    with analyses_kept():
        assert find(one, tma, **arguments) is not find(one, tma, **arguments)
    assert asked == [(one, arguments, tma)] * 2


def test_what_was_found_is_looked_for_again(asked):
    torchs = getattr(triton_kernel_wrap, NAME)
    with analyses_kept():
        first = find(one, **given())
    assert getattr(triton_kernel_wrap, NAME) is torchs
    with analyses_kept():
        assert find(one, **given()) is first
        kernel_analysis.forget()
        assert find(one, **given()) is not first
    assert getattr(triton_kernel_wrap, NAME) is torchs


def test_a_kernel_is_kept_alive(asked):
    kernel = triton.jit(one.fn)
    with analyses_kept():
        find(kernel, **given())
    asked.clear()
    gone = weakref.ref(kernel)
    kernel = triton.jit(one.fn)  # Triton holds the last of a name
    gc.collect()
    assert gone() is None
    assert not kernel_analysis._found


def test_of_two_who_are_inside_the_first_to_go_takes_it_along(asked):
    torchs = getattr(triton_kernel_wrap, NAME)
    first, second = analyses_kept(), analyses_kept()
    first.__enter__()
    second.__enter__()
    found = find(one, **given())
    first.__exit__(None, None, None)
    assert find(one, **given()) is found
    second.__exit__(None, None, None)
    assert getattr(triton_kernel_wrap, NAME) is torchs


def test_a_list_is_everyones_own(monkeypatch):
    monkeypatch.setattr(triton_kernel_wrap, NAME, lambda *_: ["y_ptr"])
    with analyses_kept():
        find(one, **given()).append("x_ptr")
        assert find(one, **given()) == ["y_ptr"]


def test_a_torch_without_the_function_compiles_as_ever(monkeypatch):
    monkeypatch.setattr(kernel_analysis, "_NAMES", ("gone",))
    with analyses_kept():
        assert not hasattr(triton_kernel_wrap, "gone")


@torch.library.triton_op("backbay_tests::pooled", mutates_args=())
def pooled(x: torch.Tensor, size: int) -> torch.Tensor:
    kernel = torch.library.wrap_triton(max_pool_device.max_pool_kernel)
    return max_pool.launch(kernel, x, [size] * 2, [1, 1], [size // 2] * 2)[0]


def test_layers_that_are_alike_are_compiled_as_ever(codes_for_cuda, monkeypatch):
    counted, compile_ = [], triton_kernel_wrap.generate_ttir

    def generate_ttir(*given):
        counted.append(given)
        return compile_(*given)

    monkeypatch.setattr(triton_kernel_wrap, "generate_ttir", generate_ttir)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())

    def net(x, scale):
        for size in (3, 3, 3, 5):
            x = pooled(x, size)
        return x * scale

    x = torch.zeros(2, 64, 8, 8).to(memory_format=torch.channels_last)
    scale = torch.ones((), requires_grad=True)
    codes, often = codes_for_cuda(net, x, scale), len(counted)
    counted.clear()
    with analyses_kept():
        again = codes_for_cuda(net, x, scale)
    assert [_from_imports(x) for x in again] == [_from_imports(x) for x in codes]
    assert codes[0].count("max_pool_kernel_0.run(") == 3
    assert codes[0].count("max_pool_kernel_1.run(") == 1
    assert len(counted) == 2
    assert often >= 8


def _from_imports(code: str) -> str:
    return code[code.index("import ") :]  # above is the number of the compilation
