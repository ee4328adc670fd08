"""``backend="backbay.auto"``: what was decided for a graph; Inductor where nothing was."""

import time

import pytest
import torch

from backbay import compile_log
from backbay.backends.auto import auto
from backbay.backends.delegating import Asked
from backbay.decisions import Arm, Store
from backbay.decisions.place import place_of
from backbay.errors import InputError
from backbay.graph.region import captured_digest
from backbay.registry import default_registry


def function(x):
    return x.sin() + 1


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    torch.compiler.reset()
    compile_log.clear()
    yield
    torch.compiler.reset()


def captured(x):
    """Return the digest of the function's graph as Dynamo captures it."""
    found = []

    def look(graph_module, _):
        found.append(captured_digest(graph_module))
        return graph_module.forward

    torch.compile(function, backend=look, dynamic=False)(x)
    torch.compiler.reset()
    return found[0]


@pytest.fixture
def decided(decision):
    """Return a function that keeps decisions for the function's graph on an input."""

    def keep(x, *arms, **changes):
        graph, place = captured(x), place_of([x])
        for number, arm in enumerate(arms):
            kept = decision(number, arm=arm, graphs=(graph,), **{"place": place} | changes)
            Store().keep(kept)

    return keep


def ran(x):
    torch.testing.assert_close(
        torch.compile(function, backend="backbay.auto", dynamic=False)(x), function(x)
    )
    return compile_log.records()[-1]


def test_the_arm_that_was_decided_compiles(decided):
    x = torch.randn(5)
    decided(x, Arm(backend="aot_eager"))
    record = ran(x)
    assert (record.asked, record.ran, record.fell_back) == ("backbay.auto", "aot_eager", False)
    assert "1.50x [1.40, 1.60] eager" in record.why


def test_where_nothing_was_decided_inductor_compiles(decided):
    decided(torch.randn(5), Arm(backend="aot_eager"))
    for x in (torch.randn(6), torch.randn(5, dtype=torch.float64)):
        torch.compiler.reset()
        record = ran(x)
        assert (record.ran, record.fell_back) == ("inductor", False)
        assert "nothing was decided" in record.why


def test_what_a_race_could_not_tell_is_applied_or_hides_what_another_told(decided):
    x = torch.randn(5)
    told = {"abstained": True, "over_eager": None, "interval": None}
    decided(x, Arm(backend="eager"), **told)
    record = ran(x)
    assert (record.ran, record.fell_back) == ("inductor", False)
    assert "no arm could be told from eager" in record.why
    torch.compiler.reset()
    decided(x, Arm(backend="aot_eager"), created="2026-11-24T00:00:00+00:00")
    assert ran(x).ran == "aot_eager"


def test_recording_gradients_is_another_decision(decided):
    decided(torch.randn(5), Arm(backend="aot_eager"))
    assert ran(torch.randn(5, requires_grad=True)).ran == "inductor"
    torch.compiler.reset()
    with torch.no_grad():
        assert ran(torch.randn(5)).ran == "inductor"


def test_decisions_that_differ_give_the_default_and_say_so(decided):
    x = torch.randn(5)
    decided(x, Arm(backend="aot_eager"), Arm(backend="eager"))
    record = ran(x)
    assert (record.ran, record.fell_back) == ("inductor", True)
    assert "decisions differ for this graph: aot_eager, eager" in record.why


def test_decisions_that_agree_are_one(decided):
    x = torch.randn(5)
    decided(x, Arm(backend="aot_eager"), Arm(backend="aot_eager"))
    assert ran(x).ran == "aot_eager"


@pytest.mark.parametrize(
    ("arm", "why"),
    [
        (Arm(backend="no_such_backend"), "no backend named"),
        (Arm(backend="backbay.auto"), "its own choice"),
        (Arm(backend="openxla"), "does not run here"),
        (Arm(backend="aot_eager", scope="blocks"), "parts of a model"),
    ],
)
def test_an_arm_that_cannot_run_here_gives_the_default_and_says_so(decided, arm, why):
    x = torch.randn(5)
    decided(x, arm)
    record = ran(x)
    assert (record.ran, record.fell_back) == ("inductor", True)
    assert why in record.why


def test_another_version_of_who_provides_the_backend_does_not_count(decided):
    x = torch.randn(5)
    place = place_of([x], {"backbay": "0.0.0"})
    decided(x, Arm(backend="backbay_silu"), place=place)
    record = ran(x)
    assert (record.ran, record.fell_back) == ("inductor", True)
    assert "backbay 0.0.0" in record.why
    torch.compiler.reset()
    decided(x, Arm(backend="aot_eager"), place=place, raced=("eager", "backbay_silu", "a{"))
    assert ran(x).ran == "aot_eager"  # one that lost may be another by now


def test_another_torch_does_not_count(decided):
    x = torch.randn(5)
    decided(x, Arm(backend="aot_eager"), place=place_of([x], {"torch": "1.0"}))
    assert ran(x).ran == "inductor"


def test_mode_and_options_are_part_of_what_was_decided(decided):
    x = torch.randn(5)
    decided(x, Arm(backend="inductor", options={"max_fusion_size": 3}))
    assert ran(x).ran == "inductor"
    assert "inductor{max_fusion_size: 3}" in compile_log.records()[-1].why
    torch.compiler.reset()
    decided(x, Arm(backend="inductor", mode="max-autotune", options={"max_fusion_size": 3}))
    assert "inductor@max-autotune{max_fusion_size: 3}" in ran(x).why
    with pytest.raises(InputError, match="takes mode and options from"):
        default_registry.get_backend("backbay.auto", mode="reduce-overhead")(None, [])


def test_a_graph_is_looked_up_quickly(decided):
    """A second process decides within this time; opening the store and hashing are all of it."""
    x = torch.randn(5)
    decided(x, Arm(backend="aot_eager"))
    times = []

    def look(graph_module, inputs):
        start = time.perf_counter()
        choice = auto.choice(Asked(graph_module=graph_module, example_inputs=inputs, device="cpu"))
        times.append(1e3 * (time.perf_counter() - start))
        assert choice.backend == "aot_eager"
        return graph_module.forward

    torch.compile(function, backend=look, dynamic=False)(x)
    assert min(times) < 50
