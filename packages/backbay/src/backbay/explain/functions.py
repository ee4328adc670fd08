"""A plain function as the model: torch sees the module that calls it, and its user does not.

What torch says of that module's ``forward(*args, **kwargs)`` is said of the function: its name, its
line, and its own parameters' names.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backbay.explain.watching import Event
from backbay.workloads import function_model

_POSITIONAL = re.compile(r"\bL\['args'\]\[(\d+)\]|\bargs\[(\d+)\]")
_KEYWORD = re.compile(r"\bL\['kwargs'\]\['(\w+)'\]|\bkwargs\['(\w+)'\]")


@dataclass(frozen=True, slots=True)
class Function:
    """The user's function."""

    name: str
    file: str
    number: int
    parameters: tuple[str, ...]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Function | None":
        """Return what is known of a function; nothing of what has no Python source."""
        inner: Any = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        code = getattr(inspect.unwrap(inner), "__code__", None)
        if code is None:
            return None
        try:
            parameters = tuple(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            parameters = ()
        return cls(inner.__name__, code.co_filename, code.co_firstlineno, parameters)

    def is_called_in(self, file: str) -> bool:
        """Whether a file is where the function is only called."""
        return file == function_model.__file__

    def renamed(self, event: Event) -> Event:
        """Return what torch says with the function's parameters in place of args and kwargs."""
        data = event.data
        if isinstance(data, Mapping):
            data = {k: self._said(v) if isinstance(v, str) else v for k, v in data.items()}
        return dataclasses.replace(event, data=data, payload=self._said(event.payload))

    def _said(self, text: str) -> str:
        return _KEYWORD.sub(self._keyword, _POSITIONAL.sub(self._positional, text))

    def _positional(self, found: re.Match[str]) -> str:
        position = int(found[1] or found[2])
        if position >= len(self.parameters):
            return found[0]
        name = self.parameters[position]
        return f"L['{name}']" if found[1] else name

    def _keyword(self, found: re.Match[str]) -> str:
        return f"L['{found[1]}']" if found[1] else found[2]
