"""Calls a workload compiled, several times, and watches."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config
from torch._dynamo.utils import counters

from backbay import compile_log
from backbay.causes import worded
from backbay.explain.calls import Calls
from backbay.explain.record import ProblemRecord
from backbay.explain.watching import Capturing
from backbay.proof import Step, Workload, unchanged
from backbay.proof.state import attributes_kept
from backbay.registry import CompilerFn
from backbay.reporting.lines import innermost, own, traced
from backbay.workloads.batches import batch_of, with_batch

_UNCACHED = {
    torch._functorch.config: {"enable_autograd_cache": False},  # noqa: SLF001 (its public module)
    torch._inductor.config: {"fx_graph_cache": False, "fx_graph_remote_cache": False},  # noqa: SLF001
}


@dataclass(kw_only=True)
class WatchedRun(Calls):
    """One workload with one backend, watched."""

    workload: Workload
    compiler_fn: CompilerFn | None
    """``None``: graphs are run as they are."""
    dynamic: bool | None
    """As torch.compile takes it."""
    fullgraph: bool
    """Likewise."""
    train: bool
    seed: int

    def run(self, *, again: bool, further_args: Sequence[Sequence[Any]] | None) -> None:
        """Run the model itself, then compiled, each time from the same state."""
        known = len(compile_log.records())
        problem = self._eager(self.workload)
        if problem is not None:
            self.problems[-1] = problem
            return
        with _alone(), attributes_kept(self.workload.model), self.watch.on():
            self._compiled(again=again, further_args=further_args)
        self.log(compile_log.records()[known:])

    def _compiled(self, *, again: bool, further_args: Sequence[Sequence[Any]] | None) -> None:
        backend = Capturing(self.compiler_fn or _as_it_is, self.watch)
        call = torch.compile(
            self.workload.model, backend=backend, dynamic=self.dynamic, fullgraph=self.fullgraph
        )
        if not self._call("first", call, self.workload) or not again:
            return
        if not self._call("again", call, self.workload):
            return
        if further_args is None:
            self._batches(call)
            return
        for number, args in enumerate(further_args, 1):
            further = replace(self.workload, args=tuple(args), reduced=None)
            if not self._call(f"further {number}", call, further):
                return

    def _batches(self, call: Any) -> None:
        """Call it with other batch sizes, where it takes them."""
        batch = batch_of(self.workload)
        if isinstance(batch, str):
            self.notes.append(f"no other batch size was tried: {batch}")
            return
        for size in (batch, batch + 1):
            larger = with_batch(self.workload, size + 1)
            problem = self._eager(larger)
            if problem is not None:
                self.notes.append(
                    f"batch {size + 1} was not tried compiled: uncompiled, the model raises "
                    f"{problem.error}"
                )
                return
            if not self._call(f"batch {size} to {size + 1}", call, larger):
                return

    def _call(self, name: str, call: Any, workload: Workload) -> bool:
        """Make one call; returns whether it went well."""
        self.watch.call = len(self.names)
        self.names.append(name)
        problem = self._raised("compiled", call, workload)
        if problem is not None:
            self.problems[self.watch.call] = problem
        return problem is None

    def _eager(self, workload: Workload) -> ProblemRecord | None:
        with attributes_kept(workload.model):
            return self._raised("eager", workload.model, workload)

    def _raised(
        self, stage: Literal["eager", "compiled"], call: Any, workload: Workload
    ) -> ProblemRecord | None:
        step = Step(workload, train=self.train, seed=self.seed)
        with _gradients_kept(workload.model), unchanged(step):
            try:
                step(call)
            except Exception as error:  # noqa: BLE001 (whatever is raised is what is explained)
                return problem_of(error, stage)
        return None


def problem_of(error: BaseException, stage: Literal["eager", "compiled"]) -> ProblemRecord:
    """Return what was raised, and at which of the user's lines.

    Dynamo wraps what a backend or a traced line raised; what it raised is what a reader needs.
    """
    user = getattr(error, "innermost_user_frame_summary", None)
    line = f"{user.filename}:{user.lineno}: {user.line}" if user is not None else ""
    while isinstance(inner := getattr(error, "inner_exception", None), BaseException):
        error = inner
    root = error.__cause__ if isinstance(error.__cause__, Exception) else error
    raised = own(traced(root.__traceback__))
    at = str(raised[-1]) if raised else ""
    if stage == "eager":
        line, at = line or innermost(traced(error.__traceback__)), ""
    return ProblemRecord(
        stage=stage, error=worded(error), line=line, raised_at=at if at != line else ""
    )


def _as_it_is(graph_module: torch.fx.GraphModule, _: Any) -> Any:
    return graph_module.forward


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Reset Dynamo before and after; caches are not read, counters are kept."""
    counted = {key: value.copy() for key, value in counters.items()}
    torch._dynamo.reset()  # noqa: SLF001 (torch.compiler.reset is this, since 2.1)
    with contextlib.ExitStack() as stack:
        for config, changes in _UNCACHED.items():
            stack.enter_context(config.patch(changes))
        try:
            yield
        finally:
            torch._dynamo.reset()  # noqa: SLF001
            counters.clear()
            counters.update(counted)


@contextlib.contextmanager
def _gradients_kept(model: torch.nn.Module) -> Iterator[None]:
    kept = [(x, x.grad) for x in model.parameters()]
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
