"""One side of a comparison: a workload compiled in one way, called, and measured."""

import contextlib
import copy
import dataclasses
import functools
import importlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import pgo
from torch._dynamo.utils import (
    calculate_time_spent,
    clear_compilation_metrics,
    get_compilation_metrics,
)

from backbay.diagnose.inductor import alike
from backbay.diagnose.record import SideRecord
from backbay.diagnose.remedy import Remedy
from backbay.explain.watching import Capturing, Watch
from backbay.proof import Outcome, Step, Workload, observe, unchanged
from backbay.proof.state import attributes_kept
from backbay.race.caches import variables
from backbay.race.compiler import Compiler
from backbay.race.requests import ArmSetup
from backbay.registry import CompilerFn, Registry
from backbay.reporting.breaks import BreakCounter
from backbay.session.environment import changed_environment
from backbay.timing import clock, memory
from backbay.workloads.batches import batch_of, with_batch, with_tensors

_LIMITS = ("recompile_limit", "accumulated_recompile_limit")
_MANY = 1 << 10
"""Versions: while it is timed or proven, nothing may fail for what other sides compiled."""
_SETTLING = 2
"""Calls after which a size that grows has become dynamic, if it ever does."""
AS_IT_IS = Remedy(name="as it is")


@dataclass(kw_only=True)
class Subject:
    """A workload as one arm compiles it, with a remedy."""

    workload: Workload
    compiler_fn: CompilerFn
    arm: ArmSetup
    remedy: Remedy = AS_IT_IS
    train: bool
    seed: int
    folder: Path
    """Its compilers' cache, which is empty."""
    others: int = 0
    """Graphs that other sides compiled before: torch's limit counts them, too."""
    watch: Watch = field(default_factory=Watch)
    """Has the graphs that it compiled."""
    side: SideRecord | None = None
    steady: bool = True
    """Whether an equal call compiles nothing again; else each timed call begins in one state."""
    _timed: Step | None = None
    _call: Callable[..., Any] | None = None

    def compile(self, *, calls_again: bool) -> SideRecord:
        """Call it until nothing new is compiled, from the state that it began in, and count.

        Args:
            calls_again: whether it is called with other inputs, too, as an explanation does it.
        """
        if self.remedy.channels_last:
            self.workload = channels_last(self.workload)
        compiler = Compiler(
            # Its own, so that Dynamo never takes what another side compiled for it.
            backend=Capturing(self.compiler_fn, self.watch),
            keywords={"dynamic": self.arm.dynamic, "fullgraph": self.arm.fullgraph},
            scope=self.arm.arm.scope,
        )
        model = self.workload.model
        self._call = (
            compiler.applied(model) if not self.remedy.through else through(compiler, model)
        )
        pgo.reset_code_state()  # which sizes another side saw change
        clear_compilation_metrics()
        before_s = calculate_time_spent()["total_wall_time"]
        steps = [self.step, self.step, *(self._others() if calls_again else ())]
        counter, counts = BreakCounter(), list[int]()
        with counter.on(), self._compiling(self.others), attributes_kept(self.workload.model):
            for step in steps:
                with unchanged(step):
                    step(self._call)
                counts.append(len(self.watch.graphs))
        # Where inputs vary, what counts is the time with others than the first.
        self._timed = steps[-1]
        breaks = len(counter.breaks())
        self.steady = counts[0] == counts[1]
        self.side = SideRecord(
            graphs=counts[0],
            breaks=breaks,
            recompiles=_recompiles() if calls_again else None,
            compile_s=calculate_time_spent()["total_wall_time"] - before_s,
            step_ms=None,
            step_ci_ms=None,
            peak_bytes=None,
        )
        return self.side

    @functools.cached_property
    def step(self) -> Step:
        """One step of the workload on its own inputs."""
        if not self.remedy.mark:
            return Step(self.workload, train=self.train, seed=self.seed)
        batch = batch_of(self.workload)
        # Copies: a mark stays on a tensor, and others are given the workload's own.
        own = (self.workload.args, dict(self.workload.kwargs))
        args, kwargs = with_tensors(own, lambda x: x.detach().clone())
        workload = dataclasses.replace(self.workload, args=args, kwargs=kwargs)
        made = Step(workload, train=self.train, seed=self.seed)
        for _, value in made.inputs:
            if value.ndim and value.shape[0] == batch:
                torch._dynamo.mark_dynamic(value, 0)  # noqa: SLF001 (public, as documented)
        return made

    def seconds(self, *, warmups: int, calls: int, steady: bool) -> float:
        """Return how long calls take together, after others; each block begins in one state.

        Args:
            warmups: calls that are not counted.
            calls: calls that are.
            steady: whether calls may change what modules count; else that is written back in each.
        """

        def timed(run: Callable[[], Any]) -> float:
            return clock.block(run, warmups=warmups, calls=calls, device=self.device)

        found: float = self.running(timed, steady=steady)
        return found

    def running(self, use: Callable[[Callable[[], Any]], Any], *, steady: bool) -> Any:
        """Have somebody call a warm step; the state is as before afterwards."""
        assert self._call is not None, "it is called after it was compiled"
        assert self._timed is not None, "likewise"
        step, model = functools.partial(self._timed, self._call), self.workload.model

        def restored() -> Any:
            with attributes_kept(model):
                return step()

        with self._compiling(_MANY), attributes_kept(model), unchanged(self._timed):
            if steady:
                return use(step)
            for _ in range(_SETTLING):
                step()
            restored()  # what this state needs is compiled before anybody measures
            return use(restored)

    def outcome(self, workload: Workload) -> Outcome:
        """Return what it gives for a workload: its own, or on smaller inputs; for a proof."""
        assert self._call is not None, "it is proven after it was compiled"
        with self._compiling(_MANY), attributes_kept(self.workload.model):
            return observe(self._call, workload, train=self.train, seed=self.seed)

    def peak_bytes(self) -> int | None:
        """Return the peak memory of a step on a GPU; a process's own says little of a step."""
        if self.device.type != "cuda":
            return None

        def measured(run: Callable[[], Any]) -> int | None:
            memory.reset_peak(self.device)
            run()
            return memory.peak_bytes(self.device)

        found: int | None = self.running(measured, steady=self.steady)
        return found

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Compute, compiled or not, as precisely as the remedy has it."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.remedy.matmul_precision or before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        tensors = [*self.workload.model.parameters(), *(x for _, x in self.step.inputs)]
        return tensors[0].device if tensors else torch.device("cpu")

    @contextlib.contextmanager
    def _compiling(self, more: int) -> Iterator[None]:
        """Compile in the settings of the remedy, with so many more versions than torch allows."""
        settings = _resolved(self.remedy.settings)
        for name in _LIMITS:
            settings[name] = settings.get(name, getattr(torch._dynamo.config, name)) + more  # noqa: SLF001 (public)
        with (
            alike(),
            self.computing(),
            changed_environment(variables(str(self.folder))),
            torch._dynamo.config.patch(settings),  # noqa: SLF001 (public)
            torch.compiler.config.patch(dynamic_sources=self.remedy.dynamic_sources),  # type: ignore[attr-defined] # it is put in
        ):
            yield

    def _others(self) -> list[Step]:
        return [Step(x, train=self.train, seed=self.seed) for x in further(self.workload)]


def through(compiler: Compiler, model: torch.nn.Module) -> Callable[..., Any]:
    """Return a model compiled through a function that calls it, which torch has never met."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    new = types.FunctionType(call.__code__.replace(), globals(), closure=call.__closure__)
    return compiler.compiled(new)


def further(workload: Workload) -> list[Workload]:
    """Return the workload with the inputs of its further calls, or with other batch sizes."""
    if workload.further:
        return [
            dataclasses.replace(workload, args=args, kwargs=kwargs, further=(), reduced=None)
            for args, kwargs in workload.further
        ]
    batch = batch_of(workload)
    return [] if isinstance(batch, str) else [with_batch(workload, batch + x) for x in (1, 2)]


def channels_last(workload: Workload) -> Workload:
    """Return a copy of a workload with its images, and weights for them, laid out channels last."""
    layout = torch.channels_last

    def laid_out(value: Any) -> Any:
        image = isinstance(value, torch.Tensor) and value.ndim == 4  # noqa: PLR2004 (N, C, H, W)
        return value.contiguous(memory_format=layout) if image else value

    model = copy.deepcopy(workload.model).to(memory_format=layout)  # type: ignore[call-overload] # torch's stub lacks it
    args, kwargs = torch.utils._pytree.tree_map(laid_out, (workload.args, dict(workload.kwargs)))  # noqa: SLF001 (as elsewhere)
    return dataclasses.replace(workload, model=model, args=args, kwargs=kwargs, reduced=None)


def compiler_fn(
    arm: ArmSetup, given: Mapping[str, str | CompilerFn], registry: Registry
) -> CompilerFn:
    """Return an arm's backend with its mode and options as one function.

    Raises:
        InputError: it can't be loaded.
    """
    one = arm.arm
    backend = given.get(one.backend, one.backend)
    if not isinstance(backend, str):
        return backend
    return registry.get_backend(backend, mode=one.mode, options=one.options or None)


def _recompiles() -> int:
    """Return how often torch compiled something again that this side had compiled."""
    compiled = [
        (x.co_filename, x.co_firstlineno, x.co_name)
        for x in get_compilation_metrics()
        if x.co_name and not x.fail_type
    ]
    return len(compiled) - len(set(compiled))


def _resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the functions that they name."""
    return {k: set(_functions(x)) if isinstance(x, list) else x for k, x in settings.items()}


def _functions(names: Sequence[str]) -> Iterator[Any]:
    for name in names:
        module, _, attribute = name.rpartition(".")
        yield getattr(importlib.import_module(module or "builtins"), attribute)
