"""A plain function in a model's place: everything that takes a module takes it, too."""

import contextlib
import copy
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

_Owned = torch.nn.Module | torch.nn.Parameter


class FunctionModel(torch.nn.Module):
    """A function as a module. The modules and parameters that it refers to are its own.

    They are found where a function has them: an object that it is a method of, variables of the
    functions around it, its defaults, globals, what `functools.partial` binds, and in a function
    that it wraps, as a decorator does.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        for name, value in _referred(function):
            own = f"{name}_" if hasattr(self, name) else name
            if isinstance(value, torch.nn.Parameter):
                self.register_parameter(own, value)
            else:
                self.add_module(own, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def extra_repr(self) -> str:
        """Return the function's name."""
        return name_of(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FunctionModel":
        other = FunctionModel(_copied(self.function, memo))
        other.training = self.training
        return other


def name_of(model: torch.nn.Module) -> str:
    """Return what a model is called where it has no name: its class, or the function."""
    if not isinstance(model, FunctionModel):
        return type(model).__name__
    function: Any = model.function
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def _referred(function: Any) -> Iterator[tuple[str, _Owned]]:
    """Yield the modules and parameters that a function refers to, each once."""
    seen, waiting = set[int](), [function]
    while waiting:
        for name, value in _values(waiting.pop()):
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, _Owned):
                yield name, value
            elif isinstance(value, types.FunctionType):
                waiting.append(value)


def _values(function: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(function, functools.partial):
        yield from _values(function.func)
        yield from ((f"arg{i}", x) for i, x in enumerate(function.args))
        yield from function.keywords.items()
    elif isinstance(function, types.MethodType):
        yield from _values_of(function.__self__)
    elif isinstance(function, types.FunctionType):
        yield from _variables(function)
        yield from ((x, y) for x, y in _globals(function) if isinstance(y, _Owned))
    else:
        yield from _values_of(function)


def _values_of(owner: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, torch.nn.Module):
        yield "self", owner
    else:
        yield from getattr(owner, "__dict__", {}).items()


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's defaults, and variables of the functions around it."""
    code, defaults = function.__code__, function.__defaults__ or ()
    yield from zip(reversed(code.co_varnames[: code.co_argcount]), reversed(defaults), strict=False)
    yield from (function.__kwdefaults__ or {}).items()
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not bound yet
            yield name, cell.cell_contents


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function, or one that is written inside of it, reads of its module."""
    codes = [function.__code__]
    for code in codes:
        codes += (x for x in code.co_consts if isinstance(x, types.CodeType))
    names = {name for code in codes for name in code.co_names}
    yield from ((x, y) for x, y in function.__globals__.items() if x in names)


def _copied(function: Any, memo: dict[int, Any]) -> Any:
    """Copy a function with what it refers to: `copy.deepcopy` takes a function for a constant."""
    if id(function) in memo:
        return memo[id(function)]
    if isinstance(function, functools.partial):
        args, keywords = copy.deepcopy((function.args, function.keywords), memo)
        return functools.partial(_copied(function.func, memo), *args, **keywords)
    if not isinstance(function, types.FunctionType):
        return copy.deepcopy(function, memo)

    def own(value: Any) -> Any:
        if isinstance(value, types.FunctionType) and any(True for _ in _referred(value)):
            return _copied(value, memo)
        return copy.deepcopy(value, memo) if isinstance(value, _Owned) else value

    modules = {x: own(y) for x, y in _globals(function) if isinstance(y, _Owned)}
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    copied = types.FunctionType(
        function.__code__,
        {**function.__globals__, **modules},
        function.__name__,
        tuple(map(own, function.__defaults__ or ())),
        cells,
    )
    memo[id(function)] = copied  # before its cells: it may be in one of them
    copied.__kwdefaults__ = {x: own(y) for x, y in (function.__kwdefaults__ or {}).items()}
    copied.__qualname__ = function.__qualname__
    for cell, theirs in zip(cells, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not bound yet
            cell.cell_contents = own(theirs.cell_contents)
    return copied
