"""Puts together what a watch saw: one record for each thing, in words, nothing twice."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backbay.explain import guards
from backbay.explain.calls import Calls
from backbay.explain.findings import findings
from backbay.explain.functions import Function
from backbay.explain.record import (
    BreakRecord,
    CallRecord,
    Explanation,
    GraphRecord,
    PassRecord,
    ProblemRecord,
    ReasonRecord,
    RecompileRecord,
    Settings,
    StageRecord,
)
from backbay.explain.watching import Captured, Event
from backbay.kit.backend import Backend
from backbay.reporting import breaks, reasons
from backbay.reporting.lines import Place, own
from backbay.reporting.wording import counted

_NO_NAME = re.compile(r"[^a-zA-Z0-9]+")
_RESUMED = "torch_dynamo_resume_in_"


def assembled(
    run: Calls,
    *,
    function: Function | None,
    settings: Settings,
    created: str,
    versions: Mapping[str, str],
    kit: Backend | None,
    options: Mapping[str, Any],
) -> Explanation:
    """Return the explanation.

    Args:
        run: what was seen.
        function: the model, where it is a plain function.
        settings: what was asked for.
        created: UTC, ISO 8601.
        versions: distribution to version.
        kit: the backend, where it is one of Backbay's kit.
        options: of the backend.
    """
    watch = run.watch
    events = watch.events if function is None else function.renamed(watch.events)
    seen = _Seen(events, function)
    found = tuple(_graph(n, x, seen) for n, x in enumerate(watch.graphs))
    broken = _breaks(events, seen)
    known = {call: _located(x, seen, call) for call, x in run.problems.items()}
    made = tuple(
        CallRecord(
            name=name,
            graphs=sum(x.call == number for x in watch.graphs),
            recompiles=tuple(
                _recompile(x, seen, watch.graphs)
                for x in events
                if x.call == number and x.kind == "recompile_reasons"
            ),
            problem=known.get(number),
        )
        for number, name in enumerate(run.names)
    )
    problem = next((known[x] for x in sorted(known)), None)
    return Explanation(
        created=created,
        versions=dict(versions),
        settings=settings,
        sentence=_sentence(found, broken, made, known),
        findings=findings(found, broken, made, problem, run.fell),
        graphs=found,
        breaks=broken,
        calls=made,
        problem=problem,
        notes=(*run.notes, *_notes(settings, found, made, kit, options)),
    )


class _Seen:
    """Torch's events, by what they are of."""

    def __init__(self, events: Iterable[Event], function: Function | None) -> None:
        self._model = function
        self.metrics: dict[str, dict[str, Any]] = {}
        self.trees: dict[str, str] = {}
        self.failed: list[Event] = []
        self._sources: dict[str, dict[str, str]] = {}
        self._files = set[str]()
        for event in events:
            match event.kind:
                case "compilation_metrics":
                    self.metrics[event.compile_id] = event.data
                    self._files.add(str(event.data.get("co_filename")))
                    if event.data.get("fail_reason"):
                        self.failed.append(event)
                case "dynamo_cpp_guards_str":
                    self.trees[event.compile_id] = event.payload
                case "create_symbol":
                    sources = self._sources.setdefault(event.compile_id, {})
                    sources[str(event.data.get("source"))] = str(event.data.get("symbol"))

    def function(self, compile_id: str) -> str:
        """Name the function that was traced, and where it is."""
        metrics = self.metrics.get(compile_id, {})
        if not metrics.get("co_name"):  # torch gave up before it noted the function
            metrics = self.metrics.get(f"{compile_id.partition('/')[0]}/0", {})
        name, file = metrics.get("co_name"), metrics.get("co_filename")
        if not name or not file:
            return ""
        number = metrics.get("co_firstlineno")
        if self._model is not None and self._model.is_called_in(file):
            name, file, number = self._model.name, self._model.file, self._model.number
        if name.startswith(_RESUMED):
            original = name.removeprefix(_RESUMED).rpartition("_at_")[0]
            return f"{original}, resumed after a break ({file}:{number})"
        return f"{name} ({file}:{number})"

    def dynamic(self, compile_id: str) -> dict[str, str]:
        """Return the symbols of one version, and what each stands for."""
        return {symbol: source for source, symbol in self._sources.get(compile_id, {}).items()}

    def newly_dynamic(self, compile_id: str) -> dict[str, str]:
        """Return the symbols of which no earlier version of the function had the size dynamic."""
        frame, _, version = compile_id.partition("/")
        earlier = (f"{frame}/{n}" for n in range(int(version) if version.isdecimal() else 0))
        known = {source for x in earlier for source in self._sources.get(x, {})}
        return {k: v for k, v in self.dynamic(compile_id).items() if v not in known}

    def whole(self, line: str) -> str:
        """Return a line with its file's whole path, of which torch writes the end only."""
        end = line.partition(":")[0]
        found = [x for x in self._files if end and x.endswith(f"/{end}")]
        return f"{found[0]}{line[len(end) :]}" if len(found) == 1 else line


def _graph(number: int, graph: Captured, seen: _Seen) -> GraphRecord:
    return GraphRecord(
        number=number,
        compile_id=graph.compile_id,
        call=graph.call,
        function=seen.function(graph.compile_id),
        dynamic=seen.dynamic(graph.compile_id),
        nodes=graph.nodes,
        operators=graph.operators,
        groups=graph.groups,
        guards=tuple(
            msgspec.structs.replace(x, line=seen.whole(x.line))
            for x in guards.parse(seen.trees.get(graph.compile_id, ""))
        ),
        stages=tuple(
            StageRecord(graph=x.graph, passes=tuple(x.passes), before=x.before, after=x.after)
            for x in graph.stages
        ),
    )


def _breaks(events: Iterable[Event], seen: _Seen) -> tuple[BreakRecord, ...]:
    """Return each break once; tracing meets many of them again: in a resumed or inner function."""
    every: list[BreakRecord] = []
    told = set[str]()
    for event in events:
        if event.kind == "dynamo_graph_break_reason":
            told.add(event.compile_id)
            every.append(_break(breaks.parse(event.payload), event, seen))
    for event in seen.failed:
        data = event.data
        failed = breaks.is_failure(data.get("fail_type"), data["fail_reason"])
        if event.compile_id in told or not failed:
            continue
        found_there = breaks.parse_failure(
            str(data["fail_reason"]),
            data.get("fail_user_frame_filename"),
            data.get("fail_user_frame_lineno"),
        )
        every.append(_break(found_there, event, seen))
    found: dict[tuple[str, str], BreakRecord] = {}
    for one in every:
        first = found.setdefault((one.reason, one.line), one)
        found[one.reason, one.line] = msgspec.structs.replace(
            first,
            skipped=first.skipped or one.skipped,
            calls=tuple(dict.fromkeys((*first.calls, *one.calls))),
        )
    return tuple(found.values())


def _break(broken: breaks.GraphBreak, event: Event, seen: _Seen) -> BreakRecord:
    function = seen.function(event.compile_id)
    known = msgspec.structs.asdict(broken)
    return BreakRecord(**known, function=function, calls=(event.call,))


def _recompile(event: Event, seen: _Seen, graphs: Sequence[Captured]) -> RecompileRecord:
    found = [
        msgspec.structs.replace(x, line=seen.whole(x.line))
        for x in guards.parse_reasons(event.payload)
    ]
    why = reasons.told([x.failed for x in found])
    metrics = seen.metrics.get(event.compile_id, {})
    return RecompileRecord(
        compile_id=event.compile_id,
        function=seen.function(event.compile_id),
        reasons=tuple(found),
        dynamic=seen.newly_dynamic(event.compile_id),
        kind=why.kind,
        subject=why.subject,
        says=why.words,
        was=why.was,
        line=_depending(found, why, seen, graphs),
        compile_s=metrics.get("entire_frame_compile_time_s"),
        limit=breaks.LIMIT in str(metrics.get("fail_reason")),
    )


def _depending(
    found: Sequence[ReasonRecord], why: reasons.Reason, seen: _Seen, graphs: Sequence[Captured]
) -> str:
    """Return the user's line by which compiled code depends on what changed.

    Where torch does not say it of a tensor's size, it is the one that uses the tensor first.
    """
    one = next((x for x in found if x.says == why.words), None)
    if one is None or one.line or not why.tensor:
        return one.line if one is not None else ""
    for guard in guards.parse(seen.trees.get(one.version, "")):
        if reasons.plainly(guard.source) != why.tensor:
            continue
        if guard.line and own([Place(guard.line.partition(":")[0], 0, "")]):
            return seen.whole(guard.line)
        graph = next((x for x in graphs if x.compile_id == one.version), None)
        name = _NO_NAME.sub("_", guard.source)  # as Dynamo names an input
        inputs = {x.name for x in graph.nodes if x.target == name} if graph is not None else set()
        if graph is not None and inputs:
            lines = (x.line for x in graph.nodes if inputs.intersection(x.inputs))
            return next(filter(None, lines), "")
    return ""


def _located(problem: ProblemRecord, seen: _Seen, call: int) -> ProblemRecord:
    """Add the line, where only torch's metrics know it: that of the function being compiled."""
    if problem.line or problem.stage == "eager":
        return problem
    failed = [x.data for x in seen.failed if x.call == call]
    if not failed:
        return problem
    metrics = failed[-1]
    place = Place(metrics["co_filename"], metrics["co_firstlineno"], metrics["co_name"])
    if "/torch/_dynamo/" in Path(place.file).as_posix():  # around a module of torch's own
        return problem
    return msgspec.structs.replace(problem, line=str(place))


def _sentence(
    graphs: Sequence[GraphRecord],
    broken: Sequence[BreakRecord],
    calls: Sequence[CallRecord],
    problems: Mapping[int, ProblemRecord],
) -> str:
    if -1 in problems:
        return "the model itself raised, before anything was compiled"
    first = sum(x.call == 0 for x in graphs)
    again = sum(len(x.recompiles) for x in calls)
    parts = [counted(first, "graph"), counted(len(broken), "graph break")]
    if len(calls) > 1:
        parts.append(counted(again, "recompile"))
    fired = Counter[str]()
    for one in _passes(x for x in graphs if x.call == 0):
        fired[one.name] += one.changes
    parts += [f"{name} fired {changes}x" for name, changes in fired.items() if changes]
    if problems:
        parts.append("and then it failed")
    return ", ".join(parts)


def _passes(graphs: Iterable[GraphRecord]) -> Iterator[PassRecord]:
    return (one for graph in graphs for stage in graph.stages for one in stage.passes)


def _notes(
    settings: Settings,
    graphs: Sequence[GraphRecord],
    calls: Sequence[CallRecord],
    kit: Backend | None,
    options: Mapping[str, Any],
) -> Iterator[str]:
    if not calls:
        return
    if not graphs:
        yield "Dynamo handed over no graph: nothing was compiled, and the model ran eagerly"
    ran = {(x.name, x.level) for x in _passes(graphs)}
    if settings.backend is None:
        yield "no backend was named: graphs are shown as Dynamo hands them over, and ran eagerly"
    elif kit is None and not ran:
        yield (
            f"{settings.backend} is not made with Backbay's kit: what it does inside is not seen"
        )
    elif kit is not None and not kit.passes and not ran:
        yield f"{settings.backend} has no passes"
    for one in kit.passes if kit is not None and graphs else ():
        if one.configured(options).enabled and (one.name, one.level) not in ran:
            yield f"pass {one.name}, of level {one.level}, did not run: there was no such graph"
