"""Looks inside of what Inductor compiled: kernel by kernel, with the user's lines and its time."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._dynamo.utils import calculate_time_spent, compilation_time_metrics

from backbay.diagnose.inductor import Graph, InductorWatch, Kernel
from backbay.diagnose.limits import limit
from backbay.diagnose.profiling import Spent, profiled
from backbay.diagnose.record import (
    CompiledGraph,
    KernelRecord,
    LimitRecord,
    NeighbourRecord,
    OutsideRecord,
    StepRecord,
    WhiteBox,
    Work,
)
from backbay.diagnose.subject import Subject
from backbay.diagnose.uncompiled import lines_of, operator
from backbay.reporting.lines import innermost, places
from backbay.timing import stats
from backbay.timing.interval import Interval
from backbay.timing.rounds import plan

_FEWEST_STEPS, _MOST_STEPS = 3, 20
_AMPERE = (8, 0)
"""The first whose matrix units have TF32."""
_WORKS: tuple[tuple[Work, tuple[str, ...]], ...] = (
    ("attention", ("attention", "sdpa")),
    ("convolution", ("conv",)),
    ("gemm", ("mm", "linear", "matmul", "_baddbmm")),
    ("copy", ("copy_", "_to_copy")),
)
"""Kinds of work of kernels that torch has, and of templates, by parts of their operators' names."""
_TOTAL = "total_wall_time"
_WAITED, _COMPILED = "async_compile.wait", "compile_file"
_PHASES = {
    "Dynamo": (("entire_frame_compile",), ("backend_compile",)),
    "AOTAutograd": (("backend_compile", "entire_backward_compile"), ("inductor_compile",)),
    "lowering": (("inductor_compile",), ("code_gen",)),
    "code generation": (("code_gen",), (_WAITED,)),
    "compiling kernels": ((_WAITED,), ()),
    "autotuning": (("CachingAutotuner.benchmark_all_configs",), ()),
}
"""Phase to torch's names of what it lasts, and of what inside of it is another phase."""


def look(subject: Subject, timing_s: float) -> WhiteBox:
    """Compile a workload, watch Inductor, and measure a step.

    Args:
        subject: it as it is compiled.
        timing_s: seconds for the timing of a step, and as many for its profile.
    """
    watch, compiling = InductorWatch(), Compiling()
    with watch.on():
        side = subject.compile(calls_again=False)
    phases = compiling.phases_s()
    wall_ms, wall_ci_ms, step_s = _wall(subject, timing_s)
    steps = min(max(int(timing_s / step_s), _FEWEST_STEPS), _MOST_STEPS)
    spent: Spent = subject.running(
        lambda run: profiled(run, steps, subject.device, watch.graphs), steady=subject.steady
    )
    return white_box(
        watch.graphs,
        spent,
        wall_ms=wall_ms,
        wall_ci_ms=wall_ci_ms,
        measured=limit(subject.device, dtype_of(subject)),
        phases_s=phases,
        compile_s=side.compile_s,
        peak_bytes=subject.peak_bytes(),
        uncompiled=lines_of(subject) if spent.outside else {},
    )


def could_be_tf32(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether matrix products in a dtype would be faster in TF32, which torch doesn't use now."""
    if device.type != "cuda" or dtype != torch.float32 or torch.version.hip is not None:
        return False
    has = torch.cuda.get_device_capability(device) >= _AMPERE
    return has and torch.get_float32_matmul_precision() == "highest"


def white_box(
    compiled: Sequence[Graph],
    spent: Spent,
    *,
    wall_ms: float,
    wall_ci_ms: Interval,
    measured: LimitRecord,
    phases_s: Mapping[str, float],
    compile_s: float,
    peak_bytes: int | None,
    uncompiled: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> WhiteBox:
    """Return what was seen inside of Inductor, and of a step.

    Args:
        compiled: Inductor's graphs.
        spent: where a profiled step's time went.
        wall_ms: of a step, without the profiler.
        wall_ci_ms: its interval.
        measured: what this machine can do.
        phases_s: phase of compiling to seconds.
        compile_s: seconds of all compiling.
        peak_bytes: memory of a step; ``None``: not known.
        uncompiled: lines of what runs so, by operator.
    """
    graphs = tuple(_graph(n, x, spent, measured) for n, x in enumerate(compiled))
    nothing = "nothing was compiled by Inductor: its kernels are not seen"
    outside = sorted(spent.outside.items(), key=lambda x: -x[1])
    return WhiteBox(
        graphs=graphs,
        outside=tuple(
            OutsideRecord(name=name, ms=ms, lines=uncompiled.get(operator(name), ()))
            for name, ms in outside
        ),
        step=_step(graphs, spent, (wall_ms, wall_ci_ms), peak_bytes),
        limit=measured,
        phases_s=dict(phases_s),
        compile_s=compile_s,
        notes=() if graphs else (nothing,),
    )


class Compiling:
    """What compiling took since it was made."""

    def __init__(self) -> None:
        self._before = _spent()

    def phases_s(self) -> dict[str, float]:
        """Return seconds by phase."""
        return dict(_phases(self._before, _spent()))

    def seconds(self) -> float:
        """Return all of them, as torch counts them."""
        return _spent()[_TOTAL] - self._before[_TOTAL]


def _wall(subject: Subject, timing_s: float) -> tuple[float, tuple[float, float], float]:
    step_s = subject.seconds(warmups=1, calls=1, steady=subject.steady)
    chosen = plan({"step": step_s}, timing_s)
    calls = chosen.calls["step"]
    samples = [
        1e3 * subject.seconds(warmups=1, calls=calls, steady=subject.steady) / calls
        for _ in range(chosen.rounds)
    ]
    median, interval = stats.median(samples)
    return median, interval, step_s


def _spent() -> dict[str, float]:
    """Return the seconds of compiling by torch's names, and those of C++ in this process."""
    compiled = sum(compilation_time_metrics.get(_COMPILED, ()))
    return {**calculate_time_spent(), _COMPILED: compiled}


def _phases(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    if not spent.get(_WAITED):  # nobody helps: kernels are compiled while code is generated
        spent[_WAITED] = spent[_COMPILED]
    for phase, (whole, inside) in _PHASES.items():
        own = sum(spent.get(x, 0.0) for x in whole) - sum(spent.get(x, 0.0) for x in inside)
        if own > 0:
            yield phase, own


def _step(
    graphs: Sequence[CompiledGraph],
    spent: Spent,
    wall: tuple[float, Interval],
    peak_bytes: int | None,
) -> StepRecord:
    by_work = defaultdict[str, float](float)
    for kernel in (k for graph in graphs for k in graph.kernels):
        by_work[kernel.work] += kernel.ms or 0.0
    kernels, outside = sum(spent.kernels.values()), sum(spent.outside.values())
    busy = kernels + outside + spent.copies_ms + spent.guards_ms
    host_ms = spent.host_ms or max(0.0, wall[0] - busy)
    return StepRecord(
        wall_ms=wall[0],
        wall_ci_ms=wall[1],
        kernels_ms=kernels,
        outside_ms=outside,
        copies_ms=spent.copies_ms,
        guards_ms=spent.guards_ms,
        host_ms=host_ms,
        by_work={k: x for k, x in sorted(by_work.items(), key=lambda x: -x[1]) if x > 0},
        peak_bytes=peak_bytes,
    )


def _graph(number: int, graph: Graph, spent: Spent, measured: LimitRecord) -> CompiledGraph:
    sources, reasons = graph.sources(), _pairs(graph.unfused)
    whole_ms = sum(spent.kernels.values())
    calls = spent.calls.get(number, 0.0)
    return CompiledGraph(
        number=number,
        compile_id=graph.compile_id,
        direction=graph.direction,
        calls=calls,
        code=graph.code,
        kernels=tuple(
            _kernel(
                kernel,
                ms=spent.kernels.get((number, position)),
                whole_ms=whole_ms,
                calls=calls,
                measured=measured,
                code=sources.get(kernel.function, ""),
                not_fused=tuple(_neighbours(kernel, graph.kernels, reasons)),
            )
            for position, kernel in enumerate(graph.kernels)
        ),
    )


def _kernel(
    kernel: Kernel,
    *,
    ms: float | None,
    whole_ms: float,
    calls: float,
    measured: LimitRecord,
    code: str,
    not_fused: tuple[NeighbourRecord, ...],
) -> KernelRecord:
    moved = sum(x.bytes or 0 for x in kernel.parts) or None
    operations = sum(x.floating_operations or 0 for x in kernel.parts) or None
    fastest_s = max(
        (moved or 0) / measured.copy_bytes_s, (operations or 0) / measured.product_operations_s
    )
    lines = (innermost(places(x)) for x in kernel.stacks)
    generated = "cpp" if kernel.function.startswith("cpp_") else "triton"
    return KernelRecord(
        name=kernel.name,
        kind="extern" if kernel.extern else generated,  # type: ignore[arg-type] # mypy widens it
        work=_work(kernel),
        lines=tuple(dict.fromkeys(x for x in lines if x)),
        operators=tuple(dict.fromkeys(x for part in kernel.parts for x in part.operators)),
        ms=ms,
        share=ms / whole_ms if ms is not None and whole_ms else None,
        bytes=moved,
        operations=operations,
        of_limit=1e3 * fastest_s * calls / ms if ms and fastest_s else None,
        not_fused=not_fused,
        code=code,
    )


def _work(kernel: Kernel) -> Work:
    if kernel.extern or any(x.template for x in kernel.parts):
        own = [kernel.function, *(y for x in kernel.parts if x.template for y in x.operators)]
        for work, words in _WORKS:
            if any(word in name for name in own for word in words):
                return work
        return "other"
    return "reduction" if any(x.reduction for x in kernel.parts) else "pointwise"


def _pairs(unfused: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """Return the last reason of each two operations, of which Inductor names several at once."""
    return {
        pair: reason
        for (one, other), reason in unfused.items()
        for a in one.split("_")
        for b in other.split("_")
        for pair in ((a, b), (b, a))
    }


def _neighbours(
    kernel: Kernel, kernels: Sequence[Kernel], reasons: Mapping[tuple[str, str], str]
) -> Iterator[NeighbourRecord]:
    """Yield the kernels that a kernel reads from."""
    reads = {x for part in kernel.parts for x in part.reads}
    own = [x for part in kernel.parts for x in part.operations]
    for other in kernels:
        if other is kernel or not reads & {x for part in other.parts for x in part.writes}:
            continue
        theirs = [x for part in other.parts for x in part.operations]
        known = (reasons.get((a, b)) for a in theirs for b in own)
        fixed = next((x.function for x in (other, kernel) if x.extern), None)
        reason = f"{fixed} is torch's own kernel: nothing is fused into it" if fixed else ""
        said = next((x for x in known if x is not None), None)
        yield NeighbourRecord(
            kernel=other.name, reason=reason or said or "Inductor did not consider the two"
        )


def dtype_of(subject: Subject) -> torch.dtype:
    """Return what a workload computes in."""
    tensors: list[Any] = [*subject.workload.model.parameters()]
    tensors += [x for _, x in subject.step.inputs]
    floating = (x.dtype for x in tensors if x.is_floating_point())
    found: torch.dtype = next(floating, torch.float32)
    return found
