"""Backbay's kernels are launched as Inductor's own are, where torch's launcher knows them."""

import contextlib
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

import torch
from torch._inductor import async_compile, config
from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels
from torch._inductor.runtime import compile_tasks

from backbay_optimizer.inductor import static_launch as module
from backbay_optimizer.inductor.static_launch import (
    SETTING,
    is_off,
    is_statically_launchable,
    marked,
    static_launch,
)
from backbay_optimizer.kernels import max_pool, max_pool_device

KERNEL = max_pool_device.max_pool_kernel.src
SIGNATURE = "{'x_ptr': '*bf16', 'y_ptr': '*i8', 'size': 'i32', 'scale': 'fp32', 'n': 'constexpr'}"


def written(signature=SIGNATURE, kind="user_autotune", kernel=KERNEL):
    return f"""
import triton
@triton_heuristics.{kind}(
    configs=[{{'num_warps': 4, 'num_stages': 3}}],
    triton_meta={{'signature': {signature}, 'constants': {{'n': 8}}}},
)
@triton.jit
{kernel}
"""


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    CompiledTritonKernels.cache_clear()
    yield
    CompiledTritonKernels.cache_clear()


@pytest.fixture
def asked(monkeypatch):
    """What processes that compile kernels are asked for."""
    seen = []
    pool = SimpleNamespace(submit=lambda *given: seen.append(given) or SimpleNamespace())
    monkeypatch.setattr(AsyncCompile, "use_process_pool", classmethod(lambda _: True))
    monkeypatch.setattr(AsyncCompile, "process_pool", staticmethod(lambda: pool))
    return seen


@pytest.fixture
def compiled_here(monkeypatch):
    """With what setting kernels are compiled in this process, and what happens in the first."""
    found = SimpleNamespace(settings=[], first=lambda: None)

    class Kernel:
        autotune_cache_info = None

        def set_compile_info(self, *_):
            pass

        def precompile(self, **_):
            first, found.first = found.first, lambda: None
            first()
            found.settings.append(getattr(config, SETTING))

    monkeypatch.setattr(AsyncCompile, "use_process_pool", classmethod(lambda _: False))
    monkeypatch.setattr(async_compile, "_load_triton_kernel_from_source", lambda *_: Kernel())
    monkeypatch.setattr(async_compile, "_set_triton_ptxas_path", lambda: None)
    return found


THEIRS = "def kernel(x_ptr, n: tl.constexpr):\n    tl.store(x_ptr, n)"


def test_other_processes_do_not_know_or_of_another_kernel(asked):
    with static_launch():
        AsyncCompile().triton("kernel", written())
        AsyncCompile().triton("kernel", written(kind="pointwise"))
        AsyncCompile().triton("kernel", written(kernel=THEIRS))
    AsyncCompile().triton("kernel", written("{'x_ptr': '*fp32'}"))
    settings = [x[-1] for x in asked]
    assert [x.get(SETTING) for x in settings] == [True, None, None, None]
    assert all("use_static_triton_launcher" in x for x in settings)
    assert [x[0].__name__ for x in asked] == ["_worker_compile_triton"] * 4


def test_this_process_does_not_know_or_of_another_kernel(compiled_here):
    own = AsyncCompile.triton
    with static_launch(), static_launch():
        AsyncCompile().triton("kernel", written())
        AsyncCompile().triton("kernel", written(kernel=THEIRS), device_str="cuda")
        AsyncCompile().triton("kernel", written("{'x': 'tensordesc<bf16[8]>'}"))
    AsyncCompile().triton("kernel", written())
    assert compiled_here.settings == [True, False, False, False]
    assert AsyncCompile.triton is own
    assert not getattr(config, SETTING)


def test_a_process_that_compiles_does_not_take_the_setting(monkeypatch):
    seen = []

    class Kernel:
        def precompile(self, **_):
            seen.append(getattr(config, SETTING))

        def prepare_for_pickle(self):
            pass

    monkeypatch.setattr(compile_tasks, "_set_triton_ptxas_path", lambda: None)
    job, settings = compile_tasks._worker_compile_triton, {"use_static_triton_launcher": True}
    pool = module._Pool(SimpleNamespace(submit=lambda job, *given: job(*given)))
    pool.submit(job, Kernel, {}, settings)
    assert seen == [True]
    assert not getattr(config, SETTING)


def test_a_fault_leaves_torchs_function_replaced_or_somebody_elses_is_lost():
    own = AsyncCompile.triton
    with pytest.raises(ValueError, match="a fault"), static_launch():
        raise ValueError("a fault")
    assert AsyncCompile.triton is own
    with pytest.MonkeyPatch.context() as m:
        with static_launch():
            m.setattr(AsyncCompile, "triton", len)
        assert AsyncCompile.triton is len
    AsyncCompile.triton = own  # which is not what the other one had found


def test_threads_that_compile_at_once_see_or_leave_the_setting(compiled_here):
    started = threading.Event()

    def elsewhere():
        started.wait(60)
        AsyncCompile().triton("kernel", written("{'x_ptr': '*fp32'}", kernel=THEIRS))
        AsyncCompile().triton("kernel", written("{'x_ptr': '*fp16'}"))

    def first():
        started.set()
        time.sleep(0.2)  # long enough for the other one to be there

    compiled_here.first = first
    other = threading.Thread(target=elsewhere)
    other.start()
    with static_launch():
        AsyncCompile().triton("kernel", written())
        other.join()
    assert compiled_here.settings == [True, False, True]
    assert not getattr(config, SETTING)


def test_a_pool_that_takes_something_else_is_given_more():
    seen = []
    pool = module._Pool(SimpleNamespace(submit=lambda *given: seen.append(given)))
    for given in ((), ("job",), ("job", {"another": 1}), ("job", 2, {"threads": 2}, 3)):
        pool.submit(*given) if given else pool.submit(len)
    assert seen == [(len,), ("job",), ("job", {"another": 1}), ("job", 2, {"threads": 2}, 3)]


@pytest.mark.parametrize(
    "signature",
    [
        "{'x_desc': 'tensordesc<bf16[128, 64]>', 'y_ptr': '*bf16'}",
        "{'x_desc': 'nvTmaDesc'}",
        "{'x': ('*bf16', 'i32')}",
        "{'x': 'fp8e4nv'}",
        "{'x': object}",
        "{'x': }",
        "None",
    ],
)
def test_a_kernel_that_torchs_launcher_cannot_launch_is_given_to_it(signature):
    assert is_statically_launchable(written())
    assert not is_statically_launchable(written(signature))


def test_a_kernel_of_another_name_is_not_known_or_another_one_of_that_name():
    assert is_statically_launchable(written(kernel=KERNEL.replace("max_pool_kernel", "other")))
    assert not is_statically_launchable(written(kernel=THEIRS.replace("kernel", "max_pool_kernel")))


def test_what_inductor_writes_is_not_understood(codes_for_cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(max_pool, "unfit", lambda _: None)

    def pooled(x, scale):
        return max_pool.max_pool(x * scale, [3, 3], [2, 2], [1, 1])[0]

    x = torch.zeros(2, 64, 8, 8).to(memory_format=torch.channels_last)
    codes = codes_for_cuda(pooled, x.requires_grad_(), torch.ones((), requires_grad=True))
    kernels = [y for x in codes for y in re.findall(r"triton\('(\w+)', '''(.*?)'''", x, re.DOTALL)]
    alike = {name for name, source in kernels if is_statically_launchable(source)}
    assert alike == {"max_pool_kernel", "max_pool_backward_kernel"}
    assert len(kernels) > len(alike)


@pytest.mark.parametrize("name", ["SETTING", "_LAUNCHER", "hip", "variable"])
def test_a_torch_without_the_setting_or_of_amds_or_a_variable_that_is_0_is_on(monkeypatch, name):
    assert not is_off({"max_autotune": True, SETTING: True})
    assert is_off({SETTING: False})
    if name == "hip":
        monkeypatch.setattr(torch.version, "hip", "6.4")
    elif name == "variable":
        monkeypatch.setattr(config._config[SETTING], "env_value_force", False)
    else:
        monkeypatch.setattr(module, name, "gone")
    assert is_off({})
    assert not getattr(config, SETTING, False)


def test_marks_of_others_are_lost():
    with config.patch(unsafe_marked_cacheable_functions={"theirs": "2"}):
        assert marked({"max_autotune": True}) == {
            "max_autotune": True,
            "unsafe_marked_cacheable_functions": {"theirs": "2", module._MARK: "1"},
        }
        given = {"unsafe_marked_cacheable_functions": {"given": "3"}}
        assert "given" in marked(given)["unsafe_marked_cacheable_functions"]


def test_a_kernel_of_ours_is_written_otherwise_by_inductor():
    for path in Path(max_pool.__file__).parent.glob("*_device.py"):
        text = path.read_text("utf-8")
        assert "\\" not in text, path.name
        assert "'''" not in text, path.name
