"""Each level that goes through operators calls a wrong backend wrong, and a right one right."""

import functools
import sys
from pathlib import Path

import pytest
import torch

from backbay.registry import Traits
from backbay_conformance import suite
from backbay_conformance.record import LEVELS
from backbay_conformance.running import run_case
from backbay_conformance.subject import Subject

sys.path.insert(0, str(Path(__file__).parent))
import operator_faults as faults

LOOSE = Traits(run_to_run=False)


@functools.cache
def _cases(level: str):
    return suite.collected("cpu", [LEVELS.index(level)])


def _status(backend, case_id: str, traits: Traits | None = None) -> tuple[str, str]:
    subject = Subject(
        backend,
        name="faulty",
        device=torch.device("cpu"),
        traits=traits,
        runs_graphs_as_they_are=True,
    )
    result = run_case(_cases(case_id.partition("/")[0])[case_id], subject)
    return result.status, result.reason


CAUGHT = [
    (faults.contiguity_assumed, "ops/sin/float32-noncontiguous", "fail_value"),
    (faults.mutation_dropped, "ops/sin/float32-inplace", "fail_metadata"),
    (faults.float64_computed_in_float32, "dtypes/sin/float64", "fail_value"),
    (faults.integers_returned_as_floats, "dtypes/add/int64", "fail_metadata"),
    (faults.gradient_detached, "training/sin/float32", "fail_grad"),
    (faults.gradient_off_by_a_percent, "training/sin/float32", "fail_grad"),
    (faults.gradient_off_by_a_percent, "training/modules/Linear/train", "fail_grad"),
    (faults.second_gradient_cut, "training/double-backward/sin", "fail_grad"),
    (faults.state_updates_dropped, "training/optimizers/SGD/momentum", "fail_mutation"),
    (faults.size_baked_in, "shapes/sin/dynamic", "fail_behaviour"),
    (faults.size_baked_in, "shapes/dynamic/batch_size_is_baked_in", "fail_behaviour"),
    (faults.first_offset_kept, "shapes/layout/offset_of_an_input_is_stale", "fail_value"),
    (faults.validation_swallowed, "errors/cat/7", "lost_validation"),
    (faults.another_result_every_time, "properties/sin/run-to-run", "fail_behaviour"),
    (faults.one_thread_forgotten, "properties/threads/sum", "fail_grad"),
]


@pytest.mark.parametrize(
    ("fault", "case_id", "status"), CAUGHT, ids=lambda x: getattr(x, "__name__", x)
)
def test_a_fault_goes_unseen(fault, case_id, status):
    found, reason = _status(fault, case_id)
    assert found == status, reason


@pytest.mark.parametrize("case_id", sorted({x for _, x, _ in CAUGHT}))
def test_eager_is_called_wrong(case_id):
    assert _status(lambda gm, example_inputs: gm, case_id) == ("pass", "")


def test_a_plain_input_is_taken_for_one_with_gaps():
    assert _status(faults.contiguity_assumed, "ops/sin/float32")[0] == "pass"


def test_what_a_backend_does_not_promise_is_asked_of_it():
    backend = faults.another_result_every_time
    assert _status(backend, "properties/sin/run-to-run", LOOSE)[0] == "unsupported"


def test_batch_invariance_is_asked_of_everybody():
    case_id = "properties/batch-invariance/gelu"
    fault = faults.single_row_rounded_otherwise
    assert _status(fault, case_id)[0] == "unsupported"
    assert _status(fault, case_id, Traits(batch_invariant=True))[0] == "fail_behaviour"
    assert _status(fault, case_id, Traits(batch_invariant=False))[0] == "unsupported"


def test_all_samples_hide_which_one_is_wrong():
    cases = suite.collected("cpu", [LEVELS.index("ops")], all_samples=True)
    subject = Subject(
        faults.contiguity_assumed,
        name="faulty",
        device=torch.device("cpu"),
        runs_graphs_as_they_are=True,
    )
    result = run_case(cases["ops/sum/float32-noncontiguous"], subject)
    assert result.status.startswith("fail")
    assert "samples, the first is number" in result.reason


def test_an_operator_that_eager_refuses_is_held_against_a_backend():
    status, reason = _status(
        lambda gm, example_inputs: gm, "ops/native_group_norm/float32-noncontiguous"
    )
    assert (status, reason[:19]) == ("not_runnable", "eager itself raises")


def test_aot_eager_is_called_wrong():
    """A seeded share of every level; upstream's own faults are in the expectations."""
    from backbay_conformance import conform
    from backbay_conformance.record import FAILURES

    said = conform(
        "aot_eager",
        levels=["ops", "dtypes", "training", "shapes", "errors", "properties"],
        profile="quick",
        device="cpu",
        seed=3,
        workers=1,
    )
    wrong = [(x.id, x.status, x.reason) for x in said.results if x.failed]
    assert wrong == []
    assert sum(x.status not in FAILURES for x in said.results) > 100
