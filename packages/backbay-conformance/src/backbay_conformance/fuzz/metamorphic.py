"""Two spellings of one program, which a compiler must give the same results for.

Compiled is held against compiled, each in a fresh compile; eager only says how far honest results
scatter. So a fault is seen even where eager has it too.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from backbay_conformance.fuzz.grammar import views, writes
from backbay_conformance.fuzz.grammar.chooser import KINDS
from backbay_conformance.fuzz.program import Program, Statement

Twin = Callable[[Program], Program | None]
"""Returns another spelling; None where a program has no place for it."""

_VIEWS = frozenset(x.name for x in KINDS.values() if x.draw.__module__ == views.__name__) | {
    "part",
    "conjugate",
    "paired",
    "pairs",
    "halves",
}
WRITES = frozenset(x.name for x in KINDS.values() if x.draw.__module__ == writes.__name__)
"""Kinds of statements that write, and give nothing."""
_SCATTERS = {
    "{0}": "{0}.X",
    "{0}[1:]": "torch.slice_scatter({0}, {0}[1:].X, 0, 1)",
    "{0}[::2]": "torch.slice_scatter({0}, {0}[::2].X, 0, 0, None, 2)",
    "{0}[0]": "torch.select_scatter({0}, {0}[0].X, 0, 0)",
    "{0}[..., 0]": "torch.select_scatter({0}, {0}[..., 0].X, -1, 0)",
    "{0}.diagonal()": "torch.diagonal_scatter({0}, {0}.diagonal().X)",
    "{0}.transpose(0, -1)": "{0}.transpose(0, -1).X.transpose(0, -1)",
    "{0}.unsqueeze(0)": "{0}.unsqueeze(0).X.squeeze(0)",
}
"""A view that is written through, and the same as a function of the old value."""
_COPIES = (
    "torch.nn.functional.pad({0}, (0, 0))",
    "torch.roll({0}, 0, 0)",
    "torch.flip({0}, ())",
    "torch.cat([{0}])",
    "torch.narrow_copy({0}, 0, 0, {0}.shape[0])",
    "torch.repeat_interleave({0}, 1, 0)",
    "torch.tile({0}, (1,))",
    "{0}[torch.arange({0}.shape[0], device={0}.device)]",
    "{0}.masked_fill({0} != {0}, 1)",
    "{0}.clone()",
)
"""What gives memory of its own with the same in it."""
_IN_PLACE = re.compile(
    r"(?P<view>\{0\}.*)\.(?P<name>mul|add|sub|sin|sigmoid|tanh|neg)_\((?P<args>.*)\)"
)


def functional(program: Program) -> Program | None:
    """Compute anew what was computed in place, where nothing else sees the memory."""
    done: list[Statement] = []
    changed = False
    for statement in program.statements:
        twin = _functional(statement) if _alone(program, statement) else None
        changed |= twin is not None
        done.append(twin or statement)
    return _with(program, done) if changed else None


def _functional(statement: Statement) -> Statement | None:
    found = _IN_PLACE.fullmatch(statement.expr)
    if found is None or found["view"] not in _SCATTERS:
        return None
    call = f"{found['name']}({found['args']})"
    return Statement(
        kind="functional",
        expr=_SCATTERS[found["view"]].replace("X", call),
        args=statement.args,
        targets=statement.args[:1],
    )


def _alone(program: Program, statement: Statement) -> bool:
    """Whether what a statement writes is an intermediate that has no other name."""
    if statement.kind not in WRITES:
        return False
    name = statement.args[0]
    if not name.startswith("v"):
        return False
    maker = next(x for x in program.statements if name in x.targets)
    if maker.kind in _VIEWS:
        return False
    return not any(x.kind in _VIEWS and name in x.args for x in program.statements)


def _around(expr: str, *, written: bool) -> Twin:
    """Make a twin in which one value goes through an expression that changes nothing."""

    def twin(program: Program) -> Program | None:
        for place, statement in enumerate(program.statements):
            for name in statement.targets:
                if _used_after(program, name, place) and (written or not _written(program, name)):
                    return _replaced(program, name, place, expr)
        return None

    return twin


def _replaced(program: Program, name: str, place: int, expr: str) -> Program:
    extra = Statement(kind="twin", expr=expr, args=(name,), targets=("w0",))
    later = [
        msgspec.structs.replace(x, args=tuple("w0" if y == name else y for y in x.args))
        for x in program.statements[place + 1 :]
    ]
    outputs = tuple("w0" if x == name else x for x in program.outputs)
    statements = (*program.statements[: place + 1], extra, *later)
    return msgspec.structs.replace(program, statements=statements, outputs=outputs)


def _used_after(program: Program, name: str, place: int) -> bool:
    return any(name in x.args for x in program.statements[place + 1 :]) or name in program.outputs


def _written(program: Program, name: str) -> bool:
    """Whether anything that may share a value's memory is written to."""
    group = {name}
    links = [{*x.args, *x.targets} for x in program.statements if x.kind in _VIEWS]
    links += [{x.name, x.of} for x in program.inputs if x.of]
    for _ in links:
        for link in links:
            if link & group:
                group |= link
    return any(x.args[0] in group for x in program.statements if x.kind in WRITES)


def reordered(program: Program) -> Program | None:
    """Swap two neighbours that have nothing to do with each other."""
    found = list(program.statements)
    for place, (first, second) in enumerate(itertools.pairwise(found)):
        writes_ = {first.kind, second.kind} & WRITES
        if not writes_ and not set(first.targets) & set(second.args):
            found[place], found[place + 1] = second, first
            return _with(program, found)
    return None


def broken(program: Program) -> Program | None:
    """Break the graph in the middle."""
    return _inserted(program, Statement(kind="twin", expr="torch._dynamo.graph_break()"))


def burdened(program: Program) -> Program | None:
    """Compute something in the middle that nobody uses."""
    place = len(program.statements) // 2
    names = [y for x in program.statements[:place] for y in x.targets]
    if not names:
        return None
    dead = Statement(kind="twin", expr="({0} == {0}).sum()", args=(names[-1],), targets=("w0",))
    return _inserted(program, dead)


def restored(program: Program) -> Program | None:
    """Spoil an input in the middle, and put back what was copied from it before.

    Each copy has nothing to do, and must be one all the same.
    """
    views = any(x.role == "alias" for x in program.inputs)
    names = [x.name for x in program.inputs if x.role == "input"]
    if program.train or views or not names:  # backward may need what was there
        return None
    return _inserted(program, *_spoiled_and_restored(names[0]))


def _spoiled_and_restored(name: str) -> Iterator[Statement]:
    for number, copy in enumerate(_COPIES):
        saved = f"w{number}"
        yield Statement(kind="twin", expr=copy, args=(name,), targets=(saved,))
        yield Statement(kind="twin", expr="{0}.fill_(3)", args=(name,))
        yield Statement(kind="twin", expr="{0}.copy_({1})", args=(name, saved))


def _inserted(program: Program, *statements: Statement) -> Program:
    place = len(program.statements) // 2
    first, rest = program.statements[:place], program.statements[place:]
    return _with(program, [*first, *statements, *rest])


def _with(program: Program, statements: Sequence[Statement]) -> Program:
    return msgspec.structs.replace(program, statements=tuple(statements))


TWINS: dict[str, Twin] = {
    "in_place_is_not_as_functional": functional,
    "transposed_twice_is_another": _around("{0}.transpose(0, -1).transpose(0, -1)", written=True),
    "joined_and_cut_is_another": _around(
        "torch.cat([{0}[None], {0}[None]]).split(1)[1][0]", written=False
    ),
    "chosen_from_itself_is_another": _around("torch.where({0} == {0}, {0}, {0})", written=False),
    "order_of_independent_lines_matters": reordered,
    "graph_break_changes_result": broken,
    "dead_line_changes_result": burdened,
    "spoiled_and_restored_is_another": restored,
    "contiguous_changes_result": _around("{0}.contiguous()", written=False),
    "wider_dtype_and_back_is_another": _around(
        "{0}.to(torch.promote_types({0}.dtype, torch.float64)).to({0}.dtype)", written=False
    ),
}
"""By what would be wrong."""
