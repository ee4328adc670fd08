"""Guard filters: which of Dynamo's guards compiled code keeps.

A filter takes the guards of one frame and says for each whether it stays. Several are one here: a
guard stays only where every filter keeps it.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from backbay.errors import InputError

GuardFilter = Callable[[Sequence[Any]], Sequence[bool]]
"""Takes torch's ``GuardFilterEntry`` objects; gives for each whether its guard is kept."""

GuardFilters = str | GuardFilter | Sequence[str | GuardFilter]
"""A filter, the name of one of ``torch.compiler``'s, or several of either."""


class Filters:
    """Several guard filters as one; equal to another of the same filters in the same order."""

    def __init__(self, filters: Sequence[GuardFilter]) -> None:
        self._filters = tuple(filters)

    @property
    def names(self) -> str:
        """What the filters are called, for errors."""
        return ", ".join(map(_name, self._filters))

    def __call__(self, entries: Sequence[Any]) -> list[bool]:
        """Return for each guard whether every filter keeps it.

        Raises:
            InputError: a filter does not answer with one bool for each guard.
        """
        answers = [_answers(x, entries) for x in self._filters]
        return [all(each) for each in zip(*answers, strict=True)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Filters):
            return NotImplemented
        return list(map(_identity, self._filters)) == list(map(_identity, other._filters))

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"Filters({self.names})"


def keep_everything(entries: Sequence[Any]) -> list[bool]:
    """Leave no guard out: what there is to check is what torch itself does not guard."""
    return [True] * len(entries)


def known() -> dict[str, GuardFilter]:
    """Return the filters that this torch has, by name."""
    import torch  # noqa: PLC0415 (only a compilation with filters needs it)

    prefixes = ("skip_", "keep_")
    names = (x for x in torch.compiler.__all__ if x.endswith("_unsafe") and x.startswith(prefixes))
    return {name: getattr(torch.compiler, name) for name in names}


def filters_of(given: GuardFilters) -> Filters:
    """Make one filter of what a caller gave.

    Raises:
        InputError: a name that torch has no filter of, or what can't be called.
    """
    problems = list(filter_problems(given))
    if problems:
        raise InputError("; ".join(problems))
    by_name = known()
    return Filters([by_name[x] if isinstance(x, str) else x for x in _each(given)])


def filter_problems(given: GuardFilters) -> Iterator[str]:
    """Yield what of ``guard_filter`` can't be used; nothing where all can."""
    each = _each(given)
    if not each:
        yield "guard_filter is empty: name a filter, or leave it out"
    for one in each:
        if isinstance(one, str):
            yield from _name_problems(one)
        elif not callable(one):
            yield f"a guard filter is a function or a name, not {type(one).__name__}"


def _name_problems(name: str) -> Iterator[str]:
    names = list(known())
    if name in names:
        return
    close = get_close_matches(name, names, n=1)
    near = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(names)}"
    yield f"torch.compiler has no guard filter {name!r}{near}"


def _each(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _answers(one: GuardFilter, entries: Sequence[Any]) -> list[bool]:
    answers = list(one(entries))
    if len(answers) != len(entries):
        raise InputError(
            f"guard filter {_name(one)} gives {len(answers)} answers for {len(entries)} guards: "
            "give one bool for each"
        )
    strange = [x for x in answers if type(x) is not bool]
    if strange:
        raise InputError(
            f"guard filter {_name(one)} gives {type(strange[0]).__name__}: give a bool for each "
            "guard"
        )
    return answers


def _name(one: Any) -> str:
    if isinstance(one, functools.partial):
        return _name(one.func)
    return getattr(one, "__name__", type(one).__name__)


def _identity(one: Any) -> Any:
    """Return what two filters are compared by; a partial equals no other, and is taken apart."""
    if isinstance(one, functools.partial):
        return _identity(one.func), one.args, one.keywords
    return one
