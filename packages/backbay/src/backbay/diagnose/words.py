"""How a diagnosis reads: the same words in the terminal and on the page."""

from collections.abc import Iterator, Sequence

from backbay.diagnose.record import CompiledGraph, LimitRecord, StepRecord
from backbay.reporting.wording import NOTHING

UNCOMPILED = "uncompiled operators"


def shares(step: StepRecord) -> Iterator[tuple[str, float]]:
    """Yield where a step's milliseconds go: kinds of work in kernels, then the rest."""
    yield from step.by_work.items()
    yield from others(step)


def share(ms: float, step: StepRecord) -> str:
    """Word the share that milliseconds of a step's parts have of all of them."""
    return percent(ms / step.parts_ms if step.parts_ms else None)


def others(step: StepRecord) -> Iterator[tuple[str, float]]:
    """Yield what takes time and is no kernel of a compiled graph."""
    found = (
        (UNCOMPILED, step.outside_ms),
        ("copies between devices", step.copies_ms),
        ("guards", step.guards_ms),
        ("rest of the host", step.host_ms),
    )
    yield from ((name, ms) for name, ms in found if ms)


def unfused(graphs: Sequence[CompiledGraph]) -> Iterator[tuple[CompiledGraph, str, str, str]]:
    """Yield kernels of Inductor's own that were not fused: of torch's own nothing can be.

    Each with its graph, what it reads from, itself, and Inductor's reason.
    """
    generated = {(g.number, k.name) for g in graphs for k in g.kernels if k.kind != "extern"}
    for graph in graphs:
        for kernel in graph.kernels:
            for x in kernel.not_fused:
                if {(graph.number, kernel.name), (graph.number, x.kernel)} <= generated:
                    yield graph, x.kernel, kernel.name, x.reason


def limit(of: LimitRecord) -> str:
    """Word what a machine can do."""
    return (
        f"{of.copy_bytes_s / 1e9:.3g} GB/s copied, "
        f"{of.product_operations_s / 1e9:.3g} Gflop/s in a matrix product"
    )


def percent(value: float | None) -> str:
    """Word a share."""
    return NOTHING if value is None else f"{value:.0%}"
