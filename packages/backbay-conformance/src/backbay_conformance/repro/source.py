"""A case's own source as a program, where no graph alone shows what it shows."""

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from backbay_conformance.case import Agreement, Case, with_name
from backbay_conformance.record import Status
from backbay_conformance.repro.record import Made

_SUBJECT = """
class Subject:
    device, seed = torch.device({device!r}), 0
    def compile(self, function, **options):
        return torch.compile(function, backend=BACKEND, **options)
    def near(self, got, wanted, what="", or_refused=False):
        if not (or_refused and isinstance(got, str)):
            torch.testing.assert_close(got, wanted, equal_nan=True)
    def must(self, status, what):
        return contextlib.nullcontext()
    def agrees(self, function, *args, train=False, calls=1, options=None, **kwargs):
        call = self.compile(function, **(options or {{}}))
        for _ in range(calls):
            self.near(call(*args, **kwargs), function(*args, **kwargs))
"""
_MATCHES = """\
    def matches(self, function, *calls, **options):
        call = self.compile(function, **options)
        for args in [x if isinstance(x, tuple) else (x,) for x in calls]:
            self.near(call(*args), function(*args))
"""
_SAME = """\
    def near_each_other(self, got, other, what=""):
        self.near(got, other)
    def same(self, got, wanted, status="", what=""):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    def same_as_each_other(self, *got, status="", what=""):
        for one in got[1:]:
            self.same(one, got[0])
"""
_OURS = ("backbay",)

_SHOWN = """
try:
    {call}
except {error} as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
except Exception as error:
    print("something else was raised:", error)
    sys.exit(2)
"""


def of_source(case: Case, status: Status, why: str, device: torch.device) -> Made:
    """Return a case as a program of plain torch, if its source can stand without the suite."""
    try:
        functions, call = _called(case.run)
        imports, parts = _parts(*functions)
    except (OSError, TypeError, LookupError) as error:
        return Made(note=f"{why}, and the case's source does not stand alone: {error}")
    kind = "Exception" if status == "fail_error" else "AssertionError"
    shown = _SHOWN.format(call=call, error=kind)
    subject = _SUBJECT.format(device=str(device))
    if any("subject.matches(" in x for x in parts):
        subject += _MATCHES
    if any(f"subject.{x}" in y for x in ("same", "near_each_other") for y in parts):
        subject += _SAME
    body = "\n".join([subject, *parts, shown])
    return Made(imports=tuple(imports), body=body, kind="source", note=why)


def _called(run: Callable[..., Any]) -> tuple[list[types.FunctionType], str]:
    """Return the function that a case calls, with those that make its inputs, and the call.

    Raises:
        LookupError: the case is made from torch's data and has no source of its own.
    """
    if isinstance(run, types.FunctionType):
        return [run], f"{run.__name__}(Subject())"
    if isinstance(run, functools.partial) and run.func is with_name:
        function, name = run.args
        return [function], f"{function.__name__}(Subject(), {name!r})"
    if isinstance(run, Agreement):
        program, inputs = run.program, run.inputs
        assert isinstance(program, types.FunctionType)  # both are written down
        assert isinstance(inputs, types.FunctionType)
        how = f"train={run.train}, calls={run.calls}"
        call = f"(s := Subject()).agrees({program.__name__}, {_inputs(program)}, {how})"
        return [program, inputs], call
    raise LookupError("it is made from torch's own operator data")


def _inputs(program: types.FunctionType) -> str:
    """Return the source of the inputs that stand, as a lambda of ``s``, above a program."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(program))).body
    assert isinstance(definition, ast.FunctionDef)
    (decorator,) = definition.decorator_list
    assert isinstance(decorator, ast.Call)
    (made,) = decorator.args
    assert isinstance(made, ast.Lambda)
    several = made.body.elts if isinstance(made.body, ast.Tuple) else [made.body]
    return ", ".join(map(ast.unparse, several))


def _parts(
    function: types.FunctionType, *inputs: types.FunctionType
) -> tuple[list[str], list[str]]:
    """Return the lines that a function's source must import, and the sources that it takes.

    Args:
        function: what is called.
        inputs: what makes its inputs, whose own source stands in the call.

    Raises:
        LookupError: it takes something that cannot be written down.
    """
    if function.__closure__:
        raise LookupError(f"{function.__name__} is made by another function")
    imports, parts, seen = ["import contextlib"], [_source(function)], {function.__name__}
    todo = [named for x in (function, *inputs) for named in _named(x)]
    while todo:
        name, value = todo.pop(0)
        if name in seen:
            continue
        seen.add(name)
        module = getattr(value, "__module__", "") or ""
        if isinstance(value, types.ModuleType):
            if value.__name__.startswith(_OURS):
                raise LookupError(f"it uses {value.__name__}")
            alias = "" if name == value.__name__ else f" as {name}"
            imports.append(f"import {value.__name__}{alias}")
        elif isinstance(value, types.FunctionType | type) and module == function.__module__:
            parts.insert(0, _source(value))
            todo += _named(value)
        elif module and not module.startswith(_OURS) and hasattr(value, "__name__"):
            imports.append(f"from {module} import {value.__name__} as {name}")
        elif isinstance(value, int | float | str | tuple | torch.dtype | None):
            parts.insert(0, f"{name} = {value!r}")
        else:
            raise LookupError(f"it uses {name}")
    return imports, parts


def _source(value: types.FunctionType | type) -> str:
    """Return the source of a function or class; of a function, without what it needs not to run.

    That is its decorators, docstring and annotations, which may name what is not there.
    """
    text = textwrap.dedent(inspect.getsource(value))
    (definition,) = ast.parse(text).body
    lines = text.splitlines()
    if not isinstance(definition, ast.FunctionDef):
        return "\n".join(lines[definition.lineno - 1 :])
    for argument in ast.walk(definition.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    first = definition.body[1 if ast.get_docstring(definition) else 0]
    head = f"def {definition.name}({ast.unparse(definition.args)}):"
    return "\n".join([head, *lines[first.lineno - 1 :]])


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    """Return the globals that a function's or class's code names."""
    functions = vars(value).values() if isinstance(value, type) else [value]
    for function in functions:
        if isinstance(function, types.FunctionType):
            for name in sorted(set(_names(function.__code__))):
                if name in function.__globals__:
                    yield name, function.__globals__[name]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
