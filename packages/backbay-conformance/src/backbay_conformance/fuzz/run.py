"""Runs random programs on a backend until the clock says stop, and makes what fails small.

Programs run in child processes: a crash and a hang are finds. No torch in this process.
"""

import contextlib
import itertools
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from backbay.errors import Interrupted
from backbay.registry import Registry, default_registry
from backbay_conformance import pool
from backbay_conformance.fuzz import known as knowing
from backbay_conformance.fuzz.minimising import minimised
from backbay_conformance.fuzz.program import Program
from backbay_conformance.fuzz.report import Find, FuzzReport, Standing
from backbay_conformance.fuzz.repro import repro
from backbay_conformance.record import FAILURES, LEVELS, Result, Status
from backbay_conformance.requests import Show, Shown, SuiteSetup

FIRST = 1_000_000
"""The first seed of a run: those of the suite's own programs begin at 0."""
PROGRAM_S = 300.0
"""Time for one program; what takes longer hangs."""
MINIMISING_S = 60.0
RUNS = 60
"""Time and compilations that making one find small may take."""
FINDS = 25
"""So many different finds are made small; a backend that fails everything fails alike."""

_DETAIL = re.compile(r" overall| Exception raised from| \(most recent call")
"""What follows holds addresses, or depends on the machine."""
_PARTICULAR = re.compile(r"-?\d[\d.,e+x]*|\b(?:inf|nan)x?\b|args|output|buffer \w+|[\[\](), ]")
"""Numbers, shapes, and which tensor it was."""


def fuzz(
    backend: str,
    *,
    seconds: float,
    seed: int = FIRST,
    device: str | None = None,
    workers: int | None = None,
    tell: pool.Tell = lambda _result: None,
    known: Sequence[knowing.Known] | None = None,
    registry: Registry = default_registry,
) -> FuzzReport:
    """Run random programs on a backend.

    Args:
        backend: a registered name, ``module:attribute`` or ``file.py:attribute``.
        seconds: how long programs are run; making finds small comes after that.
        seed: the first program's; the next have the next numbers. The suite's own begin at 0.
        device: as torch spells it; default: the accelerator if there is one.
        workers: processes side by side; default: one for each core.
        tell: called with each result as it comes.
        known: finds that are known, with their links; those that ship if not given.
        registry: says which device is the default.

    Raises:
        Interrupted: by Ctrl-C; it has the report of the programs that were run. Finds that were not
            made small have no program.
        InputError: the backend does not exist or does not run here.
    """
    setup = SuiteSetup(
        backend=backend,
        device=device or registry.environment.default_device,
        seed=0,
        levels=(LEVELS.index("programs"),),
        profile="full",
        only=("programs/fuzz/0",),
    )
    registry.warn_if_experimental(backend)
    run = _Run(setup=setup, numbers=itertools.count(seed), tell=tell)
    run.known = knowing.shipped() if known is None else tuple(known)
    run.torch = str(registry.environment.torch_build["__version__"])
    interruption: KeyboardInterrupt | None = None
    with tempfile.TemporaryDirectory(prefix="backbay-fuzz-") as caches:
        run.caches = Path(caches)
        try:
            with run.timed("programs"):
                run.programs(seconds, workers or pool.usual_workers())
            with run.timed("minimising"):
                run.minimise()
        except KeyboardInterrupt as stopped:
            interruption = stopped
    report = FuzzReport(
        backend=backend,
        device=setup.device,
        torch=run.torch,
        first_seed=seed,
        programs=sum(run.counts.values()),
        seconds=run.spent["programs"],
        minimising_s=run.spent["minimising"],
        counts=dict(run.counts.most_common()),
        finds=run.finds(),
        partial=interruption is not None,
    )
    if interruption is not None:
        raise Interrupted(report) from interruption
    return report


def same_find(result: Result) -> tuple[Status, str]:
    """What two results have in common that show one fault: the reason without its numbers."""
    reason = _DETAIL.split(result.reason)[0]
    return result.status, _PARTICULAR.sub("", reason)


@dataclass(kw_only=True)
class _Run:
    setup: SuiteSetup
    numbers: Iterator[int]
    tell: pool.Tell
    known: tuple[knowing.Known, ...] = ()
    torch: str = ""
    caches: Path = field(default_factory=Path)
    counts: Counter[Status] = field(default_factory=Counter)
    failed: dict[tuple[Status, str], list[Result]] = field(default_factory=dict)
    small: dict[object, Find] = field(default_factory=dict)
    """Finds whose program was made small, by what tells them apart."""
    spent: dict[str, float] = field(default_factory=lambda: {"programs": 0.0, "minimising": 0.0})
    """Seconds, by what they were spent on."""

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the seconds of the block, also where it is interrupted."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.spent[what] += time.monotonic() - start

    def programs(self, seconds: float, workers: int) -> None:
        """Run programs side by side for a time."""
        sessions = [self._session() for _ in range(workers)]
        sessions[0].ready()  # what it takes to load the backend is not counted
        start = time.monotonic()
        in_time = itertools.takewhile(lambda _: time.monotonic() < start + seconds, self.numbers)
        cases = ((f"programs/fuzz/{number}", PROGRAM_S) for number in in_time)
        pool.run_side_by_side(sessions, cases, self._note)

    def _session(self) -> pool.CaseSession:
        return pool.CaseSession(
            self.setup, lambda: pool.start(self.caches), pool.judge_in(self.caches)
        )

    def _note(self, result: Result) -> None:
        self.counts[result.status] += 1
        self.tell(result)
        if result.status in FAILURES or result.status == "upstream":
            self.failed.setdefault(same_find(result), []).append(result)

    def minimise(self) -> None:
        """Make the finds small, and attribute each; what turns out alike is one find."""
        with self._session() as session:
            for key, results in [*self.failed.items()][:FINDS]:
                find = self._find(session, results)
                self._keep(find)
                del self.failed[key]

    def _keep(self, find: Find) -> None:
        assert find.program is not None
        kinds = [(x.kind, re.sub(r"\d+", "", x.expr)) for x in find.program.statements]
        key = same_find(find.result), find.program.train, tuple(kinds)
        if key in self.small:
            seeds = tuple(sorted({*self.small[key].seeds, *find.seeds}))
            find = msgspec.structs.replace(self.small[key], seeds=seeds)
        self.small[key] = find

    def finds(self) -> tuple[Find, ...]:
        """Return the finds: those that were made small, and those that were not."""
        order: tuple[Standing, ...] = ("new", "upstream", "known")
        return tuple(
            sorted(
                [*self.small.values(), *map(_as_found, self.failed.values())],
                key=lambda x: order.index(x.standing),
            )
        )

    def _find(self, session: pool.CaseSession, results: Sequence[Result]) -> Find:
        first = results[0]
        shown = session.ask(Show(seed=_seed(first)), timeout_s=PROGRAM_S)
        assert isinstance(shown, Shown)  # it was run before

        def run(candidate: Program) -> Result:
            return session.run(candidate.id, PROGRAM_S, program=candidate)

        def fails(candidate: Program) -> bool:
            return _alike(same_find(run(candidate)), same_find(first))

        small = minimised(shown.program, fails, seconds=MINIMISING_S, runs=RUNS)
        result = run(small) if small is not shown.program else first
        covered = next((x for x in self.known if x.covers(result, small)), None)
        upstream = result.status == "upstream"
        standing: Standing = "upstream" if upstream else "new"
        return Find(
            standing=standing if covered is None else "known",
            link="" if covered is None else covered.link,
            result=result,
            seeds=tuple(map(_seed, results)),
            program=small,
            repro=repro(
                small,
                result,
                # The reference backend that failed alike was the last one tried.
                backend=[*result.reference_backends][-1] if upstream else self.setup.backend,
                device=self.setup.device,
                torch=self.torch,
            ),
        )


def _as_found(results: Sequence[Result]) -> Find:
    standing: Standing = "upstream" if results[0].status == "upstream" else "new"
    return Find(standing=standing, result=results[0], seeds=tuple(map(_seed, results)))


def _seed(result: Result) -> int:
    return int(result.id.rpartition("/")[2])


def _alike(one: tuple[Status, str], other: tuple[Status, str]) -> bool:
    """Whether two failures are of one kind; an exception must be the same one."""
    if one[0] != other[0]:
        return False
    raised = "Error" in other[1]
    return one[1] == other[1] if raised else "Error" not in one[1]
