"""Calls of kernels, taken together where they are the same: of all layers of a model, one entry."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from backbay.diagnose.record import CompiledGraph, KernelRecord, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls of one kernel for the same lines, in one graph."""

    graph: CompiledGraph
    place: int
    """Of the first of them, among the graph's kernels."""
    kernels: tuple[KernelRecord, ...]

    @property
    def first(self) -> KernelRecord:
        """The first of them."""
        return self.kernels[0]

    @property
    def function(self) -> str:
        """The kernel's name in the generated code."""
        return without_number(self.first.name)

    @property
    def line(self) -> str:
        """The user's line that the kernel's result belongs to; empty where nobody knows it."""
        return self.first.lines[-1] if self.first.lines else ""

    @property
    def anchor(self) -> str:
        """An id for a page."""
        return f"kernel-{self.graph.number}-{self.place}"

    @property
    def ms(self) -> float | None:
        """Of a step; ``None`` where the profiler saw none of them."""
        known = [x.ms for x in self.kernels if x.ms is not None]
        return sum(known) if known else None

    @property
    def share(self) -> float | None:
        """Of the time of all kernels."""
        known = [x.share for x in self.kernels if x.share is not None]
        return sum(known) if known else None

    @property
    def bytes(self) -> int | None:
        """That they read and write."""
        return sum(x.bytes or 0 for x in self.kernels) or None

    @property
    def operations(self) -> int | None:
        """Floating-point operations."""
        return sum(x.operations or 0 for x in self.kernels) or None

    @property
    def of_limit(self) -> float | None:
        """How near they are to the machine's limit, taken together."""
        return of_limit(self.kernels)


def together(graphs: Iterable[CompiledGraph]) -> list[Calls]:
    """Take the calls of each kernel together; what takes longest comes first."""
    every = [one for graph in graphs for one in _of_graph(graph)]
    return sorted(every, key=lambda x: -(x.ms or 0.0))


def _of_graph(graph: CompiledGraph) -> Iterator[Calls]:
    found = defaultdict[tuple[str, tuple[str, ...]], list[int]](list)
    for place, kernel in enumerate(graph.kernels):
        found[without_number(kernel.name), kernel.lines].append(place)
    for places in found.values():
        kernels = tuple(graph.kernels[x] for x in places)
        yield Calls(graph=graph, place=places[0], kernels=kernels)


def without_number(name: str) -> str:
    """Return a kernel's name without the number of its call."""
    return name.rpartition(":")[0] or name


def of_limit(kernels: Iterable[KernelRecord]) -> float | None:
    """Return the share of their time that kernels would take at the limit.

    Kernels of which Inductor counts nothing are left out.
    """
    counted = [(x.ms, x.of_limit) for x in kernels if x.ms and x.of_limit is not None]
    whole = sum(ms for ms, _ in counted)
    return sum(ms * part for ms, part in counted) / whole if whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What one kind of work takes of a step."""

    work: Work
    ms: float
    of_limit: float | None
    counted_ms: float
    """The part of it that Inductor has counted, and that can be held against the limit."""
    gain_ms: float
    """What that part would save at the limit."""


def kinds(calls: Sequence[Calls]) -> list[Kind]:
    """Return what each kind of work takes; what takes longest comes first."""
    found = defaultdict[Work, list[KernelRecord]](list)
    for kernel in (x for one in calls for x in one.kernels if x.ms):
        found[kernel.work].append(kernel)
    every = [_kind(work, kernels) for work, kernels in found.items()]
    return sorted(every, key=lambda x: -x.ms)


def _kind(work: Work, kernels: Sequence[KernelRecord]) -> Kind:
    counted = [(x.ms, x.of_limit) for x in kernels if x.ms and x.of_limit is not None]
    return Kind(
        work=work,
        ms=sum(x.ms or 0.0 for x in kernels),
        of_limit=of_limit(kernels),
        counted_ms=sum(ms for ms, _ in counted),
        gain_ms=sum(ms * max(0.0, 1 - part) for ms, part in counted),
    )
