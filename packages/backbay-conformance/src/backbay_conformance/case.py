"""A case: one question put to a backend. Levels are made of them."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backbay_conformance.record import LEVELS, Status

if TYPE_CHECKING:
    from backbay_conformance.subject import Subject


class CaseError(Exception):
    """Base of what ends a case early; each carries its status."""

    status: Status

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Failed(CaseError):  # noqa: N818 (reads as what happened)
    """The backend is wrong, in the way that the status says."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class EagerUnstable(CaseError):  # noqa: N818
    """Eager itself gives nothing that could be compared with."""

    status = "eager_unstable"


class NotRunnable(CaseError):  # noqa: N818
    """The case cannot be run here with any backend."""

    status = "not_runnable"


class Unsupported(CaseError):  # noqa: N818
    """The backend declares that it does not take this; found out while the case ran."""

    status = "unsupported"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question put to a backend; it returns if the answer is right, and raises if not."""

    id: str
    """``level/family/...``, of letters, digits and ``._-``. Never changes: expectations name it."""
    run: Callable[["Subject"], None]
    needs: frozenset[str] = field(default_factory=frozenset)
    """Traits without which a backend need not take it: ``training``, ``dynamic_shapes``,
    ``mutation``, ``mode``, ``options``, or a dtype's name."""
    compiles: bool = True
    """Whether a pass must show that the backend was given a graph, and that its code ran."""
    share: float | None = None
    """Share of the ``quick`` profile's seeds that have it; the level's where None."""
    timeout_s: float = 120.0

    @property
    def level(self) -> int:
        """The number of its level."""
        return LEVELS.index(self.id.partition("/")[0])


Cases = Iterator[Case]


class Collection:
    """Cases written by hand, one function each; the function's name says what would be wrong.

    ::

        contract = Collection("contract")


        @contract.case(needs={"training"})
        def gradient_is_lost(subject: Subject) -> None:
            subject.agrees(lambda x: x.sin(), torch.randn(3), train=True)
    """

    def __init__(self, level: str, family: str = "") -> None:
        self._prefix = f"{level}/{family}/" if family else f"{level}/"
        self._cases: dict[str, Case] = {}

    def case(
        self,
        *,
        needs: frozenset[str] | set[str] = frozenset(),
        compiles: bool = True,
        share: float | None = None,
        timeout_s: float = 120.0,
    ) -> Callable[[Callable[["Subject"], None]], Callable[["Subject"], None]]:
        """Take a function as a case; see `Case` for the arguments."""

        def add(function: Callable[["Subject"], None]) -> Callable[["Subject"], None]:
            name = self._prefix + function.__name__
            if name in self._cases:
                raise ValueError(f"two cases are called {name}")
            self._cases[name] = Case(
                id=name,
                run=function,
                needs=frozenset(needs),
                compiles=compiles,
                share=share,
                timeout_s=timeout_s,
            )
            return function

        return add

    def parametrized(
        self,
        names: Iterator[str] | list[str] | tuple[str, ...],
        *,
        needs: frozenset[str] | set[str] = frozenset(),
        compiles: bool = True,
        share: float | None = None,
    ) -> Callable[[Callable[["Subject", str], None]], Callable[["Subject", str], None]]:
        """Take a function as one case for each name, which it gets as its second argument."""

        def add(function: Callable[["Subject", str], None]) -> Callable[["Subject", str], None]:
            for name in names:
                one = functools.partial(with_name, function, name)
                one.__name__ = f"{function.__name__}/{name}"  # type: ignore[attr-defined]
                self.case(needs=needs, compiles=compiles, share=share)(one)
            return function

        return add

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases.values())


def with_name(function: Callable[["Subject", str], None], name: str, subject: "Subject") -> None:
    """Call what is one of several cases, with its name."""
    function(subject, name)
