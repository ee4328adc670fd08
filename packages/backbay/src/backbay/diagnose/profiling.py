"""What a step spends its time on: torch's profiler, matched with the kernels of compiled graphs.

Kernels are told by their place in the generated code: the profiler's events of one call of a graph
come in the order in which the code launches them.
"""

import bisect
import contextlib
import difflib
import functools
import itertools
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from backbay.diagnose.inductor import Graph
from backbay.session.environment import changed_environment
from backbay.timing.device import synchronize

_CALL = "## Call CompiledFxGraph"
_GUARDS = "TorchDynamo Cache Lookup"
_COPY = "Memcpy"
_STEP = "backbay.diagnose step"
"""A mark: it takes no time."""
_NESTING = ("Torch-Compiled Region", "CompiledFunction", "AOTDispatcher", "Pregraph", "## ")
"""Beginnings of events that are no work themselves."""
_GRAPH = re.compile(r"^graph_\d+_(?=cpp_)")
"""What names of C++ kernels begin with in the profiler's events."""
_KINETO_LOG, _SILENT = "KINETO_LOG_LEVEL", "99"
_MS = 1e-3
"""The profiler counts microseconds."""


@dataclass(slots=True, kw_only=True)
class Spent:
    """What the profiled steps spent, in milliseconds a step."""

    kernels: dict[tuple[int, int], float] = field(default_factory=dict)
    """Position of the graph, and of the kernel in it."""
    calls: dict[int, float] = field(default_factory=dict)
    """Position of the graph to how often a step calls it."""
    outside: dict[str, float] = field(default_factory=dict)
    """By name: what is no kernel of a compiled graph."""
    host_ms: float = 0.0
    """On a CPU: of a step, what is in no event that is work."""
    guards_ms: float = 0.0
    copies_ms: float = 0.0


class Recording:
    """Torch's profiler around steps, of which each beginning is marked, and the end of the last."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gpu = device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
        self._profiler = profile(activities=activities, acc_events=True)
        self._marks = 0

    @property
    def steps(self) -> int:
        """How many whole steps there are."""
        return max(0, self._marks - 1)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Record until the block ends."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def start(self) -> None:
        """Begin to record."""
        # Kineto would say so on standard error, which may be a script's.
        with changed_environment({_KINETO_LOG: _SILENT}):
            self._profiler.start()

    def mark(self) -> None:
        """Mark where a step begins, and the one before it ends."""
        with record_function(_STEP):
            pass
        self._marks += 1

    def stop(self) -> None:
        """Wait for the device, and record no more."""
        synchronize(self._device)
        self._profiler.stop()

    def spent(self, graphs: Sequence[Graph]) -> Spent:
        """Return what the whole steps spent; there is at least one.

        Args:
            graphs: that were compiled.
        """
        gpu = self._device.type == "cuda"
        every: Sequence[Any] = self._profiler.events() or ()  # type: ignore[no-untyped-call] # torch's own
        on_gpu = [x for x in every if x.device_type == DeviceType.CUDA]
        copies = (x.time_range.elapsed_us() for x in on_gpu if x.name.startswith(_COPY))
        launched = defaultdict[str, deque[float]](deque)
        for event in sorted(on_gpu, key=_start):
            if not event.name.startswith((_COPY, _STEP, *_NESTING)):
                launched[event.name].append(event.time_range.elapsed_us())
        found = _Sums(graphs, gpu=gpu, launched=launched)
        on_host = [x for x in every if x.device_type == DeviceType.CPU]
        for events, elapsed_us in _steps(on_host, gpu=gpu):
            found.add_step(events, elapsed_us)
        spent = found.spent(self.steps)
        spent.copies_ms = _MS * sum(copies) / self.steps
        return spent


def profiled(
    step: Callable[[], Any], steps: int, device: torch.device, graphs: Sequence[Graph]
) -> Spent:
    """Profile some steps, all of which are warm."""
    recording = Recording(device)
    with recording.on():
        for _ in range(steps):
            recording.mark()
            step()
        recording.mark()
    return recording.spent(graphs)


def _steps(events: Sequence[Any], *, gpu: bool) -> Iterator[tuple[list[Any], float]]:
    """Yield the outermost events of each step, and how long it took in microseconds.

    Args:
        events: of the host.
        gpu: whether those of other threads belong to a step, too: autograd's launches kernels.
    """
    marks = sorted((x for x in events if x.name == _STEP), key=_start)
    begins = [_start(x) for x in marks]
    found: list[list[Any]] = [[] for _ in begins]
    for event in events:
        if event.cpu_parent is None and (gpu or event.thread == marks[0].thread):
            for one in _parted(event, begins):
                found[bisect.bisect_right(begins, _start(one)) - 1].append(one)
    for number, (begin, end) in enumerate(itertools.pairwise(begins)):
        yield found[number], end - begin


def _parted(event: Any, begins: Sequence[float]) -> Iterator[Any]:
    """Yield an event that is in one step; in place of one that spans several, what it holds."""
    begin, end = _start(event), event.time_range.end
    if event.name == _STEP or begin < begins[0]:
        return
    inside = bisect.bisect_left(begins, end) - bisect.bisect_right(begins, begin)
    if inside > 0 and event.name != _GUARDS:  # a step may begin where guards are looked up
        for child in event.cpu_children:
            yield from _parted(child, begins)
        return
    yield event


class _Sums:
    """Adds events up."""

    def __init__(
        self,
        graphs: Sequence[Graph],
        *,
        gpu: bool,
        launched: Mapping[str, deque[float]] = MappingProxyType({}),
    ) -> None:
        """Begin with nothing.

        Args:
            graphs: that were compiled.
            gpu: whether the time is a GPU's.
            launched: its kernels, by name, to their times in order; those that no event of the
                host launched are listed as outside of graphs, or told by their names.
        """
        self._graphs = graphs
        self._gpu = gpu
        self._launched = launched
        self._kernels: dict[tuple[int, int], list[float]] = defaultdict(list)
        self._calls: dict[int, int] = defaultdict(int)
        self._outside: dict[str, float] = defaultdict(float)
        self._guards = 0.0
        self._work = 0.0
        self._hosts: list[float] = []

    def add_step(self, events: Sequence[Any], elapsed_us: float) -> None:
        """Add a step: its outermost events, and the microseconds that it took."""
        self._work = 0.0
        for event in sorted(events, key=_start):
            self.add(event)
        self._hosts.append(max(0.0, elapsed_us - self._work))

    def add(self, event: Any) -> None:
        """Add an event, and what is inside of it."""
        if event.name.startswith(_CALL):
            self._add_call(sorted(event.cpu_children, key=_start))
        elif event.name == _GUARDS:
            self._guards += event.time_range.elapsed_us()
            self._work += event.time_range.elapsed_us()
        elif event.name.startswith(_NESTING) or any(_calls_graphs(x) for x in event.cpu_children):
            for child in event.cpu_children:
                self.add(child)
        else:
            self._outside[event.name] += self._time(event)

    def spent(self, steps: int) -> Spent:
        """Return the sums, a step's share of each."""
        for name, times in self._launched.items():
            self._outside[name] += sum(times)
        return Spent(
            kernels={
                key: _MS * _usual(times) * len(times) / steps
                for key, times in self._kernels.items()
            },
            calls={key: count / steps for key, count in self._calls.items()},
            outside={k: _MS * x / steps for k, x in self._outside.items() if x > 0},
            host_ms=0.0 if self._gpu or not self._hosts else _MS * _usual(self._hosts),
            guards_ms=_MS * self._guards / steps,
        )

    def _add_call(self, events: Sequence[Any]) -> None:
        flat = list(_flat(events))
        names = tuple(_GRAPH.sub("", x.name) for x in flat)
        matched = [_matched(tuple(y.function for y in x.kernels), names) for x in self._graphs]
        if not matched:
            return
        number = max(range(len(matched)), key=lambda x: (len(matched[x]), -x))
        self._calls[number] += 1
        for position, event in enumerate(flat):
            kernel = matched[number].get(position)
            if kernel is None:
                self._outside[event.name] += self._time(event)
            else:
                self._kernels[number, kernel].append(self._time(event))

    def _time(self, event: Any) -> float:
        """Return the time of an event's kernels on a GPU; else its own."""
        if not self._gpu:
            self._work += event.time_range.elapsed_us()
            return float(event.time_range.elapsed_us())
        found = sum(self._time(x) for x in event.cpu_children)
        for kernel in event.kernels:
            if kernel.name.startswith(_COPY):  # they are counted apart
                continue
            found += kernel.duration
            self._take(kernel.name)
        return found or self._take(event.name)

    def _take(self, name: str) -> float:
        """Take the next kernel of a name from those that were launched; return its time."""
        times = self._launched.get(name)
        return times.popleft() if times else 0.0


def _usual(times: Sequence[float]) -> float:
    """Return the lower quartile: what other processes interrupt is nobody's time."""
    return sorted(times)[len(times) // 4]


@functools.lru_cache(maxsize=256)  # each step is like the one before
def _matched(functions: tuple[str, ...], names: tuple[str, ...]) -> dict[int, int]:
    """Return positions of events, each with the kernel's that it is, in the order of both.

    What only one of both has must not shift the rest: long runs that are equal count first.
    """
    matcher = difflib.SequenceMatcher(None, [*map(_event, functions)], names, autojunk=False)
    blocks = matcher.get_matching_blocks()
    return {x.b + n: x.a + n for x in blocks for n in range(x.size)}


def _event(function: str) -> str:
    """Return the name that the profiler's event of a kernel has."""
    name = function.removeprefix("extern_kernels.").removeprefix("torch.ops.")
    if name == function and not name.startswith("aten."):
        return name
    space, dot, rest = name.partition(".")
    return f"{space}::{rest.partition('.')[0]}" if dot else f"aten::{name}"


def _flat(events: Iterable[Any]) -> Iterator[Any]:
    """Yield events, in place of those that only hold others what they hold."""
    for event in events:
        if event.name.startswith(_NESTING):
            yield from _flat(sorted(event.cpu_children, key=_start))
        else:
            yield event


def _calls_graphs(event: Any) -> bool:
    named = event.name.startswith((_CALL, _GUARDS))
    return named or any(_calls_graphs(x) for x in event.cpu_children)


def _start(event: Any) -> float:
    return float(event.time_range.start)
