"""Exceptions, reset, stances, nesting, autocast: what surrounds a call of torch.compile."""

from collections.abc import Sequence
from typing import Any

import torch

from backbay_conformance.case import Collection, Failed, NotRunnable
from backbay_conformance.levels.making import normal
from backbay_conformance.subject import Subject

theme = Collection("contract", "control")

Tensors = tuple[torch.Tensor, ...]


class ModelError(Exception):
    """Raised by a program."""


def _program(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).tanh() + x.sum()


@theme.case()
def exception_of_the_model_is_another(subject: Subject) -> None:
    def program(x: torch.Tensor, limit: int) -> torch.Tensor:
        y = x * 2
        if limit > 3:
            raise ModelError(f"the limit is {limit}")
        return y + limit

    call, x = subject.compile(program), normal(subject, 4)
    subject.near(call(x, 1), program(x, 1))
    try:
        call(x, 5)
    except ModelError as error:
        said = str(error)
    except Exception as error:
        raise Failed(
            "fail_behaviour", f"a ModelError of the model arrives as {type(error).__name__}"
        ) from error
    else:
        raise Failed("lost_validation", "an exception of the model does not arrive")
    with subject.must("fail_behaviour", "an exception of the model has another message"):
        assert said == "the limit is 5"
    subject.near(call(x, 1), program(x, 1), what="result after an exception")


@theme.case()
def exception_that_the_model_catches_escapes(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            x = x * 2
            raise ModelError  # noqa: TRY301 (what is tested)
        except ModelError:
            return x + 1

    call, x = subject.compile(program), normal(subject, 4)
    for _ in range(2):
        subject.near(call(x), program(x))


@theme.case()
def error_in_a_shape_is_not_raised(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y + 1

    call, x, y = subject.compile(program), normal(subject, 3, 4), normal(subject, 4, 5)
    for _ in range(2):
        subject.near(call(x, y), program(x, y))
        try:
            call(x, y.t())
        except Exception:  # noqa: BLE001, S112 (Dynamo and eager have types of their own)
            continue
        raise Failed("lost_validation", "matrices that do not fit are multiplied")
    subject.near(call(x, y), program(x, y), what="result after an error")


@theme.case(needs={"dynamic_shapes"})
def error_in_a_dynamic_shape_is_not_raised(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    call = subject.compile(program, dynamic=True)
    for one, other in ((4, 4), (6, 6)):
        x, y = normal(subject, one), normal(subject, other)
        subject.near(call(x, y), program(x, y))
    try:
        call(normal(subject, 4), normal(subject, 6))
    except Exception:  # noqa: BLE001 (as above)
        subject.near(call(x, y), program(x, y), what="result after an error")
        return
    raise Failed("lost_validation", "tensors of sizes 4 and 6 are added")


@theme.case()
def error_that_depends_on_data_is_another(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x) * 2

    call, good = subject.compile(program), torch.eye(3, device=subject.device)
    for _ in range(2):
        subject.near(call(good), program(good))
        try:
            call(-good)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined] # torch re-exports it
            continue
        except Exception as error:
            what = f"torch's LinAlgError arrives as {type(error).__name__}"
            raise Failed("fail_behaviour", what) from error
        raise Failed("lost_validation", "a matrix that is not positive has a Cholesky factor")
    subject.near(call(good), program(good), what="result after an error")


@theme.case(needs={"int64"})
def integer_division_by_zero_is_not_raised(subject: Subject) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Tensors:
        return a // b, a % b

    a = torch.tensor([7, -7, 5], device=subject.device)
    good, bad = torch.tensor([2, 2, -3]).to(a), torch.tensor([2, 0, -3]).to(a)
    try:
        program(a, bad)
    except RuntimeError:
        pass
    else:
        raise NotRunnable(f"on {subject.device.type} eager gives a number")
    call = subject.compile(program)
    for got, wanted in zip(call(a, good), program(a, good), strict=True):
        subject.near(got, wanted)
    try:
        call(a, bad)
    except Exception:  # noqa: BLE001 (as above)
        return
    raise Failed("lost_validation", "an integer is divided by zero")


@theme.case()
def nothing_works_after_a_reset(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 4)
    for _ in range(2):
        subject.near(call(x), _program(x))
        torch.compiler.reset()
        subject.watched.reset()
    subject.near(call(x), _program(x))
    with subject.must("fail_behaviour", "after torch.compiler.reset nothing is compiled anew"):
        assert len(subject.graphs) == 3


@theme.case()
def stance_force_eager_is_ignored(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 4)
    call(x)
    runs = subject.graphs[0].runs
    with torch.compiler.set_stance("force_eager"):
        subject.near(call(x), _program(x))
        with subject.must("fail_behaviour", "compiled code runs under the stance force_eager"):
            assert subject.graphs[0].runs == runs
    subject.near(call(x), _program(x))
    with subject.must("fail_behaviour", "compiled code does not run after force_eager"):
        assert subject.graphs[0].runs == runs + 1


@theme.case()
def stance_fail_on_recompile_is_ignored(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 4)
    call(x)
    with torch.compiler.set_stance("fail_on_recompile"):
        subject.near(call(x), _program(x))
        try:
            call(x.double())
        except RuntimeError:
            return
    raise Failed("fail_behaviour", "another dtype compiles under the stance fail_on_recompile")


@theme.case()
def compiled_inside_compiled(subject: Subject) -> None:
    inner = subject.compile(_program)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x * 3) + inner(x)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return _program(x * 3) + _program(x)

    call, x = subject.compile(outer), normal(subject, 4)
    for _ in range(2):
        subject.near(call(x), plain(x))
        subject.near(inner(x), _program(x))


@theme.case()
def function_that_is_not_to_be_compiled_is(subject: Subject) -> None:
    compiling: list[bool] = []

    @torch.compiler.disable
    def apart(x: torch.Tensor) -> torch.Tensor:
        compiling.append(torch.compiler.is_compiling())
        return x + len(compiling)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 if torch.compiler.is_compiling() else x * 100
        return apart(y) * 3

    call, x = subject.compile(program), normal(subject, 4)
    for count in (1, 2):
        subject.near(call(x), (x * 2 + count) * 3)
    with subject.must("fail_behaviour", "is_compiling is true in a disabled function"):
        assert compiling == [False, False]


def _mixed(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = x @ w
    return y, y.softmax(-1), y.float() * 2, y + x.new_ones(1)


@theme.parametrized(("bfloat16", "float16"))
def autocast_around_the_call_is_ignored(subject: Subject, name: str) -> None:
    dtype: torch.dtype = getattr(torch, name)
    x, w = normal(subject, 6, 8), normal(subject, 8, 8)

    def program(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        with torch.autocast(subject.device.type, dtype):
            return _mixed(x, w)

    subject.agrees(program, x, w)
    call = subject.compile(_mixed)
    for enabled in (True, False, True):
        with torch.autocast(subject.device.type, dtype, enabled=enabled):
            got, wanted = call(x, w), _mixed(x, w)
        with subject.must("fail_metadata", f"dtypes with autocast {enabled}"):
            assert [y.dtype for y in got] == [y.dtype for y in wanted]


@theme.case(needs={"training", "bfloat16"})
def gradient_under_autocast_is_of_another_dtype(subject: Subject) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model.to(subject.device)

    class Cast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(subject.device.type, torch.bfloat16):
                return self.inner(x)

    subject.agrees(Cast(), normal(subject, 6, 8), train=True)


@theme.case()
def example_inputs_are_changed_by_the_backend(subject: Subject) -> None:
    backend = subject.watched.compiler
    seen: list[tuple[list[Any], list[Any]]] = []

    def noting(graph_module: Any, example_inputs: Sequence[Any], **options: Any) -> Any:
        kept = list(example_inputs)
        before = [_seen(x) for x in kept]
        compiled = backend(graph_module, example_inputs, **options)
        seen.append((before, [_seen(x) for x in kept]))
        return compiled

    subject.watched.compiler = noting
    model, x = torch.nn.Linear(4, 3).to(subject.device), normal(subject, 2, 4)
    got = subject.compile(model)(x)
    with subject.must("fail_behaviour", "compiling changes the example inputs"):
        assert all(before == after for before, after in seen)
    subject.near(got, model(x))


def _seen(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (tuple(value.shape), value.stride(), value.dtype, value.requires_grad, value._version)  # noqa: SLF001


@theme.case()
def arguments_are_emptied_for_the_caller(subject: Subject) -> None:
    def program(inputs: list[torch.Tensor], table: dict[str, torch.Tensor]) -> torch.Tensor:
        return inputs[0] + inputs[1] * table["w"]

    call = subject.compile(program)
    inputs, table = [normal(subject, 3), normal(subject, 3)], {"w": normal(subject, 3)}
    kept = [x.clone() for x in (*inputs, table["w"])]
    said = "the caller's containers or tensors are not as before"
    for _ in range(2):
        subject.near(call(inputs, table), program(inputs, table))
        with subject.must("fail_mutation", said):
            assert len(inputs) == 2
            assert list(table) == ["w"]
        subject.same((*inputs, table["w"]), kept, status="fail_mutation", what=said)
