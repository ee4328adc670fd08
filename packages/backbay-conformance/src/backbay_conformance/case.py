"""A case: one question put to a backend. Levels are made of them."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

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


Run = Callable[["Subject"], None]
RunNamed = Callable[["Subject", str], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question put to a backend; it returns if the answer is right, and raises if not."""

    id: str
    """``level/family/...``, of letters, digits and ``._-``. Never changes: expectations name it."""
    run: Run
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


Program = TypeVar("Program", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What a case asks that compares and does no more: does a program give what eager gives?"""

    program: Callable[..., Any]
    inputs: Callable[["Subject"], Any]
    """Makes its inputs, on the subject's device; a tuple is several."""
    train: bool
    calls: int

    def __call__(self, subject: "Subject") -> None:
        """Hold the program against eager; see `Subject.agrees`."""
        made = self.inputs(subject)
        args = made if isinstance(made, tuple) else (made,)
        subject.agrees(self.program, *args, train=self.train, calls=self.calls)


class Collection:
    """Cases written by hand, one function each; the function's name says what would be wrong.

    ::

        contract = Collection("contract")


        @contract.agrees(lambda s: normal(s, 3, 5))
        def sum_is_of_another_dimension(x: torch.Tensor) -> torch.Tensor:
            return x.sum(-1)


        @contract.case(needs={"training"})
        def gradient_is_lost(subject: Subject) -> None:
            subject.agrees(lambda x: x.sin(), torch.randn(3), train=True)
    """

    def __init__(self, level: str, family: str = "") -> None:
        self._prefix = f"{level}/{family}/" if family else f"{level}/"
        self._cases: dict[str, Case] = {}

    def agrees(
        self,
        inputs: Callable[["Subject"], Any],
        *,
        needs: frozenset[str] | set[str] = frozenset(),
        train: bool = False,
        calls: int = 1,
    ) -> Callable[[Program], Program]:
        """Take a program as a case: compiled, it gives what eager gives.

        Args:
            inputs: makes the program's inputs when the case is run; a tuple is several.
            needs: see `Case`.
            train: whether backward is run as well.
            calls: how often what was compiled is run and judged.
        """

        def add(program: Program) -> Program:
            run = Agreement(program=program, inputs=inputs, train=train, calls=calls)
            self._add(program.__name__, run, needs=frozenset(needs))
            return program

        return add

    def case(
        self,
        *,
        needs: frozenset[str] | set[str] = frozenset(),
        compiles: bool = True,
        share: float | None = None,
        timeout_s: float = 120.0,
    ) -> Callable[[Run], Run]:
        """Take a function as a case; see `Case` for the arguments."""

        def add(function: Run) -> Run:
            self._add(
                function.__name__,
                function,
                needs=frozenset(needs),
                compiles=compiles,
                share=share,
                timeout_s=timeout_s,
            )
            return function

        return add

    def parametrized(
        self,
        names: Iterable[str],
        *,
        needs: frozenset[str] | set[str] = frozenset(),
        compiles: bool = True,
        share: float | None = None,
    ) -> Callable[[RunNamed], RunNamed]:
        """Take a function as one case for each name, which it gets as its second argument."""

        def add(function: RunNamed) -> RunNamed:
            for name in names:
                self._add(
                    f"{function.__name__}/{name}",
                    functools.partial(with_name, function, name),
                    needs=frozenset(needs),
                    compiles=compiles,
                    share=share,
                )
            return function

        return add

    def _add(self, name: str, run: Run, **details: Any) -> None:
        case_id = self._prefix + name
        if case_id in self._cases:
            raise ValueError(f"two cases are called {case_id}")
        self._cases[case_id] = Case(id=case_id, run=run, **details)

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases.values())


def with_name(function: RunNamed, name: str, subject: "Subject") -> None:
    """Call what is one of several cases, with its name."""
    function(subject, name)
