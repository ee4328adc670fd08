"""The models, patterns and arms that the benchmarks compare."""

import sys

import pytest
import torch


def test_latents_have_another_side_than_the_table_says(speed):
    case = speed("speed.model_cases").case
    assert case("vae_decoder_nchw.infer").about("full") == "4x4x64x64 latents"
    assert case("vae_decoder_nhwc.train").about("full") == "4x4x32x32 latents"
    (given,) = case("vae_decoder_nhwc.train").build("tiny").args
    assert case("vae_decoder_nhwc.train").about("tiny") == f"1x4x{given.shape[2]}x4 latents"


def test_every_case_has_its_own_name_and_enough_controls(speed):
    cases = speed("speed.model_cases").CASES
    patterns = speed("speed.pattern_cases").PATTERNS
    assert len({x.name for x in cases}) == len(cases) >= 20
    assert sum(x.control for x in cases) >= 5
    assert len({x.name for x in patterns}) == len(patterns) >= 35
    assert all(2 <= len(x.shapes) <= 4 for x in patterns)


def test_patterns_compute_at_their_tiny_shape_and_so_do_the_alternatives(speed):
    bench, requests = speed("speed.pattern_bench"), speed("speed.requests")
    for pattern in speed("speed.pattern_cases").PATTERNS:
        request = requests.Prepare(kind="pattern", name=pattern.name, size="tiny", device="cpu")
        made = bench.PatternBench(request)
        assert made.prepared().bytes_moved > 0, pattern.name
        if made._program.alternative is not None:
            assert pattern.alternative, pattern.name
            results = made._step("alt", compiled=False)()
            assert made._error(results) <= made._allowed, pattern.name


def test_wrong_result_is_not_timed(speed, monkeypatch):
    bench, requests = speed("speed.pattern_bench"), speed("speed.requests")
    monkeypatch.setattr(speed("speed.arms"), "compiled", lambda f, *_, **__: lambda *x: 1.1 * f(*x))
    request = requests.Prepare(kind="pattern", name="silu_product", size="tiny", device="cpu")
    made = bench.PatternBench.__new__(bench.PatternBench)
    with monkeypatch.context() as right:
        right.setattr(speed("speed.arms"), "compiled", lambda f, *_, **__: f)
        made.__init__(request)
    answer = made.ready("eager", "")
    assert answer.status == "wrong"
    assert "is allowed" in answer.reason


@pytest.mark.parametrize("mode", ["hoist", "hoist-graphs"])
def test_what_may_be_stale_counts_as_ours_or_as_stock(speed, monkeypatch, mode):
    arms, asked = speed("speed.arms"), []
    monkeypatch.setattr(torch, "compile", lambda f, **given: asked.append(given) or f)
    arms.compiled(abs, f"backbay:{mode}")
    assert asked[0]["options"]["parameter_hoist"]
    assert asked[0]["options"].get("triton.cudagraphs", False) is (mode == "hoist-graphs")
    assert arms.graphed(f"backbay:{mode}") is (mode == "hoist-graphs")
    assert not arms.ours(f"backbay:{mode}")
    assert not arms.stock(f"backbay:{mode}")
    assert arms.stock("inductor:tuned")
    assert not arms.stock("inductor:frozen")
    assert arms.ours("backbay:reduce-overhead")


def test_a_patterns_weights_are_taken_for_inputs(speed, reports):
    bench, requests = speed("speed.pattern_bench"), speed("speed.requests")
    request = requests.Prepare(kind="pattern", name="swiglu", size="tiny", device="cpu")
    made = bench.PatternBench(request)
    backend = optimizing_in_eager()
    hoisted = {"parameter_hoist": True}  # in inference layers are merged for that alone
    with torch.no_grad():
        call = torch.compile(made._program.function, backend=backend, options=hoisted)
        call(*made._program.inputs)
    assert [x.changes for x in reports if x.name == "horizontal_fusion"] == [1]


def optimizing_in_eager():
    from backbay.kit.backend import Backend
    from backbay_optimizer.backend import Optimizing

    return type("Eager", (Backend,), {"passes": Optimizing.passes, "codegen": "eager"})()


def test_mask_builders_come_back(speed, monkeypatch):
    module = type(sys)("transformers.models.some.modeling_some")
    module.create_causal_mask = builder = object()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    arms = speed("speed.arms")
    with arms.surrounded("hand"):
        assert module.create_causal_mask() is None
    assert module.create_causal_mask is builder
    with arms.surrounded("inductor"):
        assert module.create_causal_mask is builder


def test_arm_that_is_ready_stays_compiled_while_another_gets_ready(speed, monkeypatch):
    arms, compiled = speed("speed.arms"), []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    call = torch.compile(lambda x: x * 2, backend=backend)
    call(torch.ones(3))
    arms.warm_up.cache_clear()
    monkeypatch.setattr(arms, "_compiler", lambda _: "eager")
    arms.warm_up("another", "cpu", train=True)
    call(torch.ones(3))
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("mode", "value"), [("without-linear_epilogues", False), ("with-linear_epilogues", True)]
)
def test_an_arm_says_whether_an_option_is_on(speed, monkeypatch, mode, value):
    asked = {}
    monkeypatch.setattr(torch, "compile", lambda _, **how: asked.update(how))
    speed("speed.arms").compiled(torch.relu, f"backbay:{mode}")
    assert asked["options"] == {"linear_epilogues": value}
