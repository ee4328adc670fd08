"""Who takes part in a race."""

import pytest

from backbay.errors import BackendUnavailable, InputError
from backbay.race.field import by_default, chosen


def compiler(graph_module, example_inputs):
    return graph_module.forward


def names(entrants):
    return [entrant.name for entrant in entrants]


def test_eager_is_first_and_names_are_raced_once(registry):
    found = chosen(registry, ["aot_eager", "eager", "aot_eager"], "cpu", same_process=True)
    assert names(found) == ["eager", "aot_eager"]


def test_a_chosen_backend_that_cannot_run_is_an_error_not_a_row(registry):
    with pytest.raises(BackendUnavailable, match="it compiles for cuda, not for cpu"):
        chosen(registry, ["cudagraphs"], "cpu", same_process=True)


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
