"""Watches a loop of the user's own: until nothing new is compiled, then timed, then profiled.

After that everything is as it was before: no hook, no handler, no setting is left. What was
compiled meanwhile keeps its marks for the profiler.
"""

import contextlib
import dataclasses
import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
import torch._inductor.config
from torch._dynamo.exc import TorchDynamoException, TorchRuntimeError
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from backbay import compile_log
from backbay.causes import one_line
from backbay.decisions import Arm
from backbay.diagnose.inductor import InductorWatch, alike
from backbay.diagnose.limits import limit
from backbay.diagnose.looking import Compiling, could_be_tf32, white_box
from backbay.diagnose.outer_calls import OuterCalls
from backbay.diagnose.profiling import Recording
from backbay.diagnose.record import WhiteBox
from backbay.diagnose.requests import Looked
from backbay.diagnose.structure import channels_first, repeated_blocks
from backbay.errors import InputError
from backbay.explain import Explanation
from backbay.explain.assembling import assembled
from backbay.explain.calls import Calls
from backbay.explain.record import Settings
from backbay.explain.running import problem_of
from backbay.explain.watching import Captured, Watch
from backbay.kit.backend import Backend
from backbay.registry import Registry
from backbay.reporting.machine import versions
from backbay.timing import stats
from backbay.timing.device import device_name, synchronize

_MOST_SETTLING = 8
"""Steps after which it is measured even though each compiles something."""
_QUIET = 2
"""Steps in a row that compile nothing: what was warmed up is warm."""
_FEWEST = 3
_LONGEST_S = 20.0
"""Of timing, and of profiling: where steps are long, fewer are enough."""


class Loop:
    """One loop, from its first step to the last that is looked at."""

    def __init__(self, steps: int, ended: Callable[[], object]) -> None:
        """Look at a loop, once it is started.

        Args:
            steps: that are timed, and as many that are profiled.
            ended: called when all of them are over, or watching failed; not when it is stopped.
        """
        self.calls = Calls(names=["step 0"])
        self.outer = OuterCalls(self._met)
        self.trained = False
        """Whether its steps compute gradients."""
        self.named = False
        """Whether somebody says where steps begin."""
        self.done = False
        self.notes: list[str] = []
        self._steps = steps
        self._ended = ended
        self._inductor = InductorWatch()
        self._compiling = Compiling()
        self._known = len(compile_log.records())
        self._samples: list[float] = []
        self._recording: Recording | None = None
        self._course = self._measured()
        self._begun = False
        self._watching = contextlib.ExitStack()

    def start(self) -> None:
        """Begin to watch."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(alike())
            stack.enter_context(self.calls.watch.on())
            stack.enter_context(self._inductor.on())
            stack.enter_context(self._graphs_noted())
            stack.enter_context(self.outer.on())
            self._watching = stack.pop_all()

    def stop(self) -> None:
        """Watch no more; what was seen stays."""
        if self.done:
            return
        self.done = True
        self._course.close()
        self._watching.close()
        self._count_others()
        self.calls.log(compile_log.records()[self._known :])

    def begin_named(self) -> None:
        """Begin a step where whoever wrote the loop says so; calls do not count any more."""
        if not self.named and not self.done:
            self.named = True
            self._restart()
        self.begin()

    def begin(self) -> None:
        """Begin a step; after the last one that is looked at, the loop is done."""
        if self.done:
            return
        self.trained = self.trained or torch.is_grad_enabled()
        if self._begun:
            self.calls.watch.call += 1
            self.calls.names.append(f"step {self.calls.watch.call}")
        self._begun = True
        try:
            next(self._course)
        except Exception as error:  # noqa: BLE001 (the loop is not to blame, and must go on)
            if not isinstance(error, StopIteration):
                self.notes.append(f"watching failed: {one_line(error)}")
            self.stop()
            self._ended()

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch's own
        return torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """What most inputs of its graphs have, of floating dtypes."""
        inputs = (y for x in self.calls.watch.graphs for y in x.nodes if y.op == "placeholder")
        dtypes = (getattr(torch, x.dtype, None) for x in inputs if x.dtype)
        found = Counter(x for x in dtypes if x is not None and x.is_floating_point)
        return found.most_common(1)[0][0] if found else torch.get_default_dtype()

    @property
    def compiled_anything(self) -> bool:
        """Whether torch compiled something, or tried to."""
        return any(x.kind == "compilation_metrics" for x in self.calls.watch.events)

    def looked(self) -> Looked | None:
        """Return what was measured; ``None``: the loop ended before that."""
        recording = self._recording
        if recording is None or recording.steps < 1:
            return None
        function = self.outer.compiled.function if self.outer.compiled is not None else None
        owner = getattr(function, "__self__", None)
        model = owner if isinstance(owner, torch.nn.Module) else torch.nn.Module()
        return Looked(
            inside=self._inside(recording),
            device_name=device_name(self.device),
            blocks=repeated_blocks(model),
            convolutions=channels_first(model),
            could_be_tf32=could_be_tf32(self.device, self.dtype),
        )

    @property
    def arm(self) -> Arm:
        """What compiles: a backend, and its options where they can be written."""
        backend = None if self.outer.compiled is None else self.outer.compiled.backend
        named = getattr(backend, "compiler_name", None) or getattr(backend, "__name__", None)
        name = str(named or type(backend).__name__)
        given: dict[str, Any] = {**getattr(backend, "config", {}), **getattr(backend, "kwargs", {})}
        mode, own = given.pop("mode", None), given.pop("options", {})
        try:
            return Arm(backend=name, mode=mode, options={**given, **own})
        except InputError:
            return Arm(backend=name, mode=mode)

    def step_words(self) -> str:
        """Word what a step is."""
        if self.named:
            return "a step is from one call of step() to the next"
        function = self.outer.compiled.function if self.outer.compiled is not None else None
        owner = getattr(function, "__self__", None)
        name = type(owner).__name__ if owner is not None else getattr(function, "__name__", "")
        return f"a step is from one call of {name} to the next"

    def failed(self, error: BaseException) -> None:
        """Note what ended the loop: a problem of compiling, or whatever else was raised."""
        compiling = isinstance(error, TorchDynamoException)
        if compiling and not isinstance(error, TorchRuntimeError):  # that is the model's own
            self.calls.problems[self.calls.watch.call] = problem_of(error, "compiled")
            return
        self.notes.append(f"the loop raised {one_line(error)}")

    def explained(self, name: str, registry: Registry) -> Explanation:
        """Return what Dynamo did in it.

        Args:
            name: of the loop.
            registry: where versions are looked up.
        """
        arm = self.arm
        backend = None if self.outer.compiled is None else self.outer.compiled.backend
        kit = getattr(backend, "compiler_fn", backend)
        return assembled(
            self.calls,
            function=None,
            settings=Settings(
                workload=name,
                backend=arm.backend,
                mode="train" if self.trained else "infer",
                dtype=str(self.dtype).removeprefix("torch."),
                device=str(self.device),
                seed=torch.initial_seed(),
                compile_mode=arm.mode,
                options=arm.options,
                dynamic=getattr(backend, "dynamic", None),
            ),
            created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            versions=versions(registry.environment, []),
            kit=kit if isinstance(kit, Backend) else None,
            options=arm.options,
        )

    def _restart(self) -> None:
        """Take all calls so far for one step."""
        watch = self.calls.watch
        watch.call = 0
        watch.events[:] = [dataclasses.replace(x, call=0) for x in watch.events]
        for graph in watch.graphs:
            graph.call = 0
        self.calls.names[:] = self.calls.names[:1]
        self._course.close()
        self._course = self._measured()
        if self._begun:
            next(self._course)

    def _met(self) -> None:
        if not self.named:
            self.begin()

    def _measured(self) -> Generator[None]:
        """Yield at the beginning of each step, and measure between them."""
        quiet, events = 0, self.calls.watch.events
        for _ in range(_MOST_SETTLING):
            before = len(events)
            yield
            quiet = quiet + 1 if len(events) == before else 0
            if quiet == _QUIET:
                break
        device = self.device
        begin = last = self._now(device)
        for count in range(1, self._steps + 1):
            yield
            now = self._now(device)
            self._samples.append(1e3 * (now - last))
            last = now
            if count >= _FEWEST and now - begin > _LONGEST_S:
                break
        if torch.autograd.profiler._is_profiler_enabled:  # noqa: SLF001 (no public name)
            self.notes.append("the loop is profiled already: its kernels were not timed")
            return
        self._recording = Recording(device)
        with self._recording.on():
            self._recording.mark()
            for _ in range(self._steps):
                yield
                self._recording.mark()
                if time.perf_counter() - last > _LONGEST_S:
                    break

    @contextlib.contextmanager
    def _graphs_noted(self) -> Iterator[None]:
        """Note each of Dynamo's graphs as Inductor is given it, where nobody else asked for it."""
        watch = self.calls.watch
        if torch._inductor.config.pre_grad_custom_pass is not None:  # noqa: SLF001 (public)
            yield
            return

        with torch._inductor.config.patch(pre_grad_custom_pass=_Noting(watch)):  # noqa: SLF001 (likewise)
            yield

    def _count_others(self) -> None:
        """Count the graphs of other backends, of which torch tells no nodes."""
        watch = self.calls.watch
        known = {x.compile_id for x in watch.graphs}
        for one in watch.events:
            if one.kind != "compilation_metrics" or one.compile_id in known:
                continue
            if one.data.get("graph_op_count") and not one.data.get("fail_type"):
                watch.graphs.append(
                    Captured(
                        compile_id=one.compile_id, call=one.call, nodes=(), operators={}, groups=()
                    )
                )
        watch.graphs.sort(key=lambda x: x.call)

    @staticmethod
    def _now(device: torch.device) -> float:
        synchronize(device)
        return time.perf_counter()

    def _inside(self, recording: Recording) -> WhiteBox:
        median, interval = stats.median(self._samples)
        return white_box(
            self._inductor.graphs,
            recording.spent(self._inductor.graphs),
            wall_ms=median,
            wall_ci_ms=interval,
            measured=limit(self.device, self.dtype),
            phases_s=self._compiling.phases_s(),
            compile_s=self._compiling.seconds(),
            peak_bytes=None,  # the loop may count its own: its peak is not reset
        )


class _Noting(CustomGraphPass):
    """Notes graphs, and changes nothing in them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __call__(self, graph: Graph) -> None:
        if graph.owning_module is not None:
            with self._watch.compiling(graph.owning_module):
                pass

    def uuid(self) -> str:
        """Return what stands for it in keys of caches: none is read or written meanwhile."""
        return "backbay.diagnose"
