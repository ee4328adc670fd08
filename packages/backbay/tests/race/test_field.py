"""Who takes part in a race."""

import pytest

from backbay.decisions import parse_arm
from backbay.errors import BackendNotFound, BackendUnavailable, InputError
from backbay.race import field
from backbay.race.field import by_default


def compiler(graph_module, example_inputs):
    return graph_module.forward


def chosen(registry, arms, *given, **more):
    return field.chosen(registry, list(map(parse_arm, arms)), *given, **more)


def names(entrants):
    return [entrant.name for entrant in entrants]


def test_eager_is_first_and_names_are_raced_once(registry):
    found = chosen(registry, ["aot_eager", "eager", "aot_eager"], "cpu", same_process=True)
    assert names(found) == ["eager", "aot_eager"]


def test_a_chosen_backend_that_cannot_run_ends_the_race_in_place_of_being_a_row(registry):
    found = chosen(registry, ["aot_eager", "cudagraphs"], "cpu", same_process=True)
    assert names(found) == ["eager", "aot_eager", "cudagraphs"]
    assert found[1].unavailable is None
    assert found[2].unavailable.reason == "it compiles for cuda, not for cpu"
    assert found[2].spec is not None  # its version stands in the report


def test_a_typo_ends_the_race_or_is_a_row_without_the_nearest_name(registry):
    typo, strange = chosen(registry, ["aot_eager", "indcutor", "zzzzzz"], "cpu", same_process=True)[
        2:
    ]
    assert typo.unavailable.remedy.startswith("did you mean 'inductor'? If not, install")
    assert strange.unavailable.remedy.startswith("install")


def test_minutes_are_spent_where_nothing_that_was_named_can_run(registry):
    with pytest.raises(BackendUnavailable, match="it compiles for cuda, not for cpu"):
        chosen(registry, ["eager", "cudagraphs"], "cpu", same_process=True)
    with pytest.raises(BackendNotFound, match="did you mean: 'inductor'"):
        chosen(registry, ["indcutor"], "cpu", same_process=True)
    with pytest.raises(InputError, match=r"not for cpu.* did you mean: 'inductor'"):
        chosen(registry, ["cudagraphs", "indcutor"], "cpu", same_process=True)


def test_who_requires_all_gets_a_race_without_one(registry):
    ready, absent = ["aot_eager"], ["aot_eager", "cudagraphs"]
    found = chosen(registry, ready, "cpu", same_process=True, require_all=True)
    assert names(found) == ["eager", "aot_eager"]
    with pytest.raises(BackendUnavailable, match="it compiles for cuda, not for cpu"):
        chosen(registry, absent, "cpu", same_process=True, require_all=True)


def test_all_is_taken_for_a_name_or_races_one_twice(registry):
    registry.register_backend(compiler, "mine")
    registry.register_backend(compiler, "hidden", ["experimental"])
    everyone = names(by_default(registry, "cpu", same_process=True))
    assert "mine" in everyone
    assert "hidden" not in everyone
    assert names(chosen(registry, ["all"], "cpu", same_process=True)) == everyone
    more = chosen(registry, ["mine", "all", "hidden"], "cpu", same_process=True)
    assert sorted(names(more)) == sorted([*everyone, "hidden"])
    assert names(more)[:2] == ["eager", "mine"]


def test_by_default_what_cannot_run_is_left_out_but_inductor_is_a_row(registry, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = by_default(registry, "cpu", same_process=True)
    assert names(found) == ["eager", "inductor"]
    assert found[1].unavailable is not None


def test_a_backend_of_this_process_is_not_sought_in_another(registry):
    registry.register_backend(compiler, "mine")
    assert "mine" in names(by_default(registry, "cpu", same_process=True))
    assert "mine" not in names(by_default(registry, "cpu", same_process=False))
    assert names(chosen(registry, ["mine"], "cpu", same_process=True)) == ["eager", "mine"]
    with pytest.raises(InputError, match=r"FILE\.py:FUNCTION"):
        chosen(registry, ["mine"], "cpu", same_process=False)


def test_two_arms_of_one_backend_are_one_row(registry):
    arms = ["aot_eager@max-autotune", "aot_eager", "aot_eager{b: 1, a: 2}", "aot_eager{a: 2, b: 1}"]
    found = chosen(registry, arms, "cpu", same_process=True)
    assert names(found) == ["eager", "aot_eager@max-autotune", "aot_eager", "aot_eager{a: 2, b: 1}"]
    assert {x.spec.name for x in found[1:]} == {"aot_eager"}


@pytest.mark.parametrize("arm", ["eager@max-autotune", "all{x: 1}", "eager on blocks"])
def test_a_mode_of_eager_or_of_everybody_is_dropped_without_a_word(registry, arm):
    with pytest.raises(InputError, match="takes no mode, options or scope"):
        chosen(registry, [arm, "aot_eager"], "cpu", same_process=True)
