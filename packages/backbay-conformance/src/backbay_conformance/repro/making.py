"""Makes the program that shows one failure: of a graph if one shows it, else of the case itself."""

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from backbay_conformance.case import Case
from backbay_conformance.handler import CaseHandler
from backbay_conformance.repro.capturing import Captured, captured, case_of
from backbay_conformance.repro.checking import COMPARED, Check, words
from backbay_conformance.repro.minimising import minimised, operators, written
from backbay_conformance.repro.operators import of_operator
from backbay_conformance.repro.record import Made, Make
from backbay_conformance.repro.rendering import function, program
from backbay_conformance.repro.source import of_source
from backbay_conformance.running import run_case

_HANG_S = 20.0
_ALONE: frozenset[str] = COMPARED | {"fail_error", "crash"}
"""Statuses that a graph alone can show. A hang is not minimised: each try would last its limit."""


class ReproHandler:
    """Makes repros."""

    requests: ClassVar[Any] = Make

    def answer(self, request: Make) -> Made:
        """Return the reply to a request."""
        return made(request)


def made(request: Make) -> Made:
    """Make a repro; what cannot be done is in its note."""
    case = case_of(request.setup, request.id)
    why = "a graph alone does not show this kind of failure"
    if request.status in _ALONE:
        try:
            found = _of_graph(request, case)
        except Exception as error:  # noqa: BLE001 (a repro is a courtesy, the case's source is left)
            why = f"no graph could be made a program: {type(error).__name__}: {error}"
        else:
            if found is not None:
                return found
            why = "no graph that the backend was given fails alone"
    found = of_source(case, request.status, why, torch.device(request.setup.device))
    return found if found.body else of_operator(case, request, why) or found


def _of_graph(request: Make, case: Case) -> Made | None:
    end = time.monotonic() + request.seconds
    graphs = captured(request.setup, case)
    check = _check(request, case)
    for graph in graphs:
        if check(graph.graph_module, graph.inputs):
            return _smallest(graph, check, request, end - time.monotonic())
    return None


def _check(request: Make, case: Case) -> Check:
    handler = CaseHandler()
    handler.prepare(request.setup)
    compiler = handler.subject().watched.compiler
    reason = ""
    if request.status == "fail_error":
        reason = words(run_case(case, handler.subject()).reason)
    return Check(compiler, request.status, reason, _HANG_S)


def _smallest(graph: Captured, check: Check, request: Make, seconds: float) -> Made | None:
    """Minimise a graph that fails, and return its program."""
    module, inputs = graph.graph_module, list(graph.inputs)
    before, notes = operators(module), []
    if before > request.nodes:
        notes.append(f"not minimised: it has {before} operators, the limit is {request.nodes}")
    elif before > 1:
        module, inputs = minimised(module, inputs, check, seconds)
    module, inputs = _used(module, check.leaves(inputs))
    text = function(module)
    expressions = written(inputs, lambda values: check(module, values))
    if text is None or expressions is None:
        return None
    source = _compiled_text(text)
    trains, has_truth = check.trains(source, inputs), check.has_truth(source, inputs)
    body = program(text[1], expressions, request.status, train=trains, has_truth=has_truth)
    return Made(
        imports=tuple(text[0]),
        body=body,
        kind="graph",
        nodes=operators(module),
        nodes_before=before,
        note="; ".join(notes),
    )


def _used(
    module: torch.fx.GraphModule, inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Leave out the inputs that nothing uses."""
    placeholders = [x for x in module.graph.nodes if x.op == "placeholder"]
    kept = [x for x, node in zip(inputs, placeholders, strict=True) if node.users]
    for node in placeholders:
        if not node.users:
            module.graph.erase_node(node)
    module.recompile()
    return module, kept


def _compiled_text(text: tuple[list[str], str]) -> Callable[..., Any]:
    """Return the function that the program will have."""
    space: dict[str, Any] = {"torch": torch}
    exec("\n".join([*text[0], text[1]]), space)  # noqa: S102 (what torch.fx wrote)
    made: Callable[..., Any] = space["f"]
    return made
