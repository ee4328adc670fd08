"""Runs the suite on one backend and returns its statement."""

import datetime as dt
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backbay.dependencies import check_installed
from backbay.reference_backends import TORCH_BACKENDS
from backbay.registry import BackendSpec, CompilerFn, Registry, default_registry
from backbay.reporting import machine
from backbay.session import LocalClient
from backbay_conformance import expecting, pool
from backbay_conformance.record import LEVELS, LevelSummary, Profile, Result, Statement
from backbay_conformance.requests import SERVICE, Ready, SuiteSetup
from backbay_conformance.suite import numbered

if TYPE_CHECKING:
    from backbay_conformance.expecting import Expectation

IN_PROCESS = (
    "the backend is an object, so the cases ran in this process: a crash or a hang would have "
    "ended it"
)


def conform(
    backend: str | CompilerFn,
    *,
    profile: Profile = "quick",
    levels: Sequence[str | int] | None = None,
    only: Sequence[str] = (),
    all_samples: bool = False,
    device: str | None = None,
    seed: int = 0,
    workers: int | None = None,
    expectations: Path | None = None,
    collect: bool = False,
    caches: Path | None = None,
    stop_on_failure: bool = False,
    registry: Registry = default_registry,
    tell: pool.Tell = lambda _result: None,
) -> Statement:
    """Put a backend through the suite.

    Args:
        backend: a registered name, ``module:attribute`` or ``file.py:attribute``, whose cases run
            in child processes; or a compiler function, whose cases run in this one.
        profile: ``quick``, a share of each level that the seed decides; or ``full``.
        levels: names or numbers of levels, ``"0-3"`` for several; default: all.
        only: patterns of case ids, as in a shell; instead of the profile's choice.
        all_samples: all sample inputs of each operator, instead of the first.
        device: as torch spells it; default: the accelerator if there is one.
        seed: of the choice, of inputs, and of everything random.
        workers: processes side by side; default: one for each core.
        expectations: the file of failures that are known; see `backbay_conformance.expecting`.
        collect: write that file anew instead of holding the results to it.
        caches: folder of the compilers' caches, which a later run finds again; default: an empty
            one, so that everything is compiled.
        stop_on_failure: start no further case after the first that is held against the backend.
        registry: where a name is looked up; child processes have the default one.
        tell: called with each result as it comes.

    Raises:
        InputError: the backend does not exist or does not run here, there is no such level or
            case, or the expectations file cannot be understood.
    """
    check_installed("conform")
    lines = _lines(expectations, may_be_absent=collect)
    device = device or registry.environment.default_device
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))
    setup = SuiteSetup(
        backend=name,
        device=device,
        seed=seed,
        levels=tuple(numbered(levels) if levels is not None else range(len(LEVELS))),
        profile=profile,
        only=tuple(only),
        all_samples=all_samples,
    )
    kind, torch = device.partition(":")[0], str(registry.environment.torch_build["__version__"])
    explained = functools.partial(
        expecting.explained, device=kind, torch=torch, is_torchs=name in TORCH_BACKENDS
    )
    known = expecting.shipped(name) | lines

    def ends(result: Result) -> bool:
        return stop_on_failure and explained([result], known)[0].failed

    start = time.perf_counter()
    if isinstance(backend, str):
        count = workers or pool.usual_workers()
        ready, results = pool.run_all(setup, workers=count, tell=tell, caches=caches, ends=ends)
    else:
        from backbay_conformance.handler import CaseHandler  # noqa: PLC0415 (imports torch)

        client = LocalClient(SERVICE, CaseHandler(backend, registry), {})
        ready, results = pool.run_all(
            setup, workers=1, tell=tell, open_client=lambda: client, ends=ends
        )
    run = _Run(setup=setup, ready=ready, results=results, seconds=time.perf_counter() - start)
    if collect and expectations is not None:
        lines = expecting.collected(results, lines, device=kind, torch=torch)
        expectations.write_text(expecting.text(lines), encoding="utf-8")
    run.results = explained(results, expecting.shipped(name) | lines)
    stale = expecting.stale(
        results, lines, known=ready.known, levels=setup.levels, device=kind, torch=torch
    )
    whole = levels is None and not only and not stop_on_failure
    notes = () if isinstance(backend, str) else (IN_PROCESS,)
    return _statement(run, stale, notes, registry, whole=whole)


def _lines(path: Path | None, *, may_be_absent: bool) -> "dict[str, Expectation]":
    if path is None or (may_be_absent and not path.exists()):
        return {}
    return expecting.read(path)


class _Run:
    """What came of a run."""

    def __init__(
        self, *, setup: SuiteSetup, ready: Ready, results: list[Result], seconds: float
    ) -> None:
        self.setup = setup
        self.ready = ready
        self.results = results
        self.seconds = seconds


def _statement(
    run: _Run, stale: Sequence[str], notes: Sequence[str], registry: Registry, *, whole: bool
) -> Statement:
    found = registry.resolutions().get(run.setup.backend)
    spec: BackendSpec | None = None if found is None else found.spec
    specs = [] if spec is None else [spec]
    return Statement(
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        backend=run.setup.backend,
        origin=run.setup.backend if spec is None else str(spec.origin),
        profile=run.setup.profile if whole else "chosen",
        device=run.setup.device,
        seed=run.setup.seed,
        samples="all" if run.setup.all_samples else "first",
        machine=machine.machine(run.ready.device_name),
        versions=machine.versions(registry.environment, specs),
        seconds=run.seconds,
        levels=tuple(LevelSummary.of(x, run.results) for x in run.setup.levels),
        results=tuple(run.results),
        stale=tuple(stale),
        notes=tuple(notes),
    )
