"""What is kept of kernels is kept while any graph of a GPU is compiled, its backward, too."""

import contextlib

import pytest

pytest.importorskip("triton")

import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._higher_order_ops import triton_kernel_wrap
from torch._inductor import compile_fx, config
from torch._inductor.async_compile import AsyncCompile

from backbay.errors import CompilationFailed
from backbay.kit.codegen import torch_level
from backbay_optimizer.backend import backbay
from backbay_optimizer.cuda_graphs import codegen
from backbay_optimizer.inductor import compiling, kernel_analysis, static_launch
from backbay_optimizer.inductor.static_launch import SETTING


@pytest.fixture
def inside(monkeypatch, tmp_path):
    """How often a compilation was inside; graphs count as a GPU's."""
    entered = []

    @contextlib.contextmanager
    def noted():
        entered.append("kept")
        yield

    monkeypatch.setattr(compiling, "_kept", noted)
    for module in (codegen, compiling):
        monkeypatch.setattr(module, "on_cuda", lambda *_: True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "found"))
    torch.compiler.reset()
    yield entered
    torch.compiler.reset()


def failing(*_, **__):
    raise ValueError("a fault")


REPLAYING = codegen.replaying(None, {}, plain=None, name="ours", share=0.5)


@pytest.mark.parametrize("generate", [backbay, REPLAYING], ids=["plain", "replayed"])
def test_kernels_of_a_backward_are_compiled_as_ever(inside, generate):
    call = torch.compile(nn.Linear(8, 4), backend=generate)
    x = torch.randn(3, 8)
    result = call(x)
    before = len(inside)
    assert before >= 1
    result.sum().backward()
    assert len(inside) > before
    torch.testing.assert_close(result, call._orig_mod(x))


def test_launchers_or_analyses_are_not_kept():
    analysis = next(x for x in kernel_analysis._NAMES if hasattr(triton_kernel_wrap, x))
    places = [(AsyncCompile, "triton"), (triton_kernel_wrap, analysis)]
    before = [getattr(*x) for x in places]
    with compiling._kept():
        assert not any(getattr(*x) is y for x, y in zip(places, before, strict=True))
    assert [getattr(*x) for x in places] == before


@pytest.mark.parametrize("option", [True, False, None])
def test_an_option_that_turns_it_off_is_overruled_or_caches_know_nothing(
    inside, monkeypatch, option
):
    keys, compile_ = [], compile_fx.compile_fx_inner

    def noted(*given, **more):
        keys.append(config.unsafe_marked_cacheable_functions)
        return compile_(*given, **more)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", noted)
    options = {} if option is None else {SETTING: option}
    call = torch.compile(nn.Linear(8, 4), backend=backbay, options=options)
    call(torch.randn(3, 8)).sum().backward()
    assert len(keys) == 2
    assert all((static_launch._MARK in x) == (option is not False) for x in keys)
    assert all(len(x) > 1 for x in keys if option is not False)  # the passes' digests, too
    assert bool(inside) == (option is not False)


@pytest.mark.parametrize("is_replayed", [False, True])
def test_a_fault_does_not_name_inductor(inside, monkeypatch, is_replayed):
    monkeypatch.setattr(compile_fx, "compile_fx", failing)
    generate = compiling.InductorCodegen(None, {}, torch_level("inductor", None, None))
    if is_replayed:
        generate = codegen.replaying(None, {}, plain=generate, name="ours", share=0.5)
    with pytest.raises(BackendCompilerFailed, match="inductor: ValueError: a fault") as caught:
        torch.compile(lambda x: x + 1, backend=generate)(torch.ones(2))
    assert isinstance(caught.value.inner_exception, CompilationFailed)


def test_a_setting_of_another_type_is_not_explained(inside):
    generate = compiling.InductorCodegen(
        None, {"max_autotune": "x"}, torch_level("inductor", None, None)
    )
    with pytest.raises(BackendCompilerFailed, match="inductor: RuntimeError: Unexpected type"):
        torch.compile(lambda x: x + 1, backend=generate)(torch.ones(2))
