"""Goes through the engines, one after the other, and reads what their folders hold into rows."""

import datetime as dt
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from backbay.engines import selection
from backbay.engines.environment import EngineEnvironment
from backbay.engines.record import MODELS, USES, WORKLOADS, Case, Loaded, Report, Row, Speed
from backbay.engines.selection import Engine
from backbay.errors import InputError, Interrupted
from backbay.race.record import Report as RaceReport
from backbay.registry import BackendSpec, Registry, default_registry
from backbay.reporting import machine
from backbay.verify.record import Report as VerifyReport

Tell = Callable[[str, str, str, str], None]
"""Called with engine, step, what is going on, and nothing."""

_BASE, _MODELS = "install-base", "install-models"
_NO_LINE = "no pip line that installs it is catalogued"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long things may take, in seconds."""

    install_s: float = 1800.0
    probe_s: float = 120.0
    """One backend's."""
    model_s: float = 1200.0
    """A small model, or a workload: all backends of an engine."""
    race_s: float = 10.0
    """The timing of one workload."""
    conformance_s: float = 7200.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done with each engine, and where."""

    folder: Path
    torch: str
    constraints: Path | None = None
    conformance: bool = False
    """Whether the suite's quick profile is run: it takes from minutes to an hour a backend."""
    again: bool = False
    """Whether all is done anew; default: what an earlier run has done is read."""
    limits: Limits = Limits()

    def environment(self, engine: Engine) -> EngineEnvironment:
        """Return an engine's environment; another torch has others."""
        return EngineEnvironment(
            folder=(self.folder / f"torch-{self.torch}" / engine.name).absolute(),
            torch=self.torch,
            constraints=self.constraints and self.constraints.absolute(),
        )


def run(
    names: Sequence[str],
    plan: Plan,
    *,
    registry: Registry = default_registry,
    tell: Tell = lambda *_: None,
) -> Report:
    """Install each engine beside torch, try it and race it; what was done before is read.

    Args:
        names: backends, whose engines are tried; default: all that may run on this machine.
        plan: what is done, and where it is kept.
        registry: where names are looked up.
        tell: called with what is going on.

    Raises:
        InputError: a name is not known, there is no line that installs it, or another run is at it.
        Interrupted: by Ctrl-C; it has the report of what was found, before this run too.
    """
    engines = selection.chosen(registry, names, plan.torch)
    try:
        for engine in engines:
            with plan.environment(engine).alone():
                _try(engine, plan, registry, tell)
    except KeyboardInterrupt as stopped:
        report = _report(engines, plan, names)
        raise Interrupted(msgspec.structs.replace(report, partial=True)) from stopped
    return _report(engines, plan, names)


def _try(engine: Engine, plan: Plan, registry: Registry, tell: Tell) -> None:
    environment, limits = plan.environment(engine), plan.limits
    here = registry.environment.installed

    def say(step: str, text: str) -> None:
        tell(engine.name, step, text, "")

    if plan.again:
        environment.remove()
    say("venv", "making the environment")
    if not environment.make():
        raise InputError(f"no environment could be made: see {environment.folder / 'venv.log'}")
    say("base", f"torch {plan.torch} and Backbay")
    environment.install(_BASE, "", selection.base(here), limits.install_s)
    base = environment.installed(_BASE)
    if base is None or base.why_not:
        raise InputError(
            f"torch {plan.torch} and Backbay can't be installed: {base and base.why_not}"
        )
    for number, line in enumerate(engine.lines):
        wanted = selection.requirements(line, here)
        if wanted is not None:
            say("install", line)
            environment.install(f"install-{number}", line, wanted, limits.install_s)
    backends = [spec.name for spec in _installed(engine, environment)]
    if not backends:
        return
    say("load", ", ".join(backends))
    seconds = limits.probe_s
    arguments = ["backbay.engines.loading", str(seconds), *backends]
    environment.ask("loaded", arguments, (seconds + 30.0) * len(backends))
    works = [x.backend for x in _loaded(environment) if x.works]
    if not works:
        return
    say("models", "transformers and timm")
    environment.install(_MODELS, "", selection.models(here), limits.install_s)
    for step, text, module in _questions(works, plan):
        say(step, text)
        allowed = limits.conformance_s if step.startswith("conform") else limits.model_s
        environment.ask(step, module, allowed * len(works))


def _questions(works: Sequence[str], plan: Plan) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each step, what it is, and the command that answers it with JSON."""
    both = ",".join(works)
    for model in MODELS:
        said = ["verify", f"backbay.engines.models:{model}", "--backends", both, "--blame", "0"]
        yield f"verify-{model}", f"{model}: {', '.join(USES)}", _command(*said)
    for workload in WORKLOADS:
        timed = ["--no-keep", "--seconds", f"{plan.limits.race_s:g}"]
        said = ["race", workload, "--backends", f"inductor,{both}", *timed]
        yield _step("race", workload), f"race on {workload}", _command(*said)
    if plan.conformance:
        for backend in works:
            said = ["conform", backend, "--profile", "quick"]
            yield f"conform-{backend}", "conformance, quick", _command(*said)


def _step(kind: str, workload: str) -> str:
    return f"{kind}-{workload.replace(':', '-')}"


def _command(*arguments: str) -> list[str]:
    return ["backbay", *arguments, "--device", "cpu", "--json", "-"]


def _installed(engine: Engine, environment: EngineEnvironment) -> list[BackendSpec]:
    """Return the backends whose line pip could install."""
    found = []
    for number, specs in enumerate(engine.lines.values()):
        installed = environment.installed(f"install-{number}")
        if installed is not None and not installed.why_not:
            found += specs
    return found


def _loaded(environment: EngineEnvironment) -> list[Loaded]:
    found = environment.found("loaded", list[Loaded]) or []
    # Where it is kept is nobody's business on a page.
    here = str(environment.folder)
    return [msgspec.structs.replace(x, error=x.error.replace(here, "...")) for x in found]


def _report(engines: Sequence[Engine], plan: Plan, names: Sequence[str]) -> Report:
    options = ["--torch", plan.torch]
    options += ["--constraints", plan.constraints.name] if plan.constraints is not None else []
    options += ["--conformance"] if plan.conformance else []
    command = ["backbay", "doctor", *names, "--fresh-venvs", *options]
    return Report(
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        machine=machine.machine("cpu"),
        torch=plan.torch,
        command=shlex.join(command),
        rows=tuple(row for x in engines for row in rows(x, plan.environment(x))),
        notes=tuple(note for x in engines for note in _notes(x, plan.environment(x))),
    )


def rows(engine: Engine, environment: EngineEnvironment) -> Iterator[Row]:
    """Yield a row for each backend of an engine, of what its folder holds."""
    loaded = {x.backend: x for x in _loaded(environment)}
    verified = {x: environment.found(f"verify-{x}", VerifyReport) for x in MODELS}
    raced = {x: environment.found(_step("race", x), RaceReport) for x in WORKLOADS}
    for number, (line, specs) in enumerate(engine.lines.items()):
        installed = environment.installed(f"install-{number}")
        for spec in specs:
            row = Row(
                engine=engine.name,
                backend=spec.name,
                adapter=selection.is_adapter(spec),
                install=line,
                why_not="" if line else _NO_LINE,
            )
            if installed is not None:
                row = msgspec.structs.replace(
                    row, installed="no" if installed.why_not else "yes", why_not=installed.why_not
                )
            yield msgspec.structs.replace(
                row,
                loaded=loaded.get(spec.name),
                cases=tuple(_cases(spec.name, verified)),
                speeds=tuple(_speeds(spec.name, raced)),
                conformance=_conformance(environment, spec.name),
            )


def _notes(engine: Engine, environment: EngineEnvironment) -> Iterator[str]:
    for workload in WORKLOADS:
        report = environment.found(_step("race", workload), RaceReport)
        for note in report.notes if report is not None else ():
            yield f"{engine.name}, {workload}: {note}"


def _cases(backend: str, verified: Mapping[str, VerifyReport | None]) -> Iterator[Case]:
    for model, report in verified.items():
        record = next((x for x in report.results if x.backend == backend), None) if report else None
        for use in USES if record is not None else ():
            checks = [x for x in record.checks if _use(x.mode, x.check) == use]  # type: ignore[union-attr]
            failed = next((x for x in checks if x.status != "right"), None)
            if checks:
                yield Case(
                    model=model,
                    use=use,
                    status="right" if failed is None else failed.status,
                    reason="" if failed is None else f"{failed.check}: {failed.reason}",
                )


def _use(mode: str, check: str) -> str:
    if check.startswith("batch"):
        return "changing batch"
    return "inference" if mode == "infer" else "training"


def _speeds(backend: str, raced: Mapping[str, RaceReport | None]) -> Iterator[Speed]:
    for workload, report in raced.items():
        for x in report.results if report is not None else ():
            left = x.left_to_torch
            if x.backend == backend:
                yield Speed(
                    workload=workload,
                    status=x.status,
                    reason="; ".join([x.reason, *x.notes]) if x.status != "ok" else "",
                    to_eager=x.ratio_to_eager,
                    to_eager_ci=x.ratio_to_eager_ci,
                    to_inductor=x.ratio_to_inductor,
                    to_inductor_ci=x.ratio_to_inductor_ci,
                    operators=None if left is None else left.operators,
                    owned=None if left is None else left.operators - left.left,
                )


def _conformance(environment: EngineEnvironment, backend: str) -> dict[str, int] | None:
    statement = environment.found(f"conform-{backend}", dict[str, Any])
    if statement is None:
        return None
    counts = Counter[str]()
    for level in statement["levels"]:
        counts.update(level["counts"])
    return dict(counts)
