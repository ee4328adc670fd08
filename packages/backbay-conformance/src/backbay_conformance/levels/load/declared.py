"""What a backend declares must be so: who declares nothing is not asked."""

from collections.abc import Sequence
from typing import Any

import torch

from backbay_conformance.case import Collection, Failed, NotRunnable
from backbay_conformance.levels.making import normal, numbered
from backbay_conformance.subject import Subject

theme = Collection("load", "declared")


def _program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).sum(-1)


def _must_declare(subject: Subject, trait: str) -> None:
    if getattr(subject.traits, trait) is None:
        raise NotRunnable(f"nobody declares whether it takes {trait.replace('_', ' ')}")


@theme.case(needs={"training"})
def training_is_declared_and_fails(subject: Subject) -> None:
    _must_declare(subject, "training")
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    subject.agrees(model.to(subject.device), normal(subject, 4, 6), train=True)


@theme.case(needs={"dynamic_shapes"})
def dynamic_shapes_are_declared_and_fail(subject: Subject) -> None:
    _must_declare(subject, "dynamic_shapes")
    subject.matches(_program, *(normal(subject, size, 4) for size in (3, 5, 8)), dynamic=True)
    with subject.must("fail_behaviour", "each size is compiled, though it declares dynamic shapes"):
        assert len(subject.graphs) == 1


@theme.case(needs={"mutation"})
def mutation_is_declared_and_fails(subject: Subject) -> None:
    _must_declare(subject, "mutation")

    def program(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    subject.agrees(program, numbered(subject, 5))


@theme.case(compiles=False)
def dtype_is_declared_and_fails(subject: Subject) -> None:
    if subject.traits.dtypes is None:
        raise NotRunnable("nobody declares which dtypes it takes")

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + x

    for name in subject.traits.dtypes:
        x = numbered(subject, 5).to(getattr(torch, name))
        got = subject.compile(program)(x)
        said = f"x + x in {name}, which it declares"
        subject.same(got, x + x, status="fail_value", what=said)


@theme.case(needs={"boxed"})
def boxed_is_declared_and_is_not(subject: Subject) -> None:
    _must_declare(subject, "boxed")
    backend, boxed = subject.watched.compiler, list[bool]()

    def noting(graph_module: Any, example_inputs: Sequence[Any], **options: Any) -> Any:
        compiled = backend(graph_module, example_inputs, **options)
        boxed.append(bool(getattr(compiled, "_boxed_call", False)))
        return compiled

    subject.watched.compiler = noting
    x = normal(subject, 3, 4)
    subject.matches(_program, x)
    with subject.must("fail_metadata", "what it returns does not take its arguments as one list"):
        assert boxed == [True]


@theme.case()
def mode_default_is_refused(subject: Subject) -> None:
    x = normal(subject, 3, 4)
    subject.matches(_program, x, mode="default")


@theme.case(needs={"mode"}, compiles=False)
def mode_that_does_not_exist_is_taken(subject: Subject) -> None:
    _must_declare(subject, "mode")
    _must_be_refused(subject, "a mode that no backend has", mode="no-such-mode")


@theme.case()
def no_options_are_refused(subject: Subject) -> None:
    x = normal(subject, 3, 4)
    subject.matches(_program, x, options={})


@theme.case(needs={"options"}, compiles=False)
def option_that_does_not_exist_is_taken(subject: Subject) -> None:
    _must_declare(subject, "options")
    options = {"no_such_option_of_any_backend": 1}
    _must_be_refused(subject, "an option that no backend has", options=options)


def _must_be_refused(subject: Subject, what: str, **options: Any) -> None:
    try:
        subject.compile(_program, **options)(normal(subject, 3, 4))
    except Exception:  # noqa: BLE001 (each backend has its own)
        return
    raise Failed("fail_behaviour", f"{what} is taken, and nothing is said")


@theme.case(needs={"options"})
def declared_option_is_refused(subject: Subject) -> None:
    _must_declare(subject, "options")
    declared = None if subject.spec is None else subject.spec.options
    options: dict[str, Any] = {"max_autotune": False, "epilogue_fusion": True}
    if declared != "inductor":
        options = {x.name: x.default for x in declared or () if x.default is not None}
    if not options:
        raise NotRunnable("it declares no option with a default")
    x = normal(subject, 3, 4)
    subject.matches(_program, x, options=options)
