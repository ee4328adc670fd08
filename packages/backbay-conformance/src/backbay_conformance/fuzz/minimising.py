"""Makes a failing program small by deleting from it, as long as it fails alike. No torch here.

Delta debugging (A. Zeller, R. Hildebrandt, 2002) on statements; what uses a deleted value goes too,
or uses what the value was made from. Bounded by the clock and by a number of runs: each is a
compilation.
"""

import time
from collections.abc import Callable, Iterator

import msgspec

from backbay_conformance.fuzz.program import Program, Statement, with_statements, without_unused

Fails = Callable[[Program], bool]
"""Whether a program fails as the first did, when it is run."""


def minimised(program: Program, fails: Fails, *, seconds: float, runs: int) -> Program:
    """Return the smallest program that was found to fail alike within the limits."""
    search = _Search(program, fails, deadline=time.monotonic() + seconds, runs=runs)
    while search.improved():
        pass
    return search.best


class _Search:
    def __init__(self, program: Program, fails: Fails, *, deadline: float, runs: int) -> None:
        self.best = program
        self._fails = fails
        self._deadline = deadline
        self._runs = runs
        self._tried: set[Program] = {program}

    def improved(self) -> bool:
        """Make one pass over all ways to be smaller; return whether any led on."""
        before = self.best
        for way in (_fewer_statements, _one_output, _bypassed, _plainer):
            self._follow(way)
        return self.best is not before

    def _follow(self, way: Callable[[Program], Iterator[Program | None]]) -> None:
        again = True
        while again:
            again = False
            for candidate in way(self.best):
                if self._exhausted:
                    return
                if candidate is None or candidate in self._tried:
                    continue
                self._tried.add(candidate)
                self._runs -= 1
                if self._fails(candidate):
                    self.best, again = candidate, True
                    break

    @property
    def _exhausted(self) -> bool:
        return self._runs <= 0 or time.monotonic() > self._deadline


def _fewer_statements(program: Program) -> Iterator[Program | None]:
    size = len(program.statements)
    part = size // 2
    while part:
        for start in range(size - part, -1, -part):
            yield _without(program, range(start, start + part))
        part //= 2


def _without(program: Program, gone: range) -> Program | None:
    missing = set[str]()
    kept = list[Statement]()
    for place, statement in enumerate(program.statements):
        if place in gone or missing & set(statement.args):
            missing |= set(statement.targets)
        else:
            kept.append(statement)
    outputs = tuple(x for x in program.outputs if x not in missing)
    if not outputs:
        outputs = tuple(x.name for x in program.arguments[:1])
    return with_statements(msgspec.structs.replace(program, outputs=outputs), kept)


def _one_output(program: Program) -> Iterator[Program | None]:
    if len(program.outputs) > 1:
        for place in range(len(program.outputs)):
            rest = program.outputs[:place] + program.outputs[place + 1 :]
            yield without_unused(msgspec.structs.replace(program, outputs=rest))


def _bypassed(program: Program) -> Iterator[Program | None]:
    for place, statement in enumerate(program.statements):
        if len(statement.targets) != 1:
            continue
        for source in dict.fromkeys(statement.args):
            yield _with_source(program, place, statement.targets[0], source)


def _with_source(program: Program, place: int, name: str, source: str) -> Program | None:
    def seen(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(source if x == name else x for x in names)

    kept = [
        msgspec.structs.replace(x, args=seen(x.args))
        for i, x in enumerate(program.statements)
        if i != place
    ]
    return with_statements(msgspec.structs.replace(program, outputs=seen(program.outputs)), kept)


def _plainer(program: Program) -> Iterator[Program | None]:
    change = msgspec.structs.replace
    if len(program.sizes) > 1:
        for n in program.sizes:
            yield change(program, sizes=(n,))
        for place in range(len(program.sizes)):
            yield change(program, sizes=program.sizes[:place] + program.sizes[place + 1 :])
    if program.dynamic is not None:
        yield change(program, dynamic=None)
    if program.train:
        yield change(program, train=False)
    if program.under:
        yield change(program, under="")
    if program.checkpointed:
        yield change(program, checkpointed=False)
    for place, statement in enumerate(program.statements):
        if statement.under:
            plain = change(statement, under="")
            rest = program.statements[:place], program.statements[place + 1 :]
            yield change(program, statements=(*rest[0], plain, *rest[1]))
