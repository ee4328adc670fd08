"""On a GPU that kernels were not measured on, a graph has them where it is shown to be faster."""

from dataclasses import dataclass

import pytest
import torch

from backbay import compile_log
from backbay.kit.passes import Pass
from backbay_optimizer.backend import Optimizing
from backbay_optimizer.kernels import elsewhere
from backbay_optimizer.tuning import variants
from backbay_optimizer.tuning.variants import ALL, agree, results_of

NONE = ("unmeasured_kernels",)


@dataclass(frozen=True, kw_only=True)
class Doubling(Pass):
    """Puts a function in the place of a sum, if its kernel was measured here."""

    summary = "it doubles"
    function: object = torch.mul

    def run(self, graph_module, context):
        changes = 0
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.add):
            if elsewhere.unmeasured(node.meta["example_value"]) is None:
                node.target, node.args = self.function, (node.args[0], 2)
                changes += 1
        graph_module.recompile()
        return changes


def wrong(x, y):
    return x * y + 1


def refused(x, y):
    raise RuntimeError("no plan runs here")


class Ours(Optimizing):
    """Has that rewrite, and runs graphs as they are."""

    passes = (Doubling(),)

    def __init__(self):
        super().__init__()
        self.ran = []

    def compile(self, graph_module, example_inputs):
        targets = {n.target for n in graph_module.graph.nodes if n.op == "call_function"}
        if refused in targets:
            raise RuntimeError("none of 7 plans runs on this GPU\nand more")
        is_rewritten = torch.add not in targets

        def run(*args):
            self.ran.append(is_rewritten)
            return graph_module.forward(*args)

        return run


class Wrong(Ours):
    """Likewise, with a wrong kernel."""

    passes = (Doubling(function=wrong),)


class Refused(Ours):
    """Likewise, with one that can't be compiled."""

    passes = (Doubling(function=refused),)


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    monkeypatch.setattr(elsewhere, "_is_measured", lambda _: False)
    torch.compiler.reset()
    compile_log.clear()
    yield
    torch.compiler.reset()


@pytest.fixture
def times(monkeypatch):
    """Milliseconds of a call, with the kernel and without it."""
    given = {ALL: 1.0, NONE: 2.0}

    def timed(arms, *_, **__):
        return {off: [given.get(off, given[NONE]) + 0.001 * n for n in range(30)] for off in arms}

    monkeypatch.setattr(variants, "timed", timed)
    return given


def call(backend, tune, x):
    torch.compiler.reset()
    backend.ran.clear()
    run = torch.compile(lambda x: torch.add(x, x), backend=backend, options={"tune": tune})
    results = [run(x) for _ in range(2)]
    for result in results:
        torch.testing.assert_close(result, x + x)
    return backend.ran[-1]


def said(text):
    return [x.why for x in compile_log.records() if text in x.why]


X = torch.arange(4.0)


@pytest.mark.parametrize("tune", ["cache", "off"])
def test_a_kernel_is_used_that_nobody_measured_here(tune):
    assert call(Ours(), tune, X) is False


@pytest.mark.usefixtures("times")
def test_a_faster_kernel_is_left_alone_or_forgotten():
    backend = Ours()
    assert call(backend, "full", X) is True
    assert len(said("timed: doubling kept: ")) == 1
    assert call(backend, "cache", X) is True
    assert call(backend, "cache", torch.arange(5.0)) is False
    assert call(backend, "off", X) is False


def test_a_kernel_that_is_not_shown_to_be_faster_is_kept(times):
    times.update({ALL: 1.0, NONE: 1.0})
    backend = Ours()
    assert call(backend, "full", X) is False
    assert said("unmeasured_kernels left out")
    assert call(backend, "cache", X) is False


@pytest.mark.usefixtures("times")
def test_a_wrong_kernel_is_used():
    backend = Wrong()
    assert call(backend, "full", X) is False
    assert said("without nothing: not used, for its results are others")
    assert call(backend, "cache", X) is False


@pytest.mark.usefixtures("times")
def test_a_kernel_that_does_not_run_stops_the_model():
    assert call(Refused(), "full", X) is False
    assert said("kernels left out that were not measured here: backbay.compile raised RuntimeError")


def test_a_graph_that_cannot_be_timed_has_kernels(monkeypatch):
    monkeypatch.setattr(variants, "unsuitable", lambda *_, **__: "hooks see it")
    assert call(Ours(), "full", X) is False
    assert said("not timed, every rewrite kept but unmeasured_kernels: hooks see it")


def test_an_exception_of_another_is_taken_for_a_kernels(monkeypatch):
    monkeypatch.setattr(elsewhere, "_is_measured", lambda _: True)
    with pytest.raises(RuntimeError, match="none of 7 plans"):
        call(Refused(), "full", X)


def test_a_measured_kernel_has_to_prove_itself(times, monkeypatch):
    monkeypatch.setattr(elsewhere, "_is_measured", lambda _: True)
    times.update({ALL: 1.0, NONE: 1.0})
    assert call(Ours(), "full", X) is True
    assert call(Ours(), "cache", X) is True


def test_results_are_of_other_random_numbers_or_without_gradients():
    weight = torch.ones(3, requires_grad=True)

    def arm(x, w):
        return (torch.rand(3) * x * w, torch.arange(3))

    state = torch.get_rng_state()
    first, second = (results_of(arm, [torch.ones(3), weight]) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert len(first) == 3
    torch.testing.assert_close(first, second)
    assert weight.grad is None
    assert agree(first, second)
    for i in (0, 2):
        other = [*first]
        other[i] = 1.5 * other[i]
        assert not agree(other, second)
    assert not agree(first[:2], second)
    assert not agree([x.double() for x in first], second)


def test_infinities_are_the_whole_difference():
    masked = torch.tensor([-torch.inf, 1.0])
    assert agree([masked], [masked.clone()])
    assert not agree([torch.tensor([-torch.inf, 2.0])], [masked])
    assert not agree([torch.tensor([0.0, torch.nan])], [masked])
