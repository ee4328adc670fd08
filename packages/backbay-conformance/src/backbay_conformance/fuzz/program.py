"""A random program as data: statements over named values. No torch here.

A program is drawn from a seed, reduced by deleting from it, and rendered to plain Python: what is
printed is what ran.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

GRAMMAR = 1
"""Raised when any seed gives another program: a seed names a program of one grammar."""

Role = Literal["input", "alias", "buffer", "parameter", "frozen"]


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """What a program is given, or owns."""

    name: str
    """``x0``; of what a module owns, ``self.b0``."""
    expr: str
    """What makes it, with the size ``n``; of an alias, from other inputs by their names."""
    role: Role = "input"
    of: str = ""
    """The input that an alias is, or is a view of."""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    kind: str
    """Which of the grammar's kinds it is."""
    expr: str
    """With ``{0}``, ``{1}`` for the values that it uses."""
    args: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    """Names that it gives; none of a statement that only writes."""
    under: str = ""
    """The context manager that it runs under, such as ``torch.no_grad()``."""

    @property
    def text(self) -> str:
        """The line as Python."""
        line = self.expr.format(*self.args)
        line = f"{', '.join(self.targets)} = {line}" if self.targets else line
        return f"with {self.under}: {line}" if self.under else line


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A function or a module, what it is called with, and how it is compiled."""

    seed: int
    grammar: int = GRAMMAR
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    sizes: tuple[int, ...] = (6,)
    """What ``n`` is at each call; all calls go to what was compiled once."""
    dynamic: bool | None = None
    """As torch.compile takes it."""
    train: bool = False
    under: str = ""
    """The context manager that all of it runs under."""
    checkpointed: bool = False
    """Whether backward computes it again."""
    dtypes: tuple[str, ...] = ()
    """Every dtype that a value has."""
    widens: bool = True
    """Whether it means the same in float64: it does not where it reads the bits of a float."""

    @property
    def arguments(self) -> tuple[Input, ...]:
        """What it is called with."""
        return tuple(x for x in self.inputs if x.role in {"input", "alias"})

    @property
    def owned(self) -> tuple[Input, ...]:
        """Buffers and parameters, frozen ones among them."""
        return tuple(x for x in self.inputs if x.role in {"buffer", "parameter", "frozen"})

    @property
    def id(self) -> str:
        """The case that runs it."""
        return f"programs/fuzz/{self.seed}"


def without_unused(program: Program) -> Program:
    """Leave out inputs that nothing uses."""
    used = {x for s in program.statements for x in s.args} | set(program.outputs)
    used |= {x.of for x in program.inputs if x.name in used}
    return msgspec.structs.replace(
        program, inputs=tuple(x for x in program.inputs if x.name in used)
    )


def with_statements(program: Program, statements: Iterable[Statement]) -> Program | None:
    """Return the program with other statements; None where one uses what is not there any more.

    Outputs that are gone are left out.
    """
    statements = tuple(statements)
    known = {x.name for x in program.inputs}
    for statement in statements:
        if not known.issuperset(statement.args):
            return None
        known |= set(statement.targets)
    outputs = tuple(x for x in program.outputs if x in known)
    if not outputs:
        return None
    reduced = msgspec.structs.replace(program, statements=statements, outputs=outputs)
    return without_unused(reduced)
