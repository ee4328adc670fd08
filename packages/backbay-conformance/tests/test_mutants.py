"""The seeded faults are what they say: each shows beside its good twin; a fifth is set aside."""

import copy
import functools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from backbay.registry.target import parse
from backbay_conformance.running import ran
from backbay_conformance.subject import Subject
from mutants.catalog import MUTANTS
from mutants.good import GOOD_TWINS
from mutants.mutant import Mutant, drawn

KILLS = "division_by_zero_kills"
SHOWN = [x for x in MUTANTS.values() if x.shown_by is not None and x.name != KILLS]
TWIN = GOOD_TWINS["good_dynamo"]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Undo what faults of state leave behind."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.compiler.reset()


def seen(mutant: Mutant, backend: Any) -> Any:
    """Return what an onlooker sees of a demonstration with some backend."""

    def compiled(function: Any, **options: Any) -> Any:
        return torch.compile(function, backend=backend, **options)

    compiled.backend = backend  # type: ignore[attr-defined]
    torch.compiler.reset()
    torch.manual_seed(0)
    try:
        return mutant.shown_by(compiled)
    except Exception as error:  # noqa: BLE001 (what it raises is seen as well)
        return type(error), str(error)
    finally:
        torch.set_grad_enabled(True)
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(1)


def alike(one: Any, other: Any) -> bool:
    """Whether two onlookers saw the same, layout and dtype included."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        try:
            torch.testing.assert_close(one, other, equal_nan=True, check_stride=True)
        except AssertionError:
            return False
        return True
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SHOWN, ids=lambda x: x.name)
def test_a_fault_that_is_not_there(mutant: Mutant) -> None:
    torch.set_num_threads(1)
    good = seen(mutant, TWIN)
    assert alike(seen(mutant, TWIN), good)  # else a difference would say nothing
    assert not alike(seen(mutant, mutant.compiler), good)


@pytest.mark.slow
def test_a_division_by_zero_that_only_raises(run_python: Any) -> None:
    program = """
        import sys, torch
        import mutants
        function = torch.compile(lambda x: 1 // x, backend=getattr(mutants, sys.argv[-1]))
        try:
            function(torch.tensor([0, 1]))
        except RuntimeError:
            sys.exit(3)
    """
    asked = [f"sys.argv.append({x!r})" for x in (KILLS, "good_aot")]
    codes = [
        run_python(program.replace("import sys, torch", f"import sys, torch; {x}"), check=False)
        for x in asked
    ]
    assert codes[0].returncode < 0
    assert codes[1].returncode == 3


class Net(torch.nn.Module):
    """Layers with parameters, buffers and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.layer(self.norm(x))) + x


def _in_place(x: torch.Tensor) -> Any:
    before = x.sum()
    x[:, 0].add_(1)
    return before, x.t(), x.sum(0)


def _branches(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


VARIED: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "training": (Net(), (torch.linspace(-1, 1, 12).view(3, 4),), {"train": True}),
    "attention": (
        lambda q: (q @ q.mT).softmax(-1) @ q,
        (torch.linspace(-1, 1, 24).view(2, 3, 4),),
        {"train": True},
    ),
    "mutation": (_in_place, (torch.ones(3, 2),), {}),
    "views": (lambda x: (x[1:], x.view(torch.int32), x * 2), (torch.ones(4),), {}),
    "dropout": (torch.nn.Dropout(0.5), (torch.ones(64),), {"train": True}),
    "sizes": (
        lambda x: x.sum() / x.shape[0],
        (torch.ones(5, 2),),
        {"options": {"dynamic": True}, "calls": 2},
    ),
    "integers": (lambda x: (x // 2, x % 3, x.bool(), x.sum()), (torch.arange(-3, 4),), {}),
    "complex": (lambda x: x.conj() * 2, (torch.tensor([1 + 2j, 3 - 1j]),), {}),
    "nothing": (lambda x: (x.sum(), x + 1), (torch.ones(0, 3),), {}),
    "structure": (lambda x: {"a": x + 1, "b": [x, None, 3]}, (torch.tensor(1.0),), {}),
    "transposed": (lambda x: x.sin().argmax(1), (torch.linspace(-1, 1, 6).view(2, 3).t(),), {}),
}


@pytest.mark.parametrize("twin", GOOD_TWINS.values(), ids=lambda x: x.__name__)
@pytest.mark.parametrize("name", VARIED)
def test_a_good_twin_that_is_wrong(twin: Any, name: str) -> None:
    function, args, how = VARIED[name]
    subject = Subject(twin, name=twin.__name__, device=torch.device("cpu"))
    subject.agrees(copy.deepcopy(function), *args, **how)
    assert ran(subject) == ("pass", "")


@pytest.mark.parametrize("twin", GOOD_TWINS.values(), ids=lambda x: x.__name__)
def test_a_good_twin_that_takes_the_wrong_branch(twin: Any) -> None:
    compiled = torch.compile(_branches, backend=twin)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(x), _branches(x))


def test_too_few_faults() -> None:
    every = MUTANTS.values()
    assert len(MUTANTS) >= 60
    assert sum(bool(x.equivalent) for x in every) <= len(MUTANTS) / 10
    assert len({x.link for x in every if x.link}) >= 25
    assert round(len(MUTANTS) / 5) == sum(x.held_out for x in every)


def test_a_fault_that_was_not_set_aside_by_the_draw() -> None:
    assert {x.name for x in MUTANTS.values() if x.held_out} == drawn(MUTANTS.values())


def test_a_draw_that_leaves_a_large_family_out() -> None:
    aside = drawn(MUTANTS.values())
    families = {x.family for x in MUTANTS.values() if x.name in aside}
    sizes = {x: sum(y.family == x for y in MUTANTS.values()) for x in families}
    large = {x.family for x in MUTANTS.values()} - families
    assert all(sum(y.family == x for y in MUTANTS.values()) < 5 for x in large), sizes


def test_two_faults_of_one_name() -> None:
    from mutants import catalog

    assert len(MUTANTS) == sum(len(catalog._of(x)) for x in catalog.FILES)


@pytest.mark.parametrize("name", [*MUTANTS, *GOOD_TWINS])
def test_a_backend_that_other_processes_do_not_find(name: str) -> None:
    target = parse(f"mutants:{name}")
    assert target is not None
    found = target.load()
    assert getattr(found, "__name__", None) == name
    if name != "cannot_be_pickled":
        assert pickle.loads(pickle.dumps(found)) is found


def test_a_name_that_gives_something_else() -> None:
    import mutants

    with pytest.raises(AttributeError, match="no faulty backend 'no_such_fault'"):
        mutants.no_such_fault  # noqa: B018


def test_an_argument_beside_a_demonstration() -> None:
    known = MUTANTS["gelu_is_tanh"]
    make = functools.partial(
        Mutant,
        name="x",
        family="numerics",
        fault="",
        compiler=known.compiler,
        shown_by=known.shown_by,
    )
    with pytest.raises(ValueError, match="shown, or argued"):
        make(level="contract", equivalent="nobody looks")
    with pytest.raises(ValueError, match="no level 'contrct'"):
        make(level="contrct")
