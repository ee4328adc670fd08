"""A plain function as the model: torch sees the module that calls it, and its user does not.

What torch says of that module's ``forward(*args, **kwargs)`` is said of the function: its name, its
line, and its own parameters' names. What it says of any other function is left as it is.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backbay.explain.watching import Event
from backbay.workloads import function_model

_POSITIONAL = re.compile(r"\bL\['args'\]\[(\d+)\]|\bargs\[(\d+)\]")
_BY_POSITION = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
_KEYWORD = re.compile(r"\bL\['kwargs'\]\['(\w+)'\]|\bkwargs\['(\w+)'\]")


@dataclass(frozen=True, slots=True)
class Function:
    """The user's function."""

    name: str
    file: str
    number: int
    parameters: tuple[str, ...]
    """Those that may be given by position, in order."""
    rest: str
    """The parameter that takes all further positions; empty where there is none."""

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
            known = [*inspect.signature(function).parameters.values()]
        except (TypeError, ValueError):
            known = []
        return cls(
            name=inner.__name__,
            file=code.co_filename,
            number=code.co_firstlineno,
            parameters=tuple(x.name for x in known if x.kind in _BY_POSITION),
            rest=next((x.name for x in known if x.kind is inspect.Parameter.VAR_POSITIONAL), ""),
        )

    def is_called_in(self, file: str) -> bool:
        """Whether a file is where the function is only called."""
        return file == function_model.__file__

    def renamed(self, events: Sequence[Event]) -> list[Event]:
        """Return what torch says with the function's parameters in place of args and kwargs."""
        frames = {
            _frame(x)
            for x in events
            if x.kind == "compilation_metrics" and self.is_called_in(str(x.data["co_filename"]))
        }
        return [self._renamed(x) if _frame(x) in frames else x for x in events]

    def _renamed(self, event: Event) -> Event:
        data = event.data
        if isinstance(data, Mapping):
            data = {k: self._said(v) if isinstance(v, str) else v for k, v in data.items()}
        return dataclasses.replace(event, data=data, payload=self._said(event.payload))

    def _said(self, text: str) -> str:
        return _KEYWORD.sub(self._keyword, _POSITIONAL.sub(self._positional, text))

    def _positional(self, found: re.Match[str]) -> str:
        position = int(found[1] or found[2])
        further = position - len(self.parameters)
        if further >= 0 and not self.rest:
            return found[0]
        name = self.rest if further >= 0 else self.parameters[position]
        entry = f"[{further}]" if further >= 0 else ""
        return f"L['{name}']{entry}" if found[1] else f"{name}{entry}"

    def _keyword(self, found: re.Match[str]) -> str:
        return f"L['{found[1]}']" if found[1] else found[2]


def _frame(event: Event) -> str:
    return event.compile_id.partition("/")[0]
