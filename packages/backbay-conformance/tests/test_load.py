"""Level load: what is declared must be so, and who has no name is not asked for one."""

import warnings

import pytest
import torch

from backbay.errors import CompilationFailed, ExperimentalBackendWarning
from backbay.registry import Option, Registry, Traits, default_registry
from backbay.session import NoReply
from backbay_conformance import conform
from backbay_conformance.asking import asked
from backbay_conformance.fuzz import run as fuzzing
from backbay_conformance.handler import CaseHandler
from backbay_conformance.levels import load
from backbay_conformance.requests import Ready, Run, SuiteSetup

FEWEST = 30


def answered(registry, backend, case):
    handler = CaseHandler(registry=registry)
    only = (f"load/{case}",)
    setup = SuiteSetup(
        backend=backend, device="cpu", seed=0, levels=(0,), profile="full", only=only
    )
    reply = handler.answer(setup)
    assert isinstance(reply, Ready), reply
    return handler.answer(Run(id=only[0])).result


def eager(graph_module, example_inputs, **options):
    return lambda *args: graph_module(*args)


def detaching(graph_module, example_inputs):
    return lambda *args: tuple(x.detach() for x in graph_module(*args))


def static(graph_module, example_inputs):
    [int(x) for x in example_inputs if isinstance(x, torch.SymInt)]
    return lambda *args: graph_module(*args)


def on_copies(graph_module, example_inputs):
    return lambda *args: graph_module(*(x.clone() for x in args))


def refusing(graph_module, example_inputs, *, options=None):
    if options:
        raise ValueError("no options")
    return lambda *args: graph_module(*args)


LIARS = {
    "declared/training_is_declared_and_fails": (detaching, {"traits": Traits(training=True)}),
    "declared/dynamic_shapes_are_declared_and_fail": (
        static, {"traits": Traits(dynamic_shapes=True)}
    ),
    "declared/mutation_is_declared_and_fails": (on_copies, {"traits": Traits(mutation=True)}),
    "declared/boxed_is_declared_and_is_not": (eager, {"traits": Traits(boxed=True)}),
    "declared/mode_that_does_not_exist_is_taken": (eager, {"traits": Traits(mode=True)}),
    "declared/option_that_does_not_exist_is_taken": (eager, {"traits": Traits(options=True)}),
    "declared/declared_option_is_refused": (
        refusing,
        {"traits": Traits(options=True), "options": (Option(name="a", type="int", default=1),)},
    ),
    "loaded/keyword_name_is_refused": (detaching, {"traits": Traits(name=True)}),
    "metadata/traits_name_what_does_not_exist": (eager, {"traits": Traits(dtypes=("float33",))}),
}  # fmt: skip


@pytest.mark.parametrize("case", LIARS)
def test_a_false_declaration_is_not_seen(case):
    registry = Registry()
    compiler, details = LIARS[case]
    registry.register_backend(compiler, "liar", **details)
    assert answered(registry, "liar", case).status.startswith("fail_")


@pytest.mark.parametrize("case", [x for x in LIARS if x.startswith("declared/")])
def test_who_declares_nothing_is_asked(case):
    registry = Registry()
    registry.register_backend(eager, "silent")
    assert answered(registry, "silent", case).status in {"not_runnable", "pass"}


def test_an_object_is_asked_for_its_name():
    statement = conform(eager, device="cpu", levels=["load"], only=["load/metadata/*"])
    assert {x.status for x in statement.results} == {"not_runnable"}


def test_an_experimental_backend_is_warned_of_once_and_so_it_is_before_programs(monkeypatch):
    monkeypatch.setattr("backbay.errors._warned", set())
    monkeypatch.setattr("backbay.errors._silent", False)
    monkeypatch.setattr(fuzzing._Run, "programs", lambda *_: pytest.fail("it began"))
    options = {"device": "cpu", "levels": ["load"], "only": ["load/metadata/origin_is_unknown"]}
    with default_registry.registered(eager, "tried", experimental=True):
        with pytest.warns(ExperimentalBackendWarning, match="'tried'"):
            conform(eager, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ExperimentalBackendWarning)
            conform(eager, **options)
            monkeypatch.setattr("backbay.errors._warned", set())
            with pytest.raises(ExperimentalBackendWarning, match="'tried'"):
                fuzzing.fuzz("tried", seconds=1)


def test_a_backend_that_was_refused_breaks_every_later_reset():
    backend = default_registry.get_backend("inductor", mode="no-such-mode")
    assert not hasattr(backend, "reset")
    with pytest.raises(CompilationFailed, match="no-such-mode") as raised:
        backend(None, [])
    assert isinstance(raised.value.__cause__, RuntimeError)  # torch's own


def test_a_reset_that_raises_ends_the_process():
    def raising(graph_module, example_inputs):
        return lambda *args: graph_module(*args)

    def reset():
        raise ValueError("no reset")

    raising.reset = reset
    only = ["load/loaded/first_graph_is_not_compiled"]
    (result,) = conform(raising, device="cpu", levels=["load"], only=only).results
    assert (result.status, result.reason) == ("fail_error", "ValueError: no reset")


def test_the_level_has_lost_no_case():
    assert len(list(load.cases("cpu", all_samples=False))) >= FEWEST


def test_reading_metadata_imports_torch():
    assert asked("metadata", "inductor")["torch"] is False


def test_a_fresh_process_that_fails_is_an_answer():
    with pytest.raises(NoReply, match="no backend named"):
        asked("metadata", "there-is-no-such-backend")


@pytest.mark.slow
def test_a_right_backend_is_called_wrong():
    statement = conform("aot_eager", device="cpu", levels=["load"], profile="full", workers=1)
    fine = {"pass", "unsupported", "not_runnable"}
    assert not [f"{x.id}: {x.reason}" for x in statement.results if x.status not in fine]
