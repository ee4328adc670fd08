"""Runs the suite on one backend and returns its statement."""

import contextlib
import dataclasses
import datetime as dt
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backbay.dependencies import check_installed
from backbay.errors import InputError, Interrupted
from backbay.registry import CompilerFn, Registry, default_registry
from backbay.reporting import machine
from backbay.reporting.wording import counted
from backbay.session import LocalClient
from backbay_conformance import expecting, pool
from backbay_conformance.expecting import Expected
from backbay_conformance.record import LEVELS, LevelSummary, Profile, Result, Statement
from backbay_conformance.requests import SERVICE, Ready, SuiteSetup
from backbay_conformance.suite import numbered

IN_PROCESS = (
    "the backend is an object, so the cases ran in this process: a crash or a hang would have "
    "ended it, and a backend that cheats is not contained"
)

ON_CLUSTER = "cases ran on {workers} of a Ray cluster; the machine is that of whoever asked"


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
    ray: str | None = None,
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
        ray: address of a Ray cluster whose workers run the cases, one for each core or GPU; empty:
            the one that runs on this machine, else a new one.
        registry: where a name is looked up; child processes have the default one.
        tell: called with each result as it comes.

    Raises:
        Interrupted: by Ctrl-C; it has the statement of the cases that were run.
        InputError: the backend does not exist or does not run here, there is no such level or
            case, or the expectations file cannot be understood.
    """
    check_installed("conform")
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))
    setup = SuiteSetup(
        backend=name,
        device=device or registry.environment.default_device,
        seed=seed,
        levels=tuple(numbered(levels or range(len(LEVELS)))),
        profile=profile,
        only=tuple(only),
        all_samples=all_samples,
    )
    registry.warn_if_experimental(backend)
    is_new = collect and expectations is not None and not expectations.exists()
    file = None if is_new else expectations
    expected = Expected.of(file, backend=name, device=setup.device, registry=registry)
    open_client = None
    if not isinstance(backend, str):
        open_client, workers = _in_process(backend, registry), 1
    elif ray is not None and (workers or caches):
        raise InputError("on a cluster each core or GPU has a worker, whose caches begin empty")
    start = time.perf_counter()
    with contextlib.ExitStack() as stack:
        away: Sequence[pool.Runner] = ()
        if ray is not None:
            away = stack.enter_context(_away(ray, backend, setup))
        ready, results, interruption = pool.run_all(
            setup,
            workers=workers or pool.usual_workers(),
            tell=tell,
            caches=caches,
            open_client=open_client,
            ends=lambda result: stop_on_failure and expected.explained([result])[0].failed,
            runners=away,
        )
    seconds = time.perf_counter() - start
    notes = () if open_client is None else (IN_PROCESS,)
    if ray is not None:
        notes = (ON_CLUSTER.format(workers=counted(len(away), "worker")),)
    if collect and expectations is not None and interruption is None:
        expected = dataclasses.replace(expected, lines=expected.collected(results))
        expectations.write_text(expecting.text(expected.lines), encoding="utf-8")
    whole = not levels and not only and not stop_on_failure
    stale = expected.stale(results, known=ready.known, levels=setup.levels)
    statement = _statement(
        setup,
        ready,
        expected.explained(results),
        registry,
        profile=profile if whole else "chosen",
        seconds=seconds,
        stale=() if interruption is not None else tuple(stale),
        isolation="process" if open_client is None else "in_process",
        partial=interruption is not None,
        notes=notes,
    )
    if interruption is not None:
        raise Interrupted(statement) from interruption
    return statement


def _away(
    address: str, backend: str | CompilerFn, setup: SuiteSetup
) -> contextlib.AbstractContextManager[Sequence[pool.Runner]]:
    from backbay_conformance.cluster import runners  # noqa: PLC0415 (only where asked for)

    if not isinstance(backend, str):
        raise InputError("an object can't travel to a cluster: name the backend")
    return runners(address, setup)


def _in_process(backend: CompilerFn, registry: Registry) -> pool.OpenClient:
    from backbay_conformance.handler import CaseHandler  # noqa: PLC0415 (imports torch)

    client = LocalClient(SERVICE, CaseHandler(backend, registry), {})
    return lambda: client


def _statement(
    setup: SuiteSetup, ready: Ready, results: Sequence[Result], registry: Registry, **found: Any
) -> Statement:
    resolution = registry.resolutions().get(setup.backend)
    specs = [] if resolution is None else [resolution.spec]
    return Statement(
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        backend=setup.backend,
        origin=str(specs[0].origin) if specs else setup.backend,
        device=setup.device,
        seed=setup.seed,
        samples="all" if setup.all_samples else "first",
        machine=machine.machine(ready.device_name),
        versions=machine.versions(registry.environment, specs),
        levels=tuple(LevelSummary.of(x, results) for x in setup.levels),
        results=tuple(results),
        **found,
    )
