"""Stances and resets reach every backend that ships."""

import sys
from pathlib import Path

import pytest
import torch

import backbay
from backbay import compile_log
from backbay.kit.backend import Backend
from backbay.kit.observing import collected, current_watch
from backbay.kit.passes import graph_pass

sys.path.insert(0, str(Path(__file__).parent))
from subjects import NN, SHIPPED, Inner, doubled, graphs

# -- stances


def test_force_eager_compiles_nothing_as_call_context_and_decorator(backend):
    compiled = backbay.compile(doubled, backend=backend)
    with torch.compiler.set_stance("force_eager"):
        assert compiled(torch.ones(1)) == 2
    assert torch.compiler.set_stance("force_eager")(compiled)(torch.ones(1)) == 2
    torch.compiler.set_stance("force_eager")
    assert compiled(torch.ones(1)) == 2
    assert graphs() == 0
    torch.compiler.set_stance("default")
    assert compiled(torch.ones(1)) == 2
    assert graphs() == 1


def test_fail_on_recompile_raises_and_eager_on_recompile_goes_on(backend):
    compiled = backbay.compile(doubled, backend=backend, dynamic=False)
    compiled(torch.ones(3))
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(torch.ones(3))
        with pytest.raises(RuntimeError, match="Detected recompile"):
            compiled(torch.ones(5))
    with torch.compiler.set_stance("eager_on_recompile"):
        torch.testing.assert_close(compiled(torch.ones(5)), torch.full((5,), 2.0))
    assert graphs() == 1


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_a_stance_that_compiles_later_does_compile_with_the_backend(backend, stance):
    seen = []

    def noted(graph_module, example_inputs, **given):
        seen.append(1)
        return backend(graph_module, example_inputs, **given)

    compiled = backbay.compile(doubled, backend=noted)
    try:
        with torch.compiler.set_stance(stance):
            torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
            assert not seen
            torch.testing.assert_close(compiled(torch.ones(5)), torch.full((5,), 2.0))
    finally:
        torch._dynamo.eval_frame._EXAMPLE_INPUTS = None  # torch keeps it across a reset
    assert seen


def test_a_stance_can_force_the_backend(backend):
    def never(graph_module, example_inputs):
        raise AssertionError("the forced backend was not used")

    compiled = torch.compile(doubled, backend=never)
    with torch.compiler.set_stance("default", force_backend=backend):
        assert compiled(torch.ones(1)) == 2
    assert graphs() == 1


def test_guards_that_are_not_evaluated_still_tell_compiled_shapes_apart(backend):
    compiled = backbay.compile(doubled, backend=backend, dynamic=False)
    compiled(torch.ones(3))
    compiled(torch.ones(5))
    with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
        torch.testing.assert_close(compiled(torch.ones(5)), torch.full((5,), 2.0))
    assert graphs() == 2


# -- reset


@pytest.mark.parametrize("name", [x for x in SHIPPED if x != "backbay_print"])
def test_reset_forgets_what_ran(name, monkeypatch):
    backend = backbay.lookup_backend(name)
    monkeypatch.setattr(type(backend), "codegen", "eager")
    compiled = backbay.compile(doubled, backend=backend, guard_filter=NN)
    compiled(torch.ones(1))
    torch.compiler.reset()
    assert [x.asked for x in compile_log.records()] == [name]
    compiled(torch.ones(1))
    assert graphs() == 2


def test_reset_reaches_a_code_generator_and_what_the_default_chose():
    inner = Inner()
    with backbay.registered(inner, "inner_of_reset"):
        outer = type("Outer", (Backend,), {"codegen": "inner_of_reset"})()
        for backend in (outer, backbay.lookup_backend("backbay.default")):
            torch.compiler.reset()
            with backbay.policy(default="inner_of_reset"):
                torch.compile(doubled, backend=backend)(torch.ones(1))
            before = inner.resets
            torch.compiler.reset()
            assert inner.resets > before, backend


def test_two_backends_with_the_same_passes_each_have_their_own_reports():
    @graph_pass(level="aten")
    def at_aten(graph_module):
        return 0

    kind = type("Same", (Backend,), {"passes": (at_aten,)})
    observed = []
    for backend in (kind(), kind()):
        with collected():
            (hooked,) = backend._generator([at_aten], {}, {}, None).options.values()
            assert hooked._watch.observer is current_watch().observer
        observed.append(hooked)
    assert observed[0] != observed[1]
