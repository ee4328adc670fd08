"""`backbay.choose`: a model comes back compiled as was decided, and that is remembered."""

from pathlib import Path

import msgspec
import pytest
import torch

import backbay
from backbay import choosing
from backbay.decisions import Arm, Store
from backbay.race import Limits, Objective
from backbay.race.decide import Deciding

FAULTY = Path(__file__).parent / "race" / "faulty.py"
QUICK = Limits(backend_s=120.0, timing_s=0.3)
HONEST, SCALED = (f"{FAULTY}:{x}" for x in ("honest", "scaled"))

pytestmark = pytest.mark.slow


class Wasteful(torch.nn.Module):
    """Computes much that nobody uses, which Dynamo leaves out of the graph."""

    def __init__(self, width=256):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        for _ in range(20):
            x.sin().exp()
        return self.linear(x)


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Wasteful() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, here):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def no_race(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("it races again")

    def forbid():
        monkeypatch.setattr(choosing, "run", refuse)

    return forbid


def test_a_model_is_raced_in_each_process_though_it_was_decided(no_race):
    model, x = Wasteful().eval(), torch.randn(512, 256)
    given = {"arms": ["aot_eager"], "limits": QUICK}
    first = backbay.choose(model, (x,), **given)
    assert first.arm == Arm(backend="aot_eager"), first.why
    assert first.report is not None
    assert first.kept is not None
    with torch.no_grad():
        torch.testing.assert_close(first.model(x), model(x))
    no_race()
    second = backbay.choose(model, (x,), **given)
    assert (second.arm, second.report, second.kept) == (first.arm, None, first.kept)
    assert "1" in second.why
    assert "anew" not in second.why
    with torch.no_grad():
        torch.testing.assert_close(second.model(x), model(x))


def test_a_model_that_looks_alike_is_not_run_to_find_its_decision(no_race, monkeypatch):
    x = torch.randn(512, 256)
    given = {"arms": ["aot_eager"], "limits": QUICK}
    first = backbay.choose(Wasteful().eval(), (x,), **given)
    no_race()
    monkeypatch.setattr(choosing._Asked, "_captured", None)
    second = backbay.choose(Wasteful().eval(), (torch.randn(512, 256),), **given)
    assert (second.arm, second.report, second.kept) == (first.arm, None, first.kept)
    with pytest.raises(TypeError, match="not callable"):
        backbay.choose(Wasteful().eval(), (torch.randn(64, 256),), **given)


def test_what_a_race_could_not_tell_is_raced_again_or_never(no_race, monkeypatch):
    def abstains(deciding):
        return deciding._made("eager", "no significant difference; keep eager", abstained=True)

    monkeypatch.setattr(Deciding, "decision", abstains)
    model, x = torch.nn.Linear(64, 64).eval(), torch.randn(64, 64)
    given = {"arms": [HONEST], "limits": QUICK}
    first = backbay.choose(model, (x,), **given)
    assert first.report.decision[0].abstained
    assert (first.arm, first.kept.abstained) == (Arm(backend="eager"), True)
    with monkeypatch.context() as patched:
        patched.setattr(choosing, "run", None)
        second = backbay.choose(model, (x,), **given)
    assert (second.arm, second.report, second.kept) == (first.arm, None, first.kept)
    assert second.model is model
    assert first.kept.created[:10] in second.why
    assert "anew=True" in second.why
    no_race()
    with pytest.raises(AssertionError, match="races again"):
        backbay.choose(model, (x,), **given, anew=True)


@pytest.mark.parametrize(
    ("later", "applied"),
    [
        ({}, "aot_eager"),
        ({"abstained": True}, "eager"),
        ({"abstained": True, "raced": ("eager", "aot_eager", "a{")}, "eager"),
        ({"abstained": True, "unclear": True}, "aot_eager"),
        ({"abstained": True, "raced": ("eager", "aot_eager", "backbay_silu")}, "aot_eager"),
    ],
)
def test_times_that_scattered_hide_what_was_told_or_a_clear_race_does_not(
    no_race, later, applied, monkeypatch
):
    monkeypatch.setattr(Deciding, "decision", lambda deciding: deciding._made("aot_eager", "told"))
    model, x = Wasteful().eval(), torch.randn(512, 256)
    given = {"arms": ["aot_eager"], "limits": QUICK}
    kept = backbay.choose(model, (x,), **given).kept
    assert kept.arm == Arm(backend="aot_eager")
    if later:
        versions = {**kept.place.versions, "backbay": "0"}  # only a raced backend's own matters
        place = msgspec.structs.replace(kept.place, versions=versions)
        eager = {"arm": Arm(backend="eager"), "created": "2999-01-01T00:00:00+00:00"}
        Store().keep(msgspec.structs.replace(kept, place=place, **eager, **later))
    no_race()
    assert str(backbay.choose(model, (x,), **given).arm) == applied


def test_a_mix_of_calls_is_decided_as_one_of_them(no_race):
    model, x, y = Wasteful().eval(), torch.randn(512, 256), torch.randn(256, 256)
    given = {"arms": ["aot_eager"], "limits": QUICK}
    first = backbay.choose(model, (x,), further=[((y,), {})], **given)
    assert first.arm == Arm(backend="aot_eager"), first.why
    (row,) = (r for r in first.report.results if r.arm == "aot_eager")
    assert [part.call for part in row.parts] == ["batch 512", "batch 256"]
    with torch.no_grad():
        torch.testing.assert_close(first.model(y), model(y))
    no_race()
    again = backbay.choose(model, (x,), further=[((y,), {})], **given)
    assert (again.report, again.kept) == (None, first.kept)
    Store().forget([first.kept.name])
    for graph in first.kept.graphs:  # each call by itself: that is no decision on both
        Store().keep(msgspec.structs.replace(first.kept, graphs=(graph,)))
    with pytest.raises(AssertionError, match="races again"):
        backbay.choose(model, (x,), further=[((y,), {})], **given)


def test_an_optimizer_is_left_out_of_what_is_timed():
    made = []

    def optimizer(parameters):
        made.append(len(parameters))
        return torch.optim.SGD(parameters, lr=0.1)

    model, x = Wasteful(8), torch.randn(4, 8)
    before = model.linear.weight.detach().clone()
    backbay.choose(
        *(model, (x,)), arms=["aot_eager"], train=True, optimizer=optimizer, limits=QUICK
    )
    assert 2 in made
    assert torch.equal(model.linear.weight, before)


@pytest.mark.parametrize(
    "change",
    [
        {"arms": ["aot_eager", "aot_eager_decomp_partition"]},
        {"objective": "memory"},
        {"objective": Objective(kind="total", calls=3)},
        {"train": True},
        {"anew": True},
    ],
)
def test_a_decision_on_something_else_is_applied(no_race, change):
    model, x = Wasteful().eval(), torch.randn(512, 256)
    given = {"arms": ["aot_eager"], "limits": QUICK}
    backbay.choose(model, (x,), **given)
    no_race()
    with pytest.raises(AssertionError, match="races again"):
        backbay.choose(model, (x,), **given | change)


def test_a_wrong_backend_is_chosen_or_a_gain_of_nothing():
    model, x = torch.nn.Linear(64, 64).eval(), torch.randn(64, 64)
    chosen = backbay.choose(model, (x,), arms=[SCALED, HONEST], limits=QUICK)
    assert chosen.arm == Arm(backend="eager"), chosen.why
    assert chosen.model is model


def test_blocks_that_were_chosen_are_not_compiled_or_the_whole_model_is():
    model, x = Stack().eval(), torch.randn(256, 256)
    expected = model(x)
    chosen = backbay.choose(model, (x,), arms=["aot_eager"], scopes=["blocks"], limits=QUICK)
    assert str(chosen.arm) == "aot_eager on blocks", chosen.why
    assert chosen.model is model
    assert all(layer._compiled_call_impl is not None for layer in model.layers)
    with torch.no_grad():
        torch.testing.assert_close(chosen.model(x), expected)
    assert Store().decisions()[0].arm.scope == "blocks"


def test_looking_at_a_model_trains_it_or_changes_its_state():
    model, x = torch.nn.BatchNorm1d(256).train(), torch.randn(64, 256)
    before = {name: y.clone() for name, y in model.state_dict().items()}
    state = torch.random.get_rng_state()
    backbay.choose(model, (x,), arms=[SCALED], limits=QUICK, train=True)
    assert all(torch.equal(y, before[name]) for name, y in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


class Writing(torch.nn.Module):
    """Writes one of its inputs, as a model with a cache does."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x, cache):
        cache.add_(1)
        return self.linear(x) + cache


@pytest.mark.parametrize("anew", [False, True])
def test_what_the_model_writes_is_left_changed_or_spoils_the_race(anew):
    x, cache = torch.randn(64, 64), torch.zeros(64)
    version = cache._version
    for _ in range(2):
        given = {"arms": ["aot_eager"], "limits": QUICK, "anew": anew}
        chosen = backbay.choose(Writing().eval(), (x, cache), **given)
        assert cache.tolist() == [0.0] * 64
        if chosen.report is not None:
            assert [y.status for y in chosen.report.results] == ["ok", "ok"]
    assert cache._version > version  # Dynamo ran it to see its graphs


class Replacing(torch.nn.Module):
    """Puts another tensor into its buffer's place."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x) - self.mean


class Gathering(Replacing):
    """Keeps that in a plain attribute."""

    def __init__(self):
        super().__init__()
        del self.mean
        self.mean = torch.zeros(64)


@pytest.mark.parametrize("kind", [Replacing, Gathering])
def test_state_that_is_replaced_spoils_the_race_or_is_left_so(kind):
    model = kind().eval()
    mean = model.mean
    chosen = backbay.choose(model, (torch.randn(64, 64),), arms=["aot_eager"], limits=QUICK)
    assert [y.status for y in chosen.report.results] == ["ok", "ok"]
    assert model.mean is mean
    assert mean.tolist() == [0.0] * 64


def test_what_was_decided_for_a_larger_model_or_its_parts_is_applied(monkeypatch):
    class Larger(Wasteful):
        def forward(self, x):
            y = super().forward(x)
            torch._dynamo.graph_break()
            return y.exp().sum()

    monkeypatch.setattr(Deciding, "decision", lambda deciding: deciding._made("aot_eager", "told"))
    x = torch.randn(64, 256)
    given = {"arms": ["aot_eager"], "limits": QUICK}
    kept = backbay.choose(Larger().eval(), (x,), **given).kept
    assert len(kept.graphs) > 1
    smaller = backbay.choose(Wasteful().eval(), (x,), **given)
    assert {*smaller.kept.graphs} < {*kept.graphs}
    assert smaller.report is not None
    scoped = msgspec.structs.replace(smaller.kept.arm, scope="encoder")
    later = "2999-01-01T00:00:00+00:00"
    Store().keep(msgspec.structs.replace(smaller.kept, arm=scoped, created=later))
    assert backbay.choose(Wasteful().eval(), (x,), **given).arm.scope == "whole"
