"""A model object that another process builds alike is raced there; any other is raced here."""

import dataclasses
from pathlib import Path

import pytest
import torch

from backbay import race
from backbay.race.rebuilding import NotRebuilt, check_named, likeness, references
from backbay.registry import Registry
from backbay.workloads.loading import load

FAULTY = Path(__file__).with_name("faulty.py")
QUICK = race.Limits(backend_s=120.0, timing_s=0.3)


def built(name="small", *, train=False):
    reference, cpu = f"{FAULTY}:{name}", torch.device("cpu")
    return load(reference, seed=0, dtype=torch.float32, device=cpu, train=train)


def test_what_is_built_twice_is_alike_and_what_was_changed_is_not():
    assert likeness(built()) == likeness(built())
    assert likeness(built()) != likeness(built(train=True))
    changes = {
        "weight": lambda m: m.first.weight.data.add_(1.0),
        "hook": lambda m: m.second.register_forward_hook(lambda *_: None),
        "forward": lambda m: setattr(m, "forward", lambda x: x),
        "mode": lambda m: m.second.train(),
    }
    for what, change in changes.items():
        workload = built()
        change(workload.model)
        assert likeness(workload) != likeness(built()), what
    optimized = dataclasses.replace(built(), optimizer=torch.optim.SGD)
    assert likeness(optimized) != likeness(built())


def test_a_name_that_is_no_reference_says_nothing():
    check_named(built())
    with pytest.raises(NotRebuilt, match="no name"):
        check_named(race_workload(""))
    with pytest.raises(NotRebuilt, match="is no reference"):
        check_named(race_workload("my model"))


def race_workload(name):
    from backbay import Workload

    return Workload(torch.nn.Linear(2, 2), (torch.ones(1, 2),), name=name)


def compiler(graph_module, example_inputs):
    return graph_module.forward


def test_backends_are_known_by_where_they_can_be_imported():
    registry = Registry()
    from torch._dynamo.backends.debugging import eager_noexcept

    found = references(registry, ["eager", "a", "b"], {"a": eager_noexcept, "b": "aot_eager"})
    assert found == {
        "a": "torch._dynamo.backends.debugging:eager_noexcept",
        "b": "aot_eager",
    }
    assert references(registry, ["eager", "inductor"], {}) == {}
    for function in (lambda gm, inputs: gm, torch.nn.Linear(1, 1)):
        with pytest.raises(NotRebuilt, match="can't be imported by another process"):
            references(registry, ["a"], {"a": function})


@pytest.mark.slow
def test_crashes_are_contained_where_the_object_can_be_rebuilt():
    report = race.run(
        built(),
        backends={"dies": f"{FAULTY}:segfaults", "fine": f"{FAULTY}:honest"},
        limits=QUICK,
    )
    rows = {x.backend: x for x in report.results}
    assert report.isolation == "process"
    assert not any("in this process" in note for note in report.notes)
    assert (rows["dies"].status, rows["fine"].status) == ("crashed", "ok")
    assert rows["fine"].median_ms is not None


@pytest.mark.slow
def test_an_object_that_was_changed_is_raced_here_and_the_note_says_why(judged_here):
    workload = built()
    with torch.no_grad():
        workload.model.first.weight.add_(0.1)
    report = race.run(workload, backends=[f"{FAULTY}:honest"], limits=QUICK)
    assert report.isolation == "in_process"
    assert any("builds with this seed is another model" in note for note in report.notes)
    assert {x.status for x in report.results} == {"ok"}
