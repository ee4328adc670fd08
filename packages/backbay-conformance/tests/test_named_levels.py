"""The level that must catch a fault does, where another had caught it before or none."""

import functools
import threading
from collections.abc import Iterator

import pytest
import torch

from backbay_conformance import suite
from backbay_conformance.case import Case
from backbay_conformance.fuzz.parts import of_parts, rising
from backbay_conformance.levels import opinfo, ops, training, varying
from backbay_conformance.levels.opinfo import Sample
from backbay_conformance.record import LEVELS
from backbay_conformance.running import run_case
from backbay_conformance.subject import Subject
from mutants.catalog import MUTANTS
from mutants.good import GOOD_TWINS

CPU = torch.device("cpu")
CAUGHT = {
    "argmax_in_memory_order": "ops/argmax/float32-transposed",
    "duplicates_are_not_added": "ops/index_add/float32-repeated",
    "second_derivative_lost": "training/double-backward/sin",
    "last_parameter_not_stepped": "training/optimizers/SGD/foreach",
    "write_to_expanded_reaches_all": "training/expanded-gradient/diagonal_scatter",
    "empty_pad_is_the_input": "programs/metamorphic/spoiled_and_restored_is_another/3",
    "search_ignores_offset": "programs/metamorphic/part_is_not_its_copy/1",
    "cannot_be_pickled": "load/loaded/object_itself_does_not_travel",
}


@functools.cache
def _cases(level: str) -> dict[str, Case]:
    return suite.collected("cpu", [LEVELS.index(level)])


def _put(backend, case_id: str):
    subject = Subject(backend, name="it", device=CPU, runs_graphs_as_they_are=True)
    return run_case(_cases(case_id.partition("/")[0])[case_id], subject)


@pytest.mark.parametrize("name", CAUGHT)
def test_a_fault_is_left_to_another_level(name):
    assert CAUGHT[name].startswith(f"{MUTANTS[name].level}/")
    result = _put(MUTANTS[name].compiler, CAUGHT[name])
    assert result.failed, result


@pytest.mark.parametrize("case_id", CAUGHT.values())
def test_a_good_twin_is_called_wrong(case_id):
    result = _put(GOOD_TWINS["good_dynamo"], case_id)
    assert result.status == "pass", result.reason


def test_a_name_in_a_list_is_no_operators():
    known = set(opinfo.operators())
    assert (ops.NUMBERING | ops.PLACED | training.PUTTING) - known == set()


def _sample(*args, **kwargs) -> Sample:
    return Sample(function=torch.add, args=args, kwargs=kwargs)


def test_what_is_transposed_is_not_what_it_was():
    x = torch.arange(24.0).reshape(2, 3, 4)
    (turned,) = varying.transposed(_sample(x)).args
    assert torch.equal(turned, x)
    assert turned.stride() == (1, 2, 6)
    for flat in (torch.ones(5), torch.ones(1, 5), torch.ones(())):
        assert varying.transposed(_sample(flat)) is None


@pytest.mark.parametrize("places", [[4, 0, 3, 1, 2], [0, 1], [-3, -1, -2], [[2, 1, 0], [0, 1, 2]]])
def test_places_do_not_repeat_or_are_outside(places):
    given = torch.tensor(places)
    (_, few) = varying.repeated(_sample(torch.ones(5), given)).args
    assert few.unique().numel() < given.unique().numel()
    assert bool((few.abs() <= given.abs()).all())
    assert bool((few * given >= 0).all())


def test_places_that_are_overwritten_repeat():
    x, i = torch.ones(5), torch.tensor([0, 1, 2])
    assert varying.repeated(_sample(x, i, accumulate=False)) is None
    assert varying.repeated(_sample(x, i, False)) is None  # noqa: FBT003 (as put takes it)
    assert varying.repeated(_sample(x, i, accumulate=True)) is not None
    assert varying.repeated(_sample(x, torch.tensor([3]))) is None


def test_an_input_or_a_gradient_is_not_expanded():
    seen = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(x.stride())
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient.stride())
            return gradient * 2

    x = torch.ones(3, 4, requires_grad=True)
    sample = Sample(function=Looks.apply, args=(x,), kwargs={})
    narrow, total = varying.of_expanded(sample), varying.summed(sample)
    narrow.function(*narrow.args).backward(torch.ones(3, 4))
    total.function(*total.args).backward()
    assert seen == [(1, 0), (4, 1), (4, 1), (0, 0)]
    assert narrow.args[0].grad.shape == (3, 1)
    scalar = Sample(function=torch.sin, args=(torch.ones(()),), kwargs={})
    assert varying.of_expanded(scalar) is None
    assert varying.summed(scalar) is None


def test_a_part_begins_where_its_memory_does(monkeypatch):
    """Otherwise both spellings would be one."""
    begins = []
    clone = torch.Tensor.clone

    def noted(part):
        begins.append(part.storage_offset())
        return clone(part)

    monkeypatch.setattr(torch.Tensor, "clone", noted)
    for seed in range(4):
        read, copied = of_parts(seed)
        for one, other in zip(read(*rising(seed)), copied(*rising(seed)), strict=True):
            torch.testing.assert_close(one, other)
    assert len(begins) >= 40
    assert min(begins) > 0


class _Locked:
    """Compiles, and holds what cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, graph_module, example_inputs):
        return lambda *args: graph_module(*args)


class _Loses:
    """A copy of it does something else."""

    wrong = False

    def __call__(self, graph_module, example_inputs):
        wrong = self.wrong
        return lambda *args: [x * (2 if wrong else 1) for x in graph_module(*args)]

    def __getstate__(self):
        return {"wrong": True}


@pytest.mark.parametrize(
    ("backend", "status"), [(_Locked(), "fail_error"), (_Loses(), "fail_value")]
)
@pytest.mark.parametrize(
    "case", ["object_itself_does_not_travel", "copy_of_the_object_does_not_compile"]
)
def test_an_object_that_is_lost_on_its_way_is_not_seen(backend, status, case):
    assert _put(backend, f"load/loaded/{case}").status == status


def test_a_function_without_a_place_is_held_to_pickle():
    def here(graph_module, example_inputs):
        return lambda *args: graph_module(*args)

    assert _put(here, "load/loaded/object_itself_does_not_travel").status == "not_runnable"
    assert _put(here, "load/loaded/copy_of_the_object_does_not_compile").status == "pass"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()
