"""Rewrites are timed on the first call, what is faster stays, and the next process knows it."""

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from measurements import spoil
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay import compile_log, explain
from backbay.kit.passes import Pass
from backbay.proof import Workload
from backbay_optimizer.backend import Optimizing, _GraphCompiler
from backbay_optimizer.backend import backbay as optimizing
from backbay_optimizer.cuda_graphs.capture import exclusive
from backbay_optimizer.tuning import cache, variants
from backbay_optimizer.tuning.variants import ALL, Choosing, chosen, key_of, unsuitable

STOCK = ("constant_masks", "slice_pushdown")
ONE = ("constant_masks",)


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    monkeypatch.setattr(variants, "BUDGET_S", 0.05)
    torch.compiler.reset()
    compile_log.clear()
    yield
    torch.compiler.reset()


def around(middle, spread=0.01, step=7):
    return [middle + spread * ((step * x) % 11 - 5) for x in range(30)]


def test_a_rewrite_that_costs_is_kept():
    choice = chosen({ALL: around(2.0), STOCK: around(1.5), ONE: around(1.2)}, STOCK, STOCK)
    assert choice.off == ONE
    assert choice.gain == pytest.approx(1.25, rel=0.01)
    assert choice.interval[0] > 1
    assert "slice_pushdown kept; constant_masks left out: 1.25" in str(choice)


def test_noise_throws_a_rewrite_out():
    noisy = chosen({ALL: around(1.0, 0.1), ONE: around(0.999, 0.1, step=5)}, ONE, ONE)
    assert noisy.off == ALL
    assert noisy.interval[0] < 1 < noisy.interval[1]


def test_a_rewrite_that_pays_is_left_out():
    choice = chosen({ALL: around(1.0), ONE: around(2.0)}, ONE, ONE)
    assert (choice.off, choice.fired) == (ALL, ONE)
    assert choice.gain == pytest.approx(2.0, rel=0.01)


def test_the_slow_variant_stays_or_inputs_are_changed():
    def slow(x):
        time.sleep(0.002)
        return (x.add_(1) * 2,)

    kept = []
    run = Choosing(
        {ALL: slow, ONE: lambda x: (x.add_(1) * 2,)}, ONE, "backbay", kept.append, plain=ONE
    )
    x = torch.zeros(3)
    state = torch.get_rng_state()
    assert run(x)[0].tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]
    assert torch.equal(state, torch.get_rng_state())
    assert [y.off for y in kept] == [ONE]
    start = time.perf_counter()
    run(x)
    assert time.perf_counter() - start < 0.002
    assert "constant_masks left out" in compile_log.records()[-1].why


class Threads(torch.autograd.Function):
    """Twice a tensor; notes whether its backward may run in another thread."""

    seen: ClassVar[list[bool]] = []

    @staticmethod
    def forward(_, x):
        return 2 * x

    @staticmethod
    def backward(_, gradient):
        Threads.seen.append(torch._C._is_multithreading_enabled())
        return 2 * gradient


def test_a_gradient_outlives_what_is_timed_in_a_thread_of_autograds():
    def run(x):
        return (Threads.apply(x),)

    Threads.seen.clear()
    (result,) = Choosing({ALL: run, ONE: run}, ONE, "backbay", lambda _: None, plain=ONE)(
        torch.ones(3, requires_grad=True)
    )
    assert Threads.seen
    assert not any(Threads.seen)
    result.sum().backward()
    assert Threads.seen[-1]


def test_what_cannot_be_timed_stops_the_model():
    def refuses(_):
        raise RuntimeError("out of memory\nand more")

    kept = []
    run = Choosing({ALL: lambda x: (x + 1,), ONE: refuses}, ONE, "backbay", kept.append, plain=ONE)
    assert run(torch.zeros(1))[0].item() == 1
    assert not kept
    assert compile_log.records()[-1].why == (
        "not timed, every rewrite kept: RuntimeError: out of memory"
    )


def test_inputs_that_copies_cannot_stand_for_are_copied():
    whole = torch.zeros(4)
    assert "share memory" in (unsuitable([whole[:2], whole[2:]]) or "")
    assert "Subclass" in (unsuitable([torch.zeros(2).as_subclass(Subclass)]) or "")
    assert unsuitable([whole, torch.nn.Parameter(torch.zeros(2)), 3]) is None


class Subclass(torch.Tensor):
    """Something of its own."""


def graph_of(x):
    return torch.fx.symbolic_trace(lambda x: x + 1), [x]


@contextlib.contextmanager
def _deterministic():
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


@contextlib.contextmanager
def _less_precise():
    """Have products in less than single precision; torch's older function for it raises then."""
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, "tf32"
    try:
        yield
    finally:
        products.fp32_precision = before


def test_a_choice_is_taken_for_another_graphs():
    def key(x, passes=optimizing.passes, settings=None):
        return key_of(*graph_of(x), passes, settings)

    x = torch.zeros(2, 3)
    keys = [key(x), key(x.double()), key(torch.zeros(3, 2)), key(x, settings="max-autotune")]
    keys += [key(torch.zeros(3, 2).t()), key(x.clone().requires_grad_()), key(x, passes=())]
    with torch.no_grad():
        keys.append(key(x))
    with torch.inference_mode():
        keys.append(key(x))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            keys.append(key(x))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        keys.append(key(x))
    with _deterministic():
        keys.append(key(x))
    with _less_precise():
        keys.append(key(x))
    for branch in (lambda x: x.sin(), lambda x: x.cos()):
        outer, inputs = graph_of(x)
        outer.add_submodule("branch", torch.fx.symbolic_trace(branch))
        keys.append(key_of(outer, inputs, (), None))
    assert len(set(keys)) == len(keys)
    assert key(x) == keys[0]


class Hook:
    """One of Inductor's hooks, as users write them."""

    def __init__(self, known):
        self.known = known

    def uuid(self):
        return self.known


def test_a_choice_is_made_again_for_the_same_hook():
    def settings(hook):
        given = {"tune": "full", "post_grad_custom_pre_pass": hook}
        return _GraphCompiler(
            backend=optimizing, example_inputs=(), given=given, mode=None, name=None
        ).settings

    assert settings(Hook("one")) == settings(Hook("one"))
    assert settings(Hook("one")) != settings(Hook("two"))
    first, second = Hook(None), Hook(None)
    assert settings(first) != settings(second)


def test_a_gpu_takes_what_was_found_of_another_beside_it(monkeypatch):
    def name(device=None):  # of the current device, where none is given
        return {None: "H100", 0: "H100", 1: "T4"}[None if device is None else device.index]

    monkeypatch.setattr(torch.cuda, "get_device_name", name)
    with torch._subclasses.FakeTensorMode():
        first, second = (torch.empty(2, device=f"cuda:{x}") for x in range(2))
        assert variants.machine([first])[2] == "H100"
        assert variants.machine([torch.empty(2), second])[2] == "T4"
        assert variants.machine([first, second, first])[2:4] == ("H100", "T4")


class Attention(torch.nn.Module):
    """Attention with a causal mask that is made in every call."""

    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x):
        keep = torch.ones(x.shape[-2], x.shape[-2]).tril() > 0
        return self.out(F.scaled_dot_product_attention(x, x, x, attn_mask=keep))


def compiled(model, tune):
    return torch.compile(model, backend=optimizing, options={"tune": tune})


def last(text):
    return [x.why for x in compile_log.records() if text in x.why]


@pytest.fixture
def _alike(monkeypatch):
    """Time variants, and find no difference: in so short a time noise may show one."""
    timed = variants.timed

    def found(*given):
        return dict.fromkeys(timed(*given), around(1.0))

    monkeypatch.setattr(variants, "timed", found)


@pytest.mark.usefixtures("_alike")
def test_a_second_process_times_again(reports):
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(2, 6, 4)
    want = model(x)
    want.sum().backward()
    grads = [y.grad.clone() for y in model.parameters()]
    model.zero_grad()
    got = compiled(model, "full")(x)
    assert all(y.grad is None for y in model.parameters())
    got.sum().backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close([y.grad for y in model.parameters()], grads)
    assert len(last("timed: constant_masks kept")) == 1
    on = [y.name for y in optimizing.passes if y.enabled]  # the others are asked for
    assert [y.name for y in reports] == on
    for tune in ("full", "cache"):
        torch.compiler.reset()
        torch.testing.assert_close(compiled(model, tune)(x), want)
    assert len(last("timed: ")) == 1
    assert len(last("timed on 20")) == 2


class Keeping(Optimizing):
    """Keeps the graphs that code is generated from, and runs them as they are."""

    def __init__(self):
        super().__init__()
        self.graphs = []

    def compile(self, graph_module, example_inputs):
        self.graphs.append(graph_module)
        return graph_module.forward


def test_a_variant_does_not_know_which_inputs_stay_where_they_are():
    backend, model = Keeping(), Attention()
    with torch.no_grad():
        torch.compile(model, backend=backend, options={"tune": "full"})(torch.randn(2, 6, 4))
    inputs = [[n for n in g.graph.nodes if n.op == "placeholder"] for g in backend.graphs]
    assert len(inputs) == 2
    for graph, nodes in zip(backend.graphs, inputs, strict=True):
        assert hasattr(graph, "_param_name_to_source")
        assert [n._dynamo_source for n in nodes] == [n._dynamo_source for n in inputs[0]]
        assert all(n._dynamo_source is not None for n in nodes)


@dataclass(frozen=True, kw_only=True)
class Firing(Pass):
    """Changes nothing, and counts a change in each graph."""

    summary = "it says that it changed the graph"

    def run(self, graph_module, context):
        return 1


class OfOptimizers(Optimizing):
    """Has a rewrite that fires in every graph."""

    passes = (Firing(),)


def test_an_optimizer_makes_the_steps_of_trials_or_steps_on_copies():
    parameters = []
    for backend in (None, OfOptimizers()):
        torch.manual_seed(0)
        parameters.append(torch.nn.Parameter(torch.randn(3)))
        optimizer = torch.optim.SGD(parameters[-1:], lr=0.1, momentum=0.9)
        step = optimizer.step
        if backend is not None:
            step = torch.compile(step, backend=backend, options={"tune": "full"})
        for _ in range(3):
            parameters[-1].grad = torch.ones(3)
            step()
    torch.testing.assert_close(parameters[1], parameters[0])
    assert last("not timed, every rewrite kept: it writes tensors that are no inputs")


def test_a_size_that_varies_is_a_number_in_a_variant():
    call = torch.compile(
        lambda x: (x @ x.T).relu(), backend=OfOptimizers(), dynamic=True, options={"tune": "full"}
    )
    for size in (3, 5, 7):
        x = torch.randn(size, 4)
        torch.testing.assert_close(call(x), (x @ x.T).relu())
    assert last("not timed, every rewrite kept: its sizes vary")
    assert len(last("not timed")) == 1  # it was compiled once


def test_a_variant_that_can_not_be_compiled_ends_the_compilation():
    def halved(x):  # whose sizes, in another graph of the same inputs, nobody knows
        return torch.while_loop(lambda x: x.sum() > 1, lambda x: (x / 2,), (x,))

    call = torch.compile(halved, backend=OfOptimizers(), options={"tune": "full"})
    torch.testing.assert_close(call(torch.ones(4)), (torch.full((4,), 0.25),))
    assert last("firing not timed: without it: ")


def test_a_variant_reads_copies_of_what_the_graph_holds():
    class Held(Keeping):
        passes = (Firing(),)

    backend, model = Held(), torch.nn.Module()
    model.register_buffer("scale", torch.ones(3))
    graph = torch.fx.Graph()
    inputs = graph.placeholder("x"), graph.get_attr("scale")
    graph.output((graph.call_function(torch.mul, inputs),))
    backend(torch.fx.GraphModule(model, graph), [torch.ones(3)], options={"tune": "full"})
    assert len(backend.graphs) == 2
    assert all(x.scale is model.scale for x in backend.graphs)


@pytest.mark.usefixtures("_alike")
def test_what_was_measured_is_not_explained():
    workload = Workload(model=Attention(), args=(torch.randn(2, 6, 4),))
    options = {"tune": "full"}
    notes = explain.run(workload, backend="backbay", options=options, again=False).notes
    assert any("rewrites timed: constant_masks kept: " in x for x in notes), notes


@pytest.mark.parametrize(("tune", "changes"), [("cache", []), ("off", ["constant_masks"])])
def test_what_was_found_slower_is_done_again(tune, changes, monkeypatch, reports):
    model, x = Attention(), torch.randn(2, 6, 4)
    off = cache.Choice(
        off=ONE, fired=ONE, gain=1.0, interval=(1.0, 1.0), milliseconds={}, created=""
    )
    monkeypatch.setattr(cache, "read", lambda _: off)
    compiled(model, tune)(x)
    assert [y.name for y in reports if y.changes] == changes


def test_a_broken_entry_is_trusted(tmp_path):
    choice = chosen({ALL: around(1.0), ONE: around(2.0)}, ONE, ONE)
    cache.write("key", choice)
    assert cache.read("key") == choice
    spoil(tmp_path)
    assert cache.read("key") is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no modes")
@pytest.mark.parametrize("spoilt", ["", "decisions.sqlite"])
def test_a_choice_that_others_may_have_written_is_believed(tmp_path, spoilt):
    choice = chosen({ALL: around(1.0), ONE: around(2.0)}, ONE, ONE)
    cache.write("key", choice)
    (tmp_path / spoilt).chmod(0o777)
    compile_log.clear()
    assert cache.read("key") is None
    (record,) = compile_log.records()
    assert f"{tmp_path / spoilt} is not used: others may write to it (mode 0777)" in record.why
    cache.write("key", choice)
    assert "is not kept" in compile_log.records()[-1].why


def test_a_folder_that_cannot_be_written_to_stops_the_model(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    cache.write("key", chosen({ALL: around(1.0), ONE: around(2.0)}, ONE, ONE))
    assert cache.read("key") is None


def test_variants_are_timed_while_a_graph_is_recorded():
    seen = []
    with ThreadPoolExecutor(1) as pool:
        with exclusive:  # as while something is captured
            arms = {ALL: lambda x: [seen.append(x)]}
            timing = pool.submit(variants.timed, arms, [torch.ones(2)], 0.01)
            assert not wait([timing], timeout=0.1).done
            assert not seen
        assert timing.result()[ALL]
