"""Whoever chooses an experimental backend is warned: once, by every way in, before it compiles."""

import warnings

import pytest
import torch
from click.testing import CliRunner

import backbay
from backbay import ExperimentalBackendWarning, errors
from backbay.backends.silu import backbay_silu
from backbay.cli import main
from backbay.kit import Backend
from backbay.registry import default_registry

NAME = "tried_experimental"


@pytest.fixture(autouse=True)
def _anew(monkeypatch):
    monkeypatch.setattr(errors, "_warned", set())
    monkeypatch.setattr(errors, "_silent", False)
    torch.compiler.reset()


class Compiler:
    """Counts how many were warned before it compiled."""

    def __init__(self, told):
        self.__name__ = NAME
        self.told = told
        self.before = []

    def __call__(self, graph_module, _):
        self.before.append(len(self.told))
        return graph_module.forward


@pytest.fixture
def told():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def ours(told):
    return [str(x.message) for x in told if x.category is ExperimentalBackendWarning]


@pytest.fixture
def compiler(told):
    made = Compiler(told)
    with backbay.registered(made, experimental=True):
        yield made


def add(x):
    return x + 1


def workload():
    return backbay.Workload(torch.nn.Linear(2, 2), (torch.ones(1, 2),))


WAYS = {
    "name": lambda _: backbay.lookup_backend(NAME),
    "function": lambda it: backbay.lookup_backend(it),
    "reference": lambda _: backbay.lookup_backend("backbay.backends.silu:backbay_silu"),
    "configured": lambda _: backbay.get_backend(NAME, options={"a": 1}),
    "default": lambda _: default_registry.resolve(NAME),
    "compile": lambda _: backbay.compile(add, backend=NAME),
    "compile a function": lambda it: backbay.compile(add, backend=it),
    "torch": lambda _: torch.compile(add, backend=NAME)(torch.ones(2)),
    "torch, of the kit": lambda _: torch.compile(add, backend=backbay_silu)(torch.ones(2)),
    "torch, an entry point": lambda _: torch.compile(add, backend="backbay_fold")(torch.ones(2)),
    "explain": lambda _: backbay.explain.run(workload(), backend=NAME, again=False),
    "explain a function": lambda it: backbay.explain.run(workload(), backend=it, again=False),
    "verify": lambda _: backbay.verify.run(
        workload(), backends=NAME, train=False, limits=backbay.verify.Limits(blame_s=0)
    ),
    "verify a function": lambda it: backbay.verify.run(
        workload(), backends={"x": it}, train=False, limits=backbay.verify.Limits(blame_s=0)
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_choosing_one_warns_once_and_before_it_compiles(way, told, compiler):
    for _ in range(2):
        torch.compiler.reset()
        WAYS[way](compiler)
    (said,) = ours(told)
    assert "is experimental" in said
    assert said.count("\n") == 0
    assert all(compiler.before)


def test_the_warning_names_the_users_line(told, compiler):
    backbay.compile(add, backend=NAME)
    (where,) = {x.filename for x in told if x.category is ExperimentalBackendWarning}
    assert where == __file__


def test_what_is_not_experimental_warns_of_nothing(told):
    with backbay.registered(Compiler(told), "tried_stable"):
        backbay.compile(add, backend="tried_stable")(torch.ones(2))
    backbay.lookup_backend("aot_eager")
    backbay.lookup_backend(add)
    torch.compile(add, backend=type("Own", (Backend,), {"codegen": "eager"})())(torch.ones(2))
    assert not ours(told)


def test_of_a_function_what_it_was_published_with_counts():
    assert default_registry.spec_of(backbay_silu).name == "backbay_silu"
    assert default_registry.spec_of(add) is None
    eager = torch._dynamo.lookup_backend("eager")
    assert default_registry.spec_of(eager).name == "eager"
    with backbay.registered(eager, "tried_mine"):
        assert default_registry.spec_of(eager).name == "tried_mine"


def test_of_what_only_a_stand_in_can_register_nothing_is_known(registry):
    class Slotted:
        __slots__ = ("__name__",)

        def __call__(self, graph_module, _):
            return graph_module.forward

    given = Slotted()
    registry.register_backend(given, "slotted")
    resolved = registry.lookup_backend("slotted")
    assert resolved is not given
    assert {registry.spec_of(x).name for x in (given, resolved)} == {"slotted"}


def test_torchs_own_that_are_experimental_warn_too(told, registry, monkeypatch):
    monkeypatch.setattr(registry, "require", registry.spec)
    assert registry.resolve("openxla_eval") == "openxla_eval"
    assert "'openxla_eval' of torch" in ours(told)[0]


def test_what_only_looks_at_registrations_chooses_none(told, compiler):
    with backbay.exported():
        pass
    backbay.compile(add, backend="eager")
    default_registry.specs()
    assert not ours(told)


def test_a_filter_silences_it_or_makes_it_an_error_every_time(compiler):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=ExperimentalBackendWarning)
        for _ in range(2):
            with pytest.raises(ExperimentalBackendWarning):
                backbay.lookup_backend(NAME)
    with warnings.catch_warnings(record=True) as told:
        warnings.filterwarnings("ignore", message=".*tried_experimental", category=UserWarning)
        backbay.lookup_backend(NAME)
        warnings.filterwarnings("ignore", module=__name__)
        backbay.lookup_backend(backbay_silu)
    assert not ours(told)


def test_the_flag_the_tag_and_the_function_of_that_name_are_the_same(registry):
    registry.register_backend(add, "flag", experimental=True)
    registry.register_backend(add, "both", tags=["experimental"], experimental=True)
    registry.register_backend(add, "none", experimental=False)
    registry.register_experimental_backend(add, "function")
    found = {x.name: x.tags for x in registry.registered_specs()}
    assert found.pop("none") == ()
    assert set(found.values()) == {("experimental",)}


def test_a_race_notes_it_in_the_row_and_warns_once(told, compiler, here):
    limits = backbay.race.Limits(timing_s=0.2)
    report = backbay.race.run(workload(), backends={"eager": "eager", "x": compiler}, limits=limits)
    assert len(ours(told)) == 1
    notes = {x.arm: x.notes for x in report.results}
    assert any("experimental" in x for x in notes["x"])
    assert not any("experimental" in x for x in notes["eager"])


def test_one_that_does_not_run_is_not_warned_of(told, here):
    names = ["qnn", "aot_eager"]
    limits = backbay.race.Limits(timing_s=0.2)
    report = backbay.race.run(workload(), backends=names, limits=limits)
    assert {x.arm: x.status for x in report.results}["qnn"] == "unavailable"
    default_registry.warn_if_experimental("qnn")
    default_registry.warn_if_experimental("no such backend")
    assert not ours(told)


def test_a_command_prints_one_line(compiler):
    command = ["explain", f"{__file__}:workload", "--backend", "backbay_fold", "--once"]
    done = CliRunner().invoke(main, [*command, "--json", "-"])
    assert done.exit_code == 0
    lines = [x for x in done.stderr.splitlines() if "makes no promises" in x]
    assert len(lines) == 1
    assert lines[0].startswith("backbay: backend 'backbay_fold' of backbay ")
