"""An explanation as one HTML file, without a script."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from backbay.decisions import options_text
from backbay.explain import words
from backbay.explain.boxes import marks, outline, picture
from backbay.explain.codes import CODES
from backbay.explain.drawing import svg
from backbay.explain.record import Explanation, GraphRecord, NodeRecord, Settings
from backbay.reporting.page import command, compiled_as, rendered
from backbay.reporting.reasons import plainly


def write_page(explanation: Explanation, path: str | Path) -> None:
    """Write an explanation's page to a file."""
    Path(path).write_text(page(explanation), encoding="utf-8")


def page(explanation: Explanation) -> str:
    """Return an explanation's page; the same explanation always gives the same text."""
    settings = explanation.settings
    return rendered(
        "backbay.explain",
        explanation,
        noun="explanation",
        sheets=_sheets(explanation.graphs),
        words=words,
        codes=[x for x in CODES.values() if x.code in {y.code for y in explanation.findings}],
        plainly=plainly,
        command=command(
            "explain",
            [settings.workload],
            _chosen(settings),
            mode=settings.mode,
            dtype=settings.dtype,
            device=settings.device,
            seed=settings.seed,
        ),
    )


def _chosen(settings: Settings) -> Iterator[str]:
    if settings.backend is not None:
        yield from ("--backend", settings.backend)
    if settings.compile_mode is not None:
        yield from ("--mode", settings.compile_mode)
    if settings.options:
        yield from ("--options", options_text(settings.options))
    yield from compiled_as(settings.dynamic, fullgraph=settings.fullgraph)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One drawing of a graph."""

    title: str
    svg: str
    remark: str


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One graph, drawn as it was handed over and as passes left it."""

    graph: GraphRecord
    same_as: int | None
    """The graph that it differs from in sizes only: that one is drawn."""
    drawings: tuple[Drawing, ...]


def _sheets(graphs: Sequence[GraphRecord]) -> list[Sheet]:
    drawn: dict[tuple[object, ...], int] = {}
    sheets: list[Sheet] = []
    for graph in graphs:
        key = outline(graph.nodes, graph.stages)
        same = drawn.setdefault(key, graph.number)
        known = same if same != graph.number else None
        found = () if known is not None else tuple(_drawings(graph))
        sheets.append(Sheet(graph=graph, same_as=known, drawings=found))
    return sheets


def _drawings(graph: GraphRecord) -> list[Drawing]:
    first = next((x for x in graph.stages if x.graph == "dynamo" and x.after is not None), None)
    gone = marks(graph.nodes, first.after)[0] if first is not None and first.after else {}
    drawings = [_drawn("As Dynamo hands it over", graph.nodes, graph.groups, gone)]
    for stage in graph.stages:
        if stage.after is None:
            continue
        gone, made = marks(stage.before, stage.after)
        name = words.which(stage)
        if stage is not first:
            drawings.append(_drawn(f"{name}, before its passes", stage.before, (), gone))
        drawings.append(_drawn(f"{name}, after its passes", stage.after, (), made))
    return drawings


def _drawn(
    title: str,
    nodes: Sequence[NodeRecord],
    groups: Sequence[Sequence[str]],
    marked: dict[str, str],
) -> Drawing:
    found = picture(nodes, groups, marked)
    return Drawing(title=title, svg=svg(found, title), remark=found.remark)
