"""Inductor's own code, handed over: on a CPU nothing is replayed, and nothing else is different."""

import pytest
import torch
from torch import nn
from torch._inductor import compile_fx
from torch._inductor.output_code import CompiledFxGraph
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from backbay import compile_log
from backbay.errors import InputError
from backbay_optimizer.backend import backbay
from backbay_optimizer.cuda_graphs import codegen, safety
from backbay_optimizer.cuda_graphs.replaying import Recordings


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_training_on_a_cpu_differs():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), torch.randn(3, 8)
    call = torch.compile(model, backend=backbay, options={"cuda_graphs": True})
    for _ in range(3):
        model.zero_grad()
        call(x).sum().backward()
        gradients = [y.grad for y in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        for one, other in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(one, other.grad)


def test_training_is_recorded(monkeypatch):
    seen = []
    monkeypatch.setattr(codegen, "_inner_compile", lambda *_, **__: seen.append(1))
    compile_log.clear()
    model = nn.Linear(8, 4)
    torch.compile(model, backend=backbay, options={"cuda_graphs": True})(torch.randn(3, 8))
    assert not seen
    assert any("training has no CUDA graph" in x.why for x in compile_log.records())


def test_a_training_graph_that_inductor_makes_is_replayed(monkeypatch):
    code = CompiledFxGraph.__new__(CompiledFxGraph)
    code.device_types, code.device_idxs, code.mutated_input_idxs = {"cuda"}, {0}, ()
    code.source_code, code.current_callable, code.compiled_fn_runner = "", list, None
    monkeypatch.setattr(compile_fx, "compile_fx_inner", lambda *_, **__: code)
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    for training in (True, False):
        compile_log.clear()
        recordings = Recordings(name="ours")
        codegen._inner_compile(recordings, graph, [torch.ones(2)], is_inference=not training)
        assert (code.current_callable is list) is training
        assert any(x.why == codegen.TRAINING for x in compile_log.records()) is training


def test_what_is_compiled_is_not_seen(monkeypatch):
    seen, inner = [], codegen._inner_compile

    def seeing(shared, graph_module, example_inputs, **given):
        seen.append(given.get("is_inference"))
        return inner(shared, graph_module, example_inputs, **given)

    monkeypatch.setattr(codegen, "_inner_compile", seeing)
    for _ in range(2):  # torch's cache of AOTAutograd's results has the second
        torch.compiler.reset()
        seen.clear()
        call = torch.compile(
            lambda x: torch.tanh(x).sin(), backend=backbay, options={"cuda_graphs": True}
        )
        call(torch.randn(3, 4))
        assert seen == [True]


def test_an_option_is_taken_for_another():
    for wrong in ("on", 2, None):
        with pytest.raises(InputError, match="cuda_graphs"):
            backbay.code_generator(None, {"cuda_graphs": wrong})
    backbay.code_generator("max-autotune", {"cuda_graphs": "auto"})


SOURCE = """
aten = torch.ops.aten
inductor_ops = torch.ops.inductor
_quantized = torch.ops._quantized
reinterpret_tensor = torch.ops.inductor._reinterpret_tensor
alloc_from_pool = torch.ops.inductor._alloc_from_pool
def call(args):
    extern_kernels.addmm(arg0, arg1, arg2, alpha=1, beta=1, out=buf0)
    buf1 = extern_kernels.convolution(buf0, arg3, stride=(1, 1))
    buf2 = torch.ops.aten._scaled_dot_product_flash_attention.default(buf1, buf1, buf1)
    buf3 = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(buf1, buf1, buf1)
    buf4 = torch.ops.backbay.fused_convolution.default(buf1)
    aten.randint.low_out(-9223372036854775808, 9223372036854775807, [1], out=buf5)
    triton_poi_fused_0.run(buf0, buf1, 64, stream=stream0)
"""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", None),
        ("buf6 = torch.ops.aten.bincount.default(buf5)", "aten.bincount is not known"),
        ("aten._addmm_activation(arg0, arg1, arg2, beta=1, alpha=1, use_gelu=False)", None),
        ("buf6 = torch.ops.mylib.thing.default(buf5)", "mylib.thing is not known"),
        ("buf6 = torch.ops._c10d_functional.all_reduce.default(buf5)", "_c10d_functional.all"),
        ("u0 = buf5.item()", "it waits for the device"),
        ("inductor_ops.resize_storage_bytes_(arg0, 12)", "inductor.resize_storage_bytes_ is not"),
        ("# Source: aten.var_mean, torch.ops.mylib.thing", None),
        ("kernel = async_compile.triton('aten.relu torch.ops.mylib.thing x.item()')", None),
        ("aten.nonzero(arg0)", "it waits for the device"),
        ("buf6 = _quantized.wrapped_linear_prepack(buf5)", "_quantized.wrapped_linear_prepack is"),
        ("buf6 = extern_kernels.some_new_product(arg0)", "aten.some_new_product is not known"),
    ],
)
def test_unsafe_code_is_safe(line, reason):
    found = next(safety._unsafe(SOURCE + "    " + line + "\n"), None)
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_an_operator_is_taken_for_safe():
    # A Triton kernel's operator has a dict as its value, which torch 2.11 can't read.
    graph = torch.fx.symbolic_trace(lambda x: torch.ops.aten.sin(x))
    sin = next(x for x in graph.graph.nodes if x.op == "call_function")
    sin.meta["val"] = {"y_ptr": torch.ones(2), "n": 2, "name": None}
    assert safety.unsafe_operator(graph) is None
    unknown = ShapeEnv().create_unbacked_symint()
    sin.meta["val"] = {"y_ptr": torch.ones(2), "n": [unknown]}
    assert "sin" in safety.unsafe_operator(graph)
    sin.meta.clear()
    sin.target = torch.ops.aten._fused_moving_avg_obs_fq_helper.default
    assert safety.unsafe_operator(graph) == "aten._fused_moving_avg_obs_fq_helper.default"


def test_nothing_is_said_of_a_cpu():
    compile_log.clear()
    call = torch.compile(torch.sin, backend=backbay, options={"cuda_graphs": True})
    call(torch.ones(3))
    assert not any("CUDA graph" in x.why for x in compile_log.records())
