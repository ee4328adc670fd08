"""Findings: what an explanation says to know and to change, under codes that tests can rely on.

They are made of the explanation's own records, and of the compile log; nothing is measured here.
What is met several times at one line, for one reason, is one finding with a count.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from backbay.compile_log import Record
from backbay.explain import advice
from backbay.explain.codes import CODES, selects
from backbay.explain.record import (
    BreakRecord,
    CallRecord,
    FindingRecord,
    GraphRecord,
    NodeRecord,
    ProblemRecord,
    RecompileRecord,
)

_RANK = ("error", "warning", "note")
_WIDTHS = {"float8_e4m3fn": 8, "float8_e5m2": 8, "bfloat16": 16, "float16": 16, "float32": 32,
           "float64": 64}  # fmt: skip
_CASTS = {"to", "type", "type_as", "copy_", "float", "double", "half", "bfloat16", "set_"}
_ON_HOST = {"item", "tolist", "nonzero", "masked_select", "unique", "unique_consecutive"}
_ON_MODULE = "allow_unspec_int_on_nn_module"
_NUMBER_DYNAMIC = (
    "keep what changes at every call in a tensor, for example in a buffer",
    f"to have the module's numbers dynamic, set torch._dynamo.config.{_ON_MODULE} = True",
)
_COMPILED_APART = (0, 1)
_FROM_TWO = ("begin with a size of at least 2: torch compiles for 0 and for 1 by themselves",)
_WITH_BREAKS = ("remove the graph breaks that are listed",)
_WITHOUT_BREAKS = (
    "have it compute with tensors: what returns its inputs, or a constant, has nothing to compile",
    "let Dynamo trace it: torch.jit, TORCH_COMPILE_DISABLE and torch.compiler.set_stance stop it",
)
_RECOMPILED = {"size": "BB201", "value": "BB202", "other": "BB203"}


def findings(
    graphs: Sequence[GraphRecord],
    breaks: Sequence[BreakRecord],
    calls: Sequence[CallRecord],
    problem: ProblemRecord | None,
    fell: Sequence[Record],
) -> tuple[FindingRecord, ...]:
    """Return what is found, the gravest first.

    Args:
        graphs: all that Dynamo handed over.
        breaks: as counted.
        calls: that were made.
        problem: the first that was raised.
        fell: what the compile log has of other backends that ran.
    """
    found = [
        *_failed(problem, graphs),
        *(_broken(x) for x in breaks),
        *_nothing_compiled(graphs, breaks, calls, problem),
        *_recompiled(calls),
        *_in_graphs([x for x in graphs if x.call == 0], {x.line for x in breaks}),
        *_near_misses([x for x in graphs if x.call == 0]),
        *_fell_back(fell),
    ]
    return tuple(sorted(_merged(found), key=lambda x: _RANK.index(x.severity)))


class Findings(Protocol):
    """A report that has findings: an explanation, or a diagnosis."""

    @property
    def findings(self) -> Sequence[FindingRecord]:
        """What is found."""


def failing(report: Findings, chosen: Iterable[str]) -> tuple[FindingRecord, ...]:
    """Return the findings whose codes are chosen, as `backbay.explain.codes.selection` has them."""
    codes = tuple(chosen)
    return tuple(x for x in report.findings if selects(codes, x.code))


def finding(
    code: str,
    message: str,
    line: str,
    *,
    fixes: Sequence[str] = (),
    cost_s: float | None = None,
    calls: Sequence[int] = (),
) -> FindingRecord:
    """Return a finding; without fixes of its own, it has its code's."""
    known = CODES[code]
    usual = f"{known.fix[0].lower()}{known.fix[1:].rstrip('.')}"
    return FindingRecord(
        code=code,
        severity=known.severity,
        message=message,
        line=line,
        fixes=tuple(fixes) or (usual,),
        count=1,
        cost_s=cost_s,
        calls=tuple(calls),
        page=known.page,
    )


def _merged(found: Iterable[FindingRecord]) -> Iterator[FindingRecord]:
    """Yield what was met several times once, with a count."""
    alike: dict[tuple[str, str, str], list[FindingRecord]] = {}
    for one in found:
        alike.setdefault((one.code, one.message, one.line), []).append(one)
    for same in alike.values():
        costs = [x.cost_s for x in same if x.cost_s is not None]
        yield msgspec.structs.replace(
            same[0],
            count=sum(x.count for x in same),
            cost_s=sum(costs) if costs else None,
            calls=tuple(sorted({call for x in same for call in x.calls})),
        )


def _failed(
    problem: ProblemRecord | None, graphs: Sequence[GraphRecord]
) -> Iterator[FindingRecord]:
    if problem is not None:
        code = "BB603" if problem.stage == "eager" else "BB602"
        yield finding(code, problem.error, problem.line)
    for graph in graphs:
        for stage in graph.stages:
            for one in stage.passes:
                if one.error:
                    yield finding("BB502", one.error, "", calls=(graph.call,))


def _broken(broken: BreakRecord) -> FindingRecord:
    advised = advice.of(broken)
    code, words = advised.code, advised.words
    if broken.skipped:
        name = broken.function.partition(" (")[0] or "the function"
        code, words = (
            "BB105",
            f"{words}, and {name} can't be resumed there: all of it is uncompiled",
        )
    line = broken.line or broken.function
    return finding(code, words, line, fixes=advised.fixes, calls=broken.calls)


def _nothing_compiled(
    graphs: Sequence[GraphRecord],
    breaks: Sequence[BreakRecord],
    calls: Sequence[CallRecord],
    problem: ProblemRecord | None,
) -> Iterator[FindingRecord]:
    if calls and not graphs and problem is None:
        words = "the backend was given no graph: the model runs uncompiled"
        yield finding("BB106", words, "", fixes=_WITH_BREAKS if breaks else _WITHOUT_BREAKS)


def _recompiled(calls: Sequence[CallRecord]) -> Iterator[FindingRecord]:
    """Yield a finding for each thing that changed; of a value, every change is the same finding."""
    every = [(number, one) for number, call in enumerate(calls) for one in call.recompiles]
    changes = Counter((_frame(one), one.subject) for _, one in every)
    alike: dict[tuple[str, str, str], list[tuple[int, RecompileRecord]]] = {}
    for number, one in every:
        code = _RECOMPILED[one.kind]
        # A size that changes a second time was not dynamic, whatever torch meant it to be.
        if code == "BB201" and one.dynamic and changes[_frame(one), one.subject] == 1:
            code = "BB205"
        # Once dynamic is once for each function: where each begins is of no use.
        place = one.line or one.function if code != "BB205" else ""
        alike.setdefault((code, one.subject, place), []).append((number, one))
        if one.limit:
            yield _at_limit(number, one)
    for (code, *_), found in alike.items():
        first = found[0][1]
        costs = [x.compile_s for _, x in found if x.compile_s is not None]
        made = finding(
            code,
            first.says,
            first.line or first.function,
            fixes=_fixes(code, first),
            cost_s=sum(costs) if costs else None,
            calls=tuple(dict.fromkeys(number for number, _ in found)),
        )
        yield msgspec.structs.replace(made, count=len(found))


def _fixes(code: str, one: RecompileRecord) -> tuple[str, ...]:
    """Return what to do about a recompile; empty where its code says it."""
    if code == "BB202" and _is_modules(one):
        return _NUMBER_DYNAMIC
    return _FROM_TWO if code == "BB205" and one.was in _COMPILED_APART else ()


def _frame(one: RecompileRecord) -> str:
    return one.compile_id.partition("/")[0]


def _is_modules(one: RecompileRecord) -> bool:
    """Whether what changed is a number of a module's, of which torch has a word to say."""
    return any(_ON_MODULE in x.hint for x in one.reasons)


def _at_limit(call: int, one: RecompileRecord) -> FindingRecord:
    name = one.function.partition(" (")[0] or "a function"
    times = one.compile_id.partition("/")[2]
    return finding(
        "BB204",
        f"{name} was compiled {times} times, and torch compiles it no more; {one.says}",
        one.function,
        calls=(call,),
    )


def _in_graphs(graphs: Sequence[GraphRecord], broken: set[str]) -> Iterator[FindingRecord]:
    for graph in graphs:
        known = {x.name: x for x in graph.nodes}
        for node in graph.nodes:
            if not node.op.startswith("call_"):
                continue
            inputs = [known[x] for x in node.inputs if x in known]
            for made in _of_node(node, [x for x in inputs if x.device]):
                if made.code == "BB301" and node.line in broken:
                    continue  # a break is there, and says so
                yield msgspec.structs.replace(made, calls=(graph.call,))


def _of_node(node: NodeRecord, inputs: Sequence[NodeRecord]) -> Iterator[FindingRecord]:
    if inputs and node.target in _ON_HOST:
        yield finding("BB301", f"{node.target} makes the host wait for the device", node.line)
    sized = [x for x in inputs if x.shape != "scalar"]
    sources = {x.device for x in sized}
    if node.device and sources and node.device not in sources:
        source = ", ".join(sorted(sources))
        words = f"{node.target} copies a tensor from {source} to {node.device}"
        yield finding("BB302", words, node.line)
    dtypes = sorted({x.dtype for x in sized if x.dtype in _WIDTHS}, key=lambda x: _WIDTHS[x])
    if len(dtypes) > 1 and node.dtype == dtypes[-1] and node.target not in _CASTS:
        mixed = " and ".join(dtypes)
        words = f"{node.target} mixes {mixed}, and computes in {node.dtype}"
        yield finding("BB401", words, node.line)


def _near_misses(graphs: Sequence[GraphRecord]) -> Iterator[FindingRecord]:
    for graph in graphs:
        for stage in graph.stages:
            for one in stage.passes:
                for miss in one.near:
                    words = f"{one.name} nearly rewrites {miss.pattern}: {miss.reason}"
                    yield finding("BB501", words, miss.line, calls=(graph.call,))


def _fell_back(fell: Sequence[Record]) -> Iterator[FindingRecord]:
    for one in fell:
        yield finding("BB601", f"{one.ran} ran in place of {one.asked}: {one.why}", "")
