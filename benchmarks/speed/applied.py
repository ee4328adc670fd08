"""Applies what was decided for a workload, and times it beside every arm that was right."""

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import backbay
from backbay import compile_log
from backbay.campaign.plan import Unit
from backbay.choosing import Chosen
from backbay.proof import Step, Workload
from backbay.race import Report
from backbay.race.compiler import compiler_of
from backbay.race.record import EAGER
from backbay.race.requests import ArmSetup
from backbay.race.ring import Ring, fitting
from backbay.race.turns import Turns
from backbay.registry import default_registry
from backbay.reporting.machine import Load
from backbay.timing import clock, kernels, rounds
from backbay.timing.gpu_work import GpuWork
from backbay.workloads.loading import build
from backbay.workloads.setup import WorkloadSetup
from speed.chosen import CHOSEN, Anew

_TRIED = 5
"""Steps of which the fastest says how many there are in a block."""
_WARM = 6
"""Steps before anything is timed: what is replayed is recorded by then."""
_MOST_VERSIONS = 256
"""All arms compile the same code."""


def timed_anew(unit: Unit, report: Report, turns: Turns, seconds: float) -> Anew:
    """Return how what `backbay.choose` applies compares with the arms that were right in a race.

    Args:
        unit: the workload.
        report: of its race.
        turns: when this process may work, and when it may time.
        seconds: for the timing of all arms together.
    """
    torch._dynamo.config.recompile_limit = _MOST_VERSIONS  # noqa: SLF001 (public, as documented)
    device = torch.device(unit.device)
    with turns.working():
        own, shared = _built(unit), _built(unit)  # parts that are compiled in place stay so
        begun = time.monotonic()
        made = _chosen(own, unit)
        choose_s = time.monotonic() - begun
        arms = _Arms(unit, report, shared)
        arms.add(CHOSEN, own, made.model)
        arms.warm_up()
    with turns.timing():
        others = Load()
        samples = arms.timed(seconds, device, str(made.arm))
        busy = others.others()
        said = dict.fromkeys(f"{x.asked}: {x.why}" for x in compile_log.records())
        work = arms.gpu_work(device)
    return Anew(
        workload=report.results[0].workload,
        mode=unit.mode,
        dtype=unit.dtype,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        machine=report.machine,
        versions=report.versions,
        decided=str(made.arm),
        why=made.why,
        raced=made.report is not None,
        choose_s=choose_s,
        samples_ms=samples,
        gpu_work=work,
        failed=arms.failed,
        said=tuple(said),
        busy=busy,
    )


@dataclass
class _Arms:
    """Every arm that was right, and what was chosen: each a step and what it calls."""

    unit: Unit
    report: Report
    shared: Workload
    steps: dict[str, tuple[Step, Callable[..., Any]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for result in (x for x in self.report.results if x.status == "ok"):
            asked = ArmSetup(
                arm=result.as_arm, dynamic=self.unit.dynamic, fullgraph=self.unit.fullgraph
            )
            call = compiler_of(asked, {}, default_registry).applied(self.shared.model)
            self.add(result.arm, self.shared, call)

    def add(self, name: str, workload: Workload, call: Callable[..., Any]) -> None:
        """Add an arm."""
        train = self.unit.mode == "train"
        self.steps[name] = Step(workload, train=train, seed=self.unit.seed), call

    def warm_up(self) -> None:
        """Compile; who raises is out, with the reason."""
        for name in list(self.steps):
            try:
                for _ in range(_WARM):
                    self.run(name)
            except Exception as error:  # noqa: BLE001 (a backend may raise anything)
                self.failed[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
                del self.steps[name]

    def run(self, name: str) -> Any:
        """Call an arm once."""
        step, call = self.steps[name]
        return step(call)

    def timed(self, seconds: float, device: torch.device, same: str) -> dict[str, list[float]]:
        """Return one sample of each arm in each round, in milliseconds.

        Args:
            seconds: for all arms together.
            device: what they run on.
            same: the arm that was chosen: as many calls in a block, since the code is the same.
        """
        step_s = {
            name: min(clock.seconds(lambda n=name: self.run(n), 1, device) for _ in range(_TRIED))  # type: ignore[misc]
            for name in self.steps
        }
        if same in step_s and CHOSEN in step_s:
            step_s[CHOSEN] = step_s[same]
        most = fitting(next(iter(self.steps.values()))[0])
        plan = rounds.plan(step_s, seconds, most_calls=max(1, most - rounds.WARMUPS))
        inputs = self._inputs(max(plan.block_calls(name) for name in self.steps))

        def block(name: str) -> float:
            ring = inputs[CHOSEN if name == CHOSEN else EAGER]
            steps = ring.calls(self.steps[name][1], plan.block_calls(name))
            return clock.block_of(steps, warmups=plan.warmups[name], device=device)[0]

        for name in self.steps:
            block(name)
        taken = list(rounds.in_turns(self.steps, plan, block))
        return {name: [x[name] for x in taken] for name in self.steps}

    def gpu_work(self, device: torch.device) -> dict[str, GpuWork]:
        """Return what a GPU does during a step of each; nothing of a CPU."""
        found = {
            name: kernels.gpu_work(lambda n=name: self.run(n), device)  # type: ignore[misc]
            for name in self.steps
        }
        return {name: work for name, work in found.items() if work is not None}

    def _inputs(self, calls: int) -> dict[str, Ring]:
        """Return inputs for so many calls, of the model that was chosen for and of the shared."""
        return {
            name: Ring(step, [False] * len(step.inputs), calls)
            for name, step in ((x, self.steps[x][0]) for x in (CHOSEN, EAGER))
        }


def _built(unit: Unit) -> Workload:
    return build(
        WorkloadSetup(
            workload=unit.workload,
            size=unit.size,
            mode=unit.mode,
            dtype=unit.dtype,
            device=unit.device,
            seed=unit.seed,
            batch=unit.batch,
        )
    )


def _chosen(own: Workload, unit: Unit) -> Chosen:
    return backbay.choose(
        own.model,
        own.args,
        own.kwargs,
        arms=unit.arms,
        scopes=unit.scopes,
        objective=unit.objective,
        train=unit.mode == "train",
        loss=own.loss,
        optimizer=own.optimizer,
        further=own.further,
        dynamic=unit.dynamic,
        fullgraph=unit.fullgraph,
    )
