"""What of Inductor's code is handed over to be replayed, and what is not."""

import threading

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config
from torch._inductor.output_code import CompiledFxGraph

from backbay import compile_log
from backbay.errors import InputError
from backbay_optimizer.backend import backbay
from backbay_optimizer.cuda_graphs import codegen, safety
from backbay_optimizer.cuda_graphs.recordings import Recordings
from backbay_optimizer.cuda_graphs.replaying import Replayed
from backbay_optimizer.cuda_graphs.training import Backward, Forward


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Known:
    """What a store says of a graph."""

    def __init__(self, known):
        self.known = known

    def __call__(self, *_):
        return self

    def found_by(self, compiled):
        return compiled


@pytest.fixture
def replaying(monkeypatch):
    """A backend whose graphs count as a device's, what it compiles plainly, and takes over."""
    plain, taken = [], []

    def made(*, known="always"):
        decide = None if known == "always" else Known(known)
        return codegen.replaying(
            None, {}, plain=inductor_plain, name="ours", share=0.5, decide=decide
        )

    def inductor_plain(graph_module, example_inputs):
        plain.append(graph_module)
        return compile_fx.compile_fx(graph_module, example_inputs)

    monkeypatch.setattr(codegen, "on_cuda", lambda *_: True)

    def take_over(code, _):
        taken.append(code)
        run = code.current_callable
        code.current_callable = lambda inputs: run(inputs)  # which a cache can't have

    monkeypatch.setattr(codegen, "take_over", take_over)
    compile_log.clear()
    return made, plain, taken


def reasons():
    return [x.why for x in compile_log.records()]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_is_not_taken_over(replaying, dynamic, tmp_path, monkeypatch):
    made, plain, taken = replaying
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for known in ("always", None):  # the second one comes from a cache
        torch.compiler.reset()
        taken.clear()
        model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        call = torch.compile(model, backend=made(known=known), dynamic=dynamic)
        call(torch.randn(3, 8)).sum().backward()
        different = {id(x): x for x in taken}.values()
        forward, backward = sorted(different, key=lambda x: x.fx_kwargs["is_backward"])
        assert backward.fx_kwargs["is_backward"]
        saved = len(backward.fx_kwargs["static_input_idxs"])
        assert 0 < saved < len(forward.output_strides)
    assert not plain


def test_a_graph_of_no_device_is_taken_over(replaying, monkeypatch):
    made, plain, taken = replaying
    monkeypatch.undo()
    assert torch.compile(lambda x: x + 1, backend=made(known=None))(torch.ones(2)).tolist() == [
        2,
        2,
    ]
    assert plain
    assert not taken


def test_memory_of_a_model_that_is_no_more_is_kept_when_another_is_compiled(replaying, monkeypatch):
    made, *_ = replaying
    asked = []
    monkeypatch.setattr(Recordings, "release_stale", lambda: asked.append(1))
    torch.compile(lambda x: x + 3, backend=made(known=None))(torch.ones(2))
    assert asked


def test_what_does_not_pay_is_taken_over(replaying):
    made, plain, taken = replaying
    torch.compile(lambda x: x + 2, backend=made(known=False))(torch.ones(2))
    assert plain
    assert not taken


def test_a_mode_that_asks_for_torchs_own_gets_others():
    def made(mode, decide, options=()):
        given = {"plain": plain, "name": "ours", "share": 0.5, "decide": decide}
        return codegen.replaying(mode, dict(options), **given)

    def plain(*_):
        raise AssertionError

    assert made("reduce-overhead", Known(None)) is plain
    assert made("max-autotune", Known(None)) is plain
    assert made("max-autotune-no-cudagraphs", Known(None)) is not plain
    assert made("reduce-overhead", None) is not plain
    with inductor_config.patch({"triton.cudagraphs": True}):  # as TORCHINDUCTOR_CUDAGRAPHS=1 does
        assert made(None, Known(None)) is plain
        assert made(None, None) is not plain
        assert made(None, Known(None), {"triton.cudagraphs": False}) is not plain


def test_code_from_a_cache_is_not_taken_over(replaying, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    made, plain, taken = replaying
    hits = []
    for known in ("always", None, True, True):
        torch.compiler.reset()
        taken.clear()
        counters.clear()
        call = torch.compile(lambda x: torch.tanh(x).sin(), backend=made(known=known))
        call(torch.randn(3, 4))
        assert len({id(x) for x in taken}) == 1
        assert taken[0].source_code
        hits.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert hits == [0, 1, 1, 1]
    assert not plain
    torch.compiler.reset()
    before = len(taken)
    torch.compile(torch.cos)(torch.ones(3))  # nobody listens any more
    assert len(taken) == before


def test_a_backward_that_autograds_thread_compiles_meanwhile_is_of_another_graph(monkeypatch):
    monkeypatch.setattr(CompiledFxGraph, "post_compile", lambda *_: None)
    recordings, own = Recordings(name="ours"), code_of(inference=False)
    others = code_of(inference=False, is_backward=True, static=(0, 1))
    with codegen.taking_over(recordings):
        own.post_compile((), None)
        thread = threading.Thread(target=others.post_compile, args=((), None))
        thread.start()
        thread.join()
    assert type(own.current_callable) is Forward
    assert others.current_callable is list
    assert recordings.saved is None


@pytest.mark.parametrize("writes", [False, True])
def test_a_step_that_writes_its_input_is_recorded(writes, device, tmp_path, monkeypatch):
    def of_a_device(code, recordings):
        code.device_types, code.device_idxs = {"cuda"}, {0}
        take_over(code, recordings)

    def function(x):
        if writes:
            x.add_(1)
        return model(x)

    take_over = codegen.take_over
    monkeypatch.setattr(codegen, "take_over", of_a_device)
    monkeypatch.setattr(codegen, "on_cuda", lambda *_: True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # for what is of no device
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    backend = codegen.replaying(None, {}, plain=None, name="ours", share=0.5)
    call = torch.compile(function, backend=backend)
    for _ in range(4):
        given = torch.randn(3, 8)
        seen = []
        for one in (function, call):
            x = given.clone()
            result = one(x)
            seen.append((result, *torch.autograd.grad(result.sin().sum(), model.parameters()), x))
        torch.testing.assert_close(*seen)
    assert bool(device["graphs"]) != writes, reasons()
    why = "forward graph has no CUDA graph: it writes 1 inputs that are neither parameters nor"
    assert any(x.startswith(why) for x in reasons()) == writes, reasons()


def code_of(source="", written=(), static=(), devices=("cuda",), inference=True, **given):
    code = CompiledFxGraph.__new__(CompiledFxGraph)
    code.device_types, code.device_idxs = set(devices), {0}
    code.mutated_input_idxs, code.source_code = written, source
    code.fx_kwargs = {"is_inference": inference, "static_input_idxs": static, **given}
    code.current_callable, code.compiled_fn_runner = list, None
    return code


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, None),
        ({"written": (1,), "static": (1,)}, None),
        ({"written": (1,)}, "it writes 1 inputs"),
        ({"inference": False}, None),
        ({"inference": False, "static": (0,), "written": (0, 1)}, "it writes 1 inputs"),
        ({"inference": False, "is_backward": True, "static": (0, 1)}, None),
        ({"inference": False, "is_backward": True, "static": (1,), "written": (1,)}, "it writes 1"),
        ({"devices": ("cpu", "cuda")}, "it runs on cpu, cuda"),
        ({"cpp_wrapper": True}, "its wrapper is not in Python"),
        ({"source": "x = buf0.item()"}, "it waits for the device"),
    ],
)
def test_code_is_replayed_that_is_not_safe(given, reason):
    compile_log.clear()
    recordings, code = Recordings(name="ours"), code_of(**given)
    codegen.take_over(code, recordings)
    assert (code.current_callable is list) == (reason is not None)
    assert recordings.writes == (reason is None and bool(given.get("written")))
    if reason is not None:
        assert any(reason in x for x in reasons())
        assert reason in recordings.refused


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"inference": True}, Replayed),
        ({"inference": False}, Forward),
        ({"inference": False, "is_backward": True}, Backward),
    ],
)
def test_code_is_taken_for_another_kind(given, kind):
    recordings, code = Recordings(name="ours"), code_of(static=(0, 1, 2), **given)
    codegen.take_over(code, recordings)
    taken = code.current_callable
    assert type(taken) is kind
    assert recordings.trains == (kind is Forward)
    assert recordings.saved == (3 if kind is Backward else None)
    codegen.take_over(code, recordings)  # as it is finished and as it is compiled
    assert code.current_callable is taken


def test_code_for_the_host_is_spoken_of():
    compile_log.clear()
    code = code_of(devices=("cpu",))
    codegen.take_over(code, Recordings(name="ours"))
    assert code.current_callable is list
    assert not compile_log.records()


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
        ("u0 = (buf5\n    .item())", "it waits for the device"),
        ("u0 = f(buf5)[0].item()", "it waits for the device"),
        ("u0 = f(buf5.item()).sum()", "it waits for the device"),
        ("print(f'{buf5.item()}')", "it waits for the device"),
        ("mine = torch.ops.mylib\n    buf6 = mine.thing(buf5)", "mylib.thing is not known"),
        ("mine = yours = torch.ops.mylib; yours.thing.out(buf5)", "mylib.thing is not known"),
        ("buf6 = torch.ops \\\n        .mylib.thing(buf5)", "mylib.thing is not known"),
        ("buf6 = (torch.ops).mylib.thing(buf5)", "mylib.thing is not known"),
        ("mine = torch.ops.aten; mine = torch.ops.mylib; mine.mm(buf5)", "mylib.mm is not known"),
        ("mine = torch.ops.mylib; mine = torch.ops.aten; mine.mm(buf5)", "mylib.mm is not known"),
        ("known['x'] = torch.ops.mylib; known['x'].thing(buf5)", "mylib.thing is not known"),
        ("known.x, y = torch.ops.mylib, 3", None),
        ("known = [torch.ops.aten, torch.ops.mylib]", None),
        ("self.ops.thing.run(buf5)", None),
        ("aten.nonzero(arg0)", "it waits for the device"),
        ("buf6 = _quantized.wrapped_linear_prepack(buf5)", "_quantized.wrapped_linear_prepack is"),
        ("buf6 = extern_kernels.some_new_product(arg0)", "aten.some_new_product is not known"),
    ],
)
def test_unsafe_code_is_safe(line, reason):
    found = next(safety._unsafe(SOURCE + "    " + line + "\n"), None)
    assert (found is None) if reason is None else (found is not None and reason in found)
