"""Asserts how a model compiles: what `backbay.explain` sees, and what `backbay.race` measures."""

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backbay.errors import plain
from backbay.registry import CompilerFn
from backbay.registry.names import BackendName
from backbay.reporting.wording import counted, ratio, short

if TYPE_CHECKING:
    import torch

    from backbay.explain import Explanation, FindingRecord
    from backbay.proof import Workload

AssertCompiles = Callable[..., "Explanation"]

_EAGER = "eager"
_BREAKS = {"BB101", "BB102", "BB103", "BB104", "BB105"}
_GIVEN = "the compiler function"
_MOST = 6
"""Lines that a failure has of one kind."""


class NotAsExpected(AssertionError):  # noqa: N818 (reads as the mistake that it names)
    """A model does not compile as it is meant to; ``explanation`` has all that was seen."""

    def __init__(self, message: str, explanation: "Explanation") -> None:
        super().__init__(message)
        self.explanation = explanation


def assert_compiles(
    model: "torch.nn.Module | Callable[..., Any]",
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: BackendName | CompilerFn = "inductor",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    train: bool = False,
    graphs: int | None = None,
    breaks: int | None = 0,
    recompiles: int | None = 0,
    further_args: Sequence[Sequence[Any]] = (),
    fired: Mapping[str, int] | None = None,
    fail_on: Sequence[str] = (),
    faster_than: tuple[str, float] | None = None,
    seconds: float = 10.0,
) -> "Explanation":
    """Assert that a model compiles as it is meant to.

    The model is called uncompiled, then compiled: twice with the same inputs, and once with each of
    ``further_args``. What it changed of itself and of its inputs is written back. What is ``None``
    is not checked.

    Args:
        model: a module, or a function.
        args: positional inputs of a call.
        kwargs: keyword inputs of every call.
        backend: a registered name, ``module:attribute``, ``file.py:attribute`` or a compiler
            function.
        mode: as in torch.compile.
        options: as in torch.compile.
        train: a call is forward and backward.
        graphs: how many graphs the first call has compiled.
        breaks: how many graph breaks there are at most.
        recompiles: how many functions are compiled again at most, over all calls.
        further_args: positional inputs of further calls, for example of another batch size.
        fired: pass to how often it changed something in the graphs of the first call: exactly.
        fail_on: codes of findings that may not be there, as ``backbay explain --fail-on`` takes
            them: ``"BB401"``, or ``"BB3"`` for all of a kind but notes.
        faster_than: another backend, or ``"eager"``, and how many times as fast as it the model has
            to be: the whole 95 % interval. Both are proven right first; it takes
            ``seconds`` and what they take to compile. Without a name by which a child process can
            build the model, they are raced in this process.
        seconds: of timing.

    Returns:
        What was seen; its ``findings`` have the codes that the message of a failure has.

    Raises:
        NotAsExpected: it does not; the message has the line that is to blame, and what to change.
        InputError: what was asked for does not exist or cannot run here.
    """
    __tracebackhide__ = True
    import torch  # noqa: PLC0415 (as late as can be)

    from backbay import explain  # noqa: PLC0415 (likewise)
    from backbay.proof import Workload  # noqa: PLC0415 (torch)
    from backbay.workloads.function_model import FunctionModel, name_of  # noqa: PLC0415 (likewise)

    chosen = explain.selection(fail_on)
    module = model if isinstance(model, torch.nn.Module) else FunctionModel(model)
    workload = Workload(model=module, args=tuple(args), kwargs=dict(kwargs or {}))
    explanation = explain.run(
        workload,
        backend=backend,
        mode=mode,
        options=options,
        train=train,
        further_args=further_args,
    )
    expected = _Expected(
        graphs=graphs, breaks=breaks, recompiles=recompiles, fired=fired or {}, fail_on=chosen
    )
    problems = list(expected.problems(explanation))
    if not problems and faster_than is not None:
        problems = list(
            _slower(workload, backend, mode, options, faster_than, train=train, seconds=seconds)
        )
    if not problems:
        return explanation
    lines = "\n".join(f"  {line}" for line in problems)
    raise NotAsExpected(
        f"{name_of(module)} does not compile as it is meant to:\n{lines}", explanation
    )


@dataclass(frozen=True, kw_only=True)
class _Expected:
    """What an explanation is compared with."""

    graphs: int | None
    breaks: int | None
    recompiles: int | None
    fired: Mapping[str, int]
    fail_on: tuple[str, ...]

    def problems(self, found: "Explanation") -> Iterator[str]:
        """Yield what is not as expected, each with its lines and what to change."""
        if found.problem is not None:
            who = "the model itself, uncompiled" if found.problem.stage == "eager" else "compiled"
            yield f"{who}: {plain(found.problem.error)}"
            yield from (_at(x) for x in (found.problem.line, found.problem.raised_at) if x)
            return
        told = [*self._breaks(found), *self._graphs(found), *self._recompiles(found)]
        yield from told
        yield from self._chosen(found, told)
        yield from self._fired(found)

    def _breaks(self, found: "Explanation") -> Iterator[str]:
        if self.breaks is None or len(found.breaks) <= self.breaks:
            return
        yield f"{counted(len(found.breaks), 'graph break')}, and {self.breaks} allowed:"
        yield from _findings(found, lambda x: x.code in _BREAKS)

    def _graphs(self, found: "Explanation") -> Iterator[str]:
        first = [graph for graph in found.graphs if graph.call == 0]
        if self.graphs is None or len(first) == self.graphs:
            return
        yield f"{counted(len(first), 'graph')}, and {self.graphs} expected:"
        yield from (_at(graph.function) for graph in first[:_MOST])
        if not first:
            yield "  nothing was compiled: is there a tensor operation in it, or is it disabled?"

    def _recompiles(self, found: "Explanation") -> Iterator[str]:
        recompiled = sum(len(call.recompiles) for call in found.calls)
        if self.recompiles is None or recompiled <= self.recompiles:
            return
        yield f"{counted(recompiled, 'recompile')}, and {self.recompiles} allowed:"
        yield from _findings(found, lambda x: x.code.startswith("BB2"))

    def _chosen(self, found: "Explanation", told: Sequence[str]) -> Iterator[str]:
        """Yield findings that are not allowed, and that no other assertion has named."""
        from backbay.explain import failing  # noqa: PLC0415 (as late as can be)

        named = {x.split()[0] for x in told}
        left = [x for x in failing(found, self.fail_on) if x.code not in named]
        if left:
            yield f"{counted(len(left), 'finding')} of {', '.join(self.fail_on)}:"
            yield from _findings(found, lambda x: x in left)

    def _fired(self, found: "Explanation") -> Iterator[str]:
        ran = [
            one
            for graph in found.graphs
            if graph.call == 0
            for stage in graph.stages
            for one in stage.passes
        ]
        changes = Counter[str]()
        for one in ran:
            changes[one.name] += one.changes
        for name, expected in self.fired.items():
            if name not in changes:
                yield f"no pass {name!r} ran{_nearest(name, changes)}"
                continue
            if changes[name] == expected:
                continue
            yield f"{name} fired {changes[name]}x, and {expected}x expected"
            misses = [miss for one in ran if one.name == name for miss in one.near]
            for miss in misses[:_MOST]:
                yield f"  it nearly did, {plain(miss.pattern)} at {miss.node}: {plain(miss.reason)}"
                yield from [_at(miss.line)] if miss.line else []


def _nearest(name: str, known: Mapping[str, int]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f": did you mean {near[0]!r}?"
    return f"; those that did: {', '.join(known)}" if known else "; the backend reports none"


def _findings(
    explanation: "Explanation", wanted: "Callable[[FindingRecord], bool]"
) -> Iterator[str]:
    """Yield findings as a failure has them: code, what it is, the line, what to change."""
    for one in itertools.islice(filter(wanted, explanation.findings), _MOST):
        yield f"  {one.code} {plain(one.message)}"
        yield _at(one.line)
        if any(one.calls):
            names = [repr(explanation.calls[x].name) for x in one.calls]
            yield f"    in the call {', '.join(names)}"
        yield from (f"    change: {plain(fix)}" for fix in one.fixes)


def _at(line: str) -> str:
    return f"    at {plain(short(line))}"


def _slower(
    workload: "Workload",
    backend: BackendName | CompilerFn,
    mode: str | None,
    options: Mapping[str, Any] | None,
    faster_than: tuple[str, float],
    *,
    train: bool,
    seconds: float,
) -> Iterator[str]:
    """Yield why the model, raced with another backend, is not fast enough; nothing if it is."""
    from backbay import race  # noqa: PLC0415 (as late as can be)
    from backbay.decisions import Arm, parse_arm  # noqa: PLC0415 (likewise)
    from backbay.race.times import between  # noqa: PLC0415 (likewise)

    other, bar = str(parse_arm(faster_than[0])), faster_than[1]
    arm, given = _GIVEN, None
    if isinstance(backend, str):
        arm = str(Arm(backend=backend, mode=mode, options=dict(options or {})))
    else:
        given = {_GIVEN: backend}
    report = race.run(
        workload,
        backends=given,
        arms=[x for x in (arm, other) if x not in {_GIVEN, _EAGER}],
        train=train,
        limits=race.Limits(timing_s=seconds),
    )
    rows = {x.arm: x for x in report.results}
    unfit = [rows[x] for x in (other, arm) if rows[x].status != "ok" or not rows[x].samples_ms]
    for row in unfit:
        why = row.reason or (row.verdict.reason if row.verdict is not None else "it has no time")
        yield f"{row.arm} is {row.status}: {plain(why)}"
    if unfit:
        return
    value, interval = between(report, other, arm)
    if interval[0] > bar:
        return
    reading = ratio(value, interval)
    verdict = "is" if interval[1] <= bar else "cannot be told to be more:"
    yield f"{arm} {verdict} {reading} as fast as {other}, and more than {bar:g}x expected"
    yield from (f"  {plain(note)}" for note in (*report.notes, *rows[arm].notes))
    if interval[1] > bar:
        yield "    change: time it for longer, with seconds=..., on a machine that is idle"
