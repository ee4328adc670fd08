"""What the pytest plugin keeps while it runs: a child process, and the cases put to it."""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from backbay.errors import InputError
from backbay.registry import default_registry
from backbay_conformance import pool
from backbay_conformance.expecting import Expected
from backbay_conformance.record import LEVELS, UNTRIED, Profile, Result, Status
from backbay_conformance.requests import SuiteSetup
from backbay_conformance.statement import counted
from backbay_conformance.suite import numbered


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line and the configuration of pytest ask for."""

    backend: str
    profile: Profile
    levels: tuple[int, ...]
    expectations: Path | None
    device: str
    seed: int


def asked_for(config: pytest.Config) -> Asked:
    """Read the command line, and where it says nothing the configuration.

    Raises:
        pytest.UsageError: no backend is named, or what is said cannot be understood.
    """
    given = {x: _given(config, x) for x in ("profile", "levels", "expectations", "device", "seed")}
    backend = _given(config, "backend")
    if not backend:
        raise pytest.UsageError(
            "the conformance suite needs to know which backend: --backend NAME, or "
            "conformance_backend = NAME in pytest's configuration"
        )
    path = config.rootpath / given["expectations"] if given["expectations"] else None
    asked = {
        "backend": backend,
        "profile": given["profile"] or "quick",
        "device": given["device"] or default_registry.environment.default_device,
        "seed": given["seed"] or "0",
    }
    try:
        levels = numbered(given["levels"].replace(",", " ").split()) or range(len(LEVELS))
        return msgspec.convert(
            {**asked, "levels": tuple(levels), "expectations": path}, Asked, strict=False
        )
    except (InputError, msgspec.ValidationError) as error:
        raise pytest.UsageError(str(error)) from error


def _given(config: pytest.Config, name: str) -> str:
    value = config.getoption(f"conformance_{name}", None) or config.getini(f"conformance_{name}")
    return str(value or "")


class PytestRun:
    """One pytest process's child, and its cases."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._caches = tempfile.TemporaryDirectory(prefix="backbay-conform-")
        setup = SuiteSetup(
            backend=asked.backend,
            device=asked.device,
            seed=asked.seed,
            levels=asked.levels,
            profile=asked.profile,
        )
        folder = Path(self._caches.name)
        self._session = pool.CaseSession(setup, lambda: pool.start(folder), pool.judge_in(folder))
        try:
            self._expected = Expected.of(
                asked.expectations,
                backend=asked.backend,
                device=asked.device,
                registry=default_registry,
            )
            self._ready = self._session.ready()
        except InputError as error:
            self.end()
            raise pytest.UsageError(str(error)) from error

    def cases(self) -> "list[PytestCase]":
        """Return the cases, once the expectations file names no others.

        Raises:
            pytest.UsageError: it names one that does not exist.
        """
        stale = self.untrue()
        if stale:
            raise pytest.UsageError(f"{self._asked.expectations}: {'; '.join(stale)}")
        return [PytestCase(self, x, seconds) for x, seconds in self._ready.cases]

    def run(self, case_id: str, seconds: float) -> Result:
        """Run a case, and hold its result against what is expected."""
        return self._expected.explained([self._session.run(case_id, seconds)])[0]

    def untrue(self, *results: Result) -> list[str]:
        """Return in what the expectations file is wrong about results, or about all cases."""
        return self._expected.stale(results, known=self._ready.known, levels=self._asked.levels)

    def end(self) -> None:
        """End the child process, and remove its caches."""
        self._session.end()
        self._caches.cleanup()


class PytestCase:
    """One case, as a parameter of a test."""

    def __init__(self, run: PytestRun, case_id: str, seconds: float) -> None:
        self.id = case_id
        self._run = run
        self._seconds = seconds
        self._result: Result | None = None

    def run(self) -> Status:
        """Put it to the backend."""
        self._result = self._run.run(self.id, self._seconds)
        return self._result.status

    def judge(self) -> None:
        """Pass, fail, skip, or be an expected failure, as the result is."""
        __tracebackhide__ = True
        assert self._result is not None  # it was run
        result, said = self._result, f"{self._result.status}: {self._result.reason}"
        untrue = self._run.untrue(result)
        if untrue:
            pytest.fail(f"the expectations file is not true: {untrue[0]}; {said}", pytrace=False)
        if result.failed:
            references = ", ".join(
                f"{x} {status}" for x, status in result.reference_backends.items()
            )
            pytest.fail(f"{said}\n{references}", pytrace=False)
        if result.expected:
            pytest.xfail(f"{said}; {result.expected}")
        if result.status == "upstream":
            pytest.xfail(said)
        if result.status in UNTRIED:
            pytest.skip(said)


def summary(found: Iterable[tuple[str, Status]]) -> Iterator[str]:
    """Yield a line of counts for each level."""
    by_level: dict[str, Counter[Status]] = {}
    for case_id, status in found:
        by_level.setdefault(case_id.partition("/")[0], Counter())[status] += 1
    for number, name in enumerate(LEVELS):
        if name in by_level:
            yield f"level {number:2} {name:10} {counted(dict(by_level[name]))}"
