"""A plain function in a model's place: everything that takes a module takes it, too."""

import copy
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch


class FunctionModel(torch.nn.Module):
    """A function as a module. The modules and parameters that it refers to are its own.

    They are found where a function has them: an object that it is a method of, variables of the
    functions around it, globals, and what `functools.partial` binds.
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


def _referred(function: Any) -> Iterator[tuple[str, torch.nn.Module | torch.nn.Parameter]]:
    """Yield the modules and parameters that a function refers to, each once."""
    seen = set[int]()
    for name, value in _values(function):
        if isinstance(value, torch.nn.Module | torch.nn.Parameter) and id(value) not in seen:
            seen.add(id(value))
            yield name, value


def _values(function: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(function, functools.partial):
        yield from _values(function.func)
        yield from ((f"arg{i}", x) for i, x in enumerate(function.args))
        yield from function.keywords.items()
    elif isinstance(function, types.MethodType):
        yield from _values_of(function.__self__)
    elif isinstance(function, types.FunctionType):
        found = inspect.getclosurevars(function)
        yield from (*found.nonlocals.items(), *found.globals.items())
    else:
        yield from _values_of(function)


def _values_of(owner: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, torch.nn.Module):
        yield "self", owner
    else:
        yield from getattr(owner, "__dict__", {}).items()


def _copied(function: Any, memo: dict[int, Any]) -> Any:
    """Copy a function with what it refers to: `copy.deepcopy` takes a function for a constant."""
    if isinstance(function, functools.partial):
        args, keywords = copy.deepcopy((function.args, function.keywords), memo)
        return functools.partial(_copied(function.func, memo), *args, **keywords)
    if not isinstance(function, types.FunctionType):
        return copy.deepcopy(function, memo)
    own = {name: copy.deepcopy(value, memo) for name, value in _referred(function)}
    cells = tuple(_cell(x, memo) for x in function.__closure__ or ())
    copied = types.FunctionType(
        function.__code__,
        {**function.__globals__, **{x: y for x, y in own.items() if x in function.__globals__}},
        function.__name__,
        function.__defaults__,
        cells,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__qualname__ = function.__qualname__
    return copied


def _cell(cell: types.CellType, memo: dict[int, Any]) -> types.CellType:
    try:
        value = cell.cell_contents
    except ValueError:  # not bound yet
        return cell
    own = isinstance(value, torch.nn.Module | torch.nn.Parameter)
    return types.CellType(copy.deepcopy(value, memo)) if own else cell
