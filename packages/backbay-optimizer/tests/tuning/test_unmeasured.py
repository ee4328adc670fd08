"""On a GPU that kernels were not measured on, a graph has them where it is shown to be faster."""

from dataclasses import dataclass

import pytest
import torch

from backbay import compile_log
from backbay.kit.passes import Pass
from backbay_optimizer.backend import Optimizing
from backbay_optimizer.kernels import elsewhere
from backbay_optimizer.tuning import variants
from backbay_optimizer.tuning.variants import ALL, Results, agree, results_of

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


def doubled(x):
    return torch.add(x, x)


def call(backend, tune, x, function=doubled):
    torch.compiler.reset()
    backend.ran.clear()
    run = torch.compile(function, backend=backend, options={"tune": tune})
    results = [run(x) for _ in range(2)]
    for result in results:
        torch.testing.assert_close(result, function(x))
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
    assert said("the whole is not used: its results are others")
    assert call(backend, "cache", X) is False


@pytest.mark.usefixtures("times")
def test_a_kernel_that_does_not_run_stops_the_model():
    assert call(Refused(), "full", X) is False
    assert said("kernels left out that were not measured here: BackbayError: backbay.compile")


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


def test_a_size_that_varies_has_kernels():
    run = torch.compile(doubled, backend=Ours(), dynamic=True, options={"tune": "full"})
    x = torch.arange(6.0)
    torch._dynamo.mark_dynamic(x, 0)
    torch.testing.assert_close(run(x), x + x)
    assert said("not timed, every rewrite kept: its sizes vary")
    assert not said("doubling 1x")


def test_measured_kernels_are_compared(times, monkeypatch):
    monkeypatch.setattr(elsewhere, "_is_measured", lambda _: True)
    compared = []
    monkeypatch.setattr(variants, "results_of", lambda *given: compared.append(given))
    assert call(Ours(), "full", X) is True
    assert not compared


@dataclass(frozen=True, kw_only=True)
class Subtracting(Pass):
    """A rewrite without a kernel."""

    summary = "it subtracts"
    of: object = torch.sub
    by: object = torch.subtract

    def run(self, graph_module, context):
        nodes = graph_module.graph.find_nodes(op="call_function", target=self.of)
        for node in nodes:
            node.target = self.by
        graph_module.recompile()
        return len(nodes)


class Two(Ours):
    """Has both rewrites; which of them a graph has is what fails, or not."""

    passes = (Doubling(), Subtracting())
    fails_with, raises_with = None, None

    def compile(self, graph_module, example_inputs):
        targets = {n.target for n in graph_module.graph.nodes if n.op == "call_function"}
        which = (torch.add not in targets, torch.sub not in targets)
        self.compiled = [*getattr(self, "compiled", []), which]
        if which == self.fails_with:
            raise RuntimeError("none of 7 plans runs on this GPU")
        if which == self.raises_with:
            return refused
        return super().compile(graph_module, example_inputs)


def both(backend, tune="full"):
    return call(backend, tune, X, lambda x: torch.sub(torch.add(x, x), 1))


@pytest.mark.usefixtures("times")
def test_an_arm_that_raises_loses_the_others():
    backend = Two()
    backend.raises_with = (True, False)
    assert both(backend) is True
    assert said("the variant without subtracting is not used: ")


@pytest.mark.usefixtures("times")
def test_a_kernel_that_does_not_run_ends_the_timing_of_other_rewrites():
    backend = Two()
    backend.fails_with = (True, True)
    assert both(backend) is False
    assert said("timed: subtracting kept; unmeasured_kernels left out")
    backend.compiled.clear()
    assert both(backend, "cache") is False
    assert backend.compiled == [(False, True)]


@pytest.mark.usefixtures("times")
def test_a_kernel_that_runs_no_longer_stops_the_model(monkeypatch):
    monkeypatch.setattr(elsewhere, "_is_elsewhere", lambda _: True)
    backend = Two()
    assert both(backend) is True
    backend.fails_with = (True, True)
    assert both(backend, "cache") is False
    assert said("kernels left out that were not measured here")


@pytest.mark.usefixtures("times")
def test_kernels_are_used_where_nothing_was_timed():
    backend = Two()
    backend.fails_with = (False, False)
    assert both(backend) is False
    assert said("doubling, subtracting not timed: without it: ")


@dataclass(frozen=True, kw_only=True)
class Asking(Pass):
    """Would put a kernel somewhere, and finds another reason not to."""

    summary = "it asks"

    def run(self, graph_module, context):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.add):
            elsewhere.unmeasured(node.meta["example_value"])
        return 0


class Idle(Two):
    """Has no unmeasured kernel after all."""

    passes = (Asking(), Subtracting())
    raises_with = (False, False)


@pytest.mark.usefixtures("times")
def test_a_variant_without_any_rewrite_has_to_agree():
    both(Idle())
    assert said("timed: subtracting kept: ")
    assert not said("is not used")


class Drawing(Two):
    """Draws a random number more where the rewrite without a kernel is missing."""

    def compile(self, graph_module, example_inputs):
        targets = {n.target for n in graph_module.graph.nodes if n.op == "call_function"}
        run = super().compile(graph_module, example_inputs)
        return (lambda *args: (torch.rand(1), run(*args))[1]) if torch.sub in targets else run


@pytest.mark.usefixtures("times")
def test_random_numbers_of_another_order_leave_right_kernels_out():
    backend = Drawing()
    options = {"tune": "full"}

    def dropped(x):
        return torch.nn.functional.dropout(torch.sub(torch.add(x, x), 1), 0.5)

    torch.compile(dropped, backend=backend, options=options)(torch.ones(1000))
    assert backend.ran[-1] is True
    assert said("timed: doubling, subtracting kept")


class Second(Ours):
    """Can't compile what has no kernel where it is one of several variants."""

    passes = (Doubling(function=wrong),)

    def compile(self, graph_module, example_inputs):
        targets = {n.target for n in graph_module.graph.nodes if n.op == "call_function"}
        self.plain = getattr(self, "plain", 0) + (torch.add in targets)
        if torch.add in targets and self.plain == 1:
            raise RuntimeError("not beside others")
        return super().compile(graph_module, example_inputs)


@pytest.mark.usefixtures("times")
def test_a_kernel_is_used_that_nothing_is_compared_with():
    assert call(Second(), "full", X) is False


def test_results_are_of_other_random_numbers_or_without_gradients():
    weight, written = torch.ones(3, requires_grad=True), torch.zeros(3)

    def arm(x, w, written):
        written += 1
        return (torch.rand(3) * x * w, torch.arange(3))

    state = torch.get_rng_state()
    given = [torch.ones(3), weight, written]
    first, second = (results_of(arm, given) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert weight.grad is None
    assert not written.any()
    assert (len(first.tensors), len(first.gradients)) == (3, 1)
    torch.testing.assert_close(first, second)
    assert agree(first, second)
    assert first.gradients[0].unique().numel() == 3
    for name, i in (("tensors", 0), ("tensors", 2), ("gradients", 0)):
        other = [*getattr(first, name)]
        other[i] = 1.5 * other[i]
        assert not agree(first._replace(**{name: other}), second)
    assert not agree(first._replace(tensors=first.tensors[:2]), second)
    assert not agree(first._replace(tensors=[x.double() for x in first.tensors]), second)
    assert not agree(first._replace(gradients=[None]), second)


def test_a_gradient_is_wrong_beside_larger_ones():
    def agrees(found, wanted):
        return agree(*(Results([], [torch.ones(10_000), x]) for x in (found, wanted)))

    assert not agrees(torch.zeros(50), torch.ones(50))
    assert agrees(torch.ones(50) * 1.05, torch.ones(50))
    assert agrees(torch.full((50,), -0.1), torch.full((50,), 0.1))  # rounding, for all anyone knows


def twice(x, _):
    return 2 * x


@dataclass(frozen=True, kw_only=True)
class First(Subtracting):
    """Takes what another rewrite, with a kernel, would take."""

    summary = "it doubles by itself"
    of: object = torch.add
    by: object = twice


class Behind(Ours):
    """Has a wrong kernel that is seen only where another rewrite is missing."""

    passes = (First(), Doubling(function=wrong))


def test_a_wrong_kernel_stands_where_another_rewrite_was_left_out(times):
    times.update({ALL: 2.0, ("first", "doubling"): 3.0, ("first",): 1.0})
    assert call(Behind(), "full", X) is True
    assert said("the variant without first is not used: its results are others")
    (line,) = said("timed: first kept: ")
    assert " 1.496 [" in line  # times as fast as without both
