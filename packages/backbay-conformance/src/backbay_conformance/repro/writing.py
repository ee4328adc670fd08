"""Writes a repro for each failure of a run, and runs each once by itself: does it show the bug?"""

import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from backbay.errors import plain
from backbay.registry import target
from backbay.session import NoReply
from backbay_conformance.record import FAILURES, LEVELS, Result, Statement
from backbay_conformance.repro.record import (
    MOST_LINES,
    SERVICE,
    Limits,
    Made,
    Make,
    MakingSession,
    Repro,
)
from backbay_conformance.requests import SuiteSetup

_MARGIN_S = 240.0
"""A child may take so much longer than minimising: it imports torch, collects and runs the case."""
_RUN_S = 300.0
_WIDEST = 110
_MODULES = ("copy", "os", "subprocess")
"""What a program uses of Python's own where its body says so."""

Tell = Callable[[Repro], None]


def open_session() -> MakingSession:
    """Return a session in a child process."""
    # Forked copies of the child compile, too: workers of their own would outlive them.
    return SERVICE.session({"TORCHINDUCTOR_COMPILE_THREADS": "1"})


def write(
    run: Statement | Iterable[Result],
    folder: Path,
    *,
    setup: SuiteSetup | None = None,
    limits: Limits | None = None,
    tell: Tell = lambda _repro: None,
    open_session: Callable[[], MakingSession] = open_session,
) -> list[Repro]:
    """Write a file for each failure of a run that is held against the backend.

    Args:
        run: a run of the suite on a backend that is named; or results, with ``setup``.
        folder: where the files go; it is made.
        setup: what the results are of, where no statement says so.
        limits: how far minimising goes.
        tell: called with each repro as it is written.
        open_session: opens what makes them, one for each; in child processes if not given.

    Returns:
        One for each failure, in order. Where none could be made, or the file does not show the
        failure by itself, a note says why.

    Raises:
        ValueError: results were given without ``setup``.
    """
    results = run.results if isinstance(run, Statement) else tuple(run)
    setup = setup or (_setup(run) if isinstance(run, Statement) else None)
    if setup is None:
        raise ValueError("results alone do not say which backend they are of: give setup")
    folder.mkdir(parents=True, exist_ok=True)
    versions = run.versions if isinstance(run, Statement) else {}
    found = []
    for result in results:
        if result.failed:
            writer = _Writer(setup, result, folder, limits=limits or Limits(), versions=versions)
            repro = writer.repro(open_session)
            tell(repro)
            found.append(repro)
    return found


def _setup(statement: Statement) -> SuiteSetup:
    return SuiteSetup(
        backend=statement.backend,
        device=statement.device,
        seed=statement.seed,
        levels=tuple(x.level for x in statement.levels) or tuple(range(len(LEVELS))),
        profile="full",
        all_samples=statement.samples == "all",
    )


class _Writer:
    """Writes one failure's file."""

    def __init__(
        self,
        setup: SuiteSetup,
        result: Result,
        folder: Path,
        *,
        limits: Limits,
        versions: dict[str, str],
    ) -> None:
        assert result.status in FAILURES
        self._setup = setup
        self._result = result
        self._path = folder / f"{re.sub(r'[^A-Za-z0-9]+', '_', result.id).strip('_')}.py"
        self._limits = limits
        self._versions = versions

    def repro(self, open_session: Callable[[], MakingSession]) -> Repro:
        start = time.monotonic()
        made = self._made(open_session)
        if not made.body:
            return self._record(made, None, start)
        text = self._text(made)
        self._path.write_text(text, encoding="utf-8")
        return self._record(made, text, start)

    def _record(self, made: Made, text: str | None, start: float) -> Repro:
        shown = text is not None and self._is_shown()
        lines = 0 if text is None else text.count("\n")
        notes = [made.note] if made.note else []
        if text is not None and not shown:
            notes.append("run by itself, it does not end with 1")
        if lines > MOST_LINES:
            notes.append(f"it has {lines} lines")
        return Repro(
            case=self._result.id,
            status=self._result.status,
            path=None if text is None else str(self._path),
            kind=made.kind,
            lines=lines,
            nodes=made.nodes,
            nodes_before=made.nodes_before,
            shown=shown,
            seconds=time.monotonic() - start,
            note="; ".join(notes),
        )

    def _made(self, open_session: Callable[[], MakingSession]) -> Made:
        request = Make(
            setup=self._setup,
            id=self._result.id,
            status=self._result.status,
            seconds=self._limits.seconds,
            nodes=self._limits.nodes,
        )
        try:
            with open_session() as session:
                return session.ask(request, timeout_s=self._limits.seconds + _MARGIN_S)
        except NoReply as error:
            return Made(note=f"none could be made: {error.reason}")

    def _text(self, made: Made) -> str:
        wanted = {"sys", "torch"} | {x for x in _MODULES if f"{x}." in made.body}
        given = {x.removeprefix("import ") for x in made.imports if x.startswith("import ")}
        others = sorted(x for x in set(made.imports) if not x.startswith("import "))
        plain_ones = f"import {', '.join(sorted(wanted | given))}"
        lines = [*self._head(made), plain_ones, *others, *self._backend()]
        body = re.sub(r"\n{2,}", "\n\n", made.body).strip("\n")
        text = "\n".join([*lines, "", body, ""])
        return text if text.count("\n") <= MOST_LINES else text.replace("\n\n", "\n")

    def _head(self, made: Made) -> Iterator[str]:
        result = self._result
        yield f"# {result.id}: {result.status} with {self._setup.backend} ({made.kind})"
        reason = plain(result.reason)
        yield f"# {reason if len(reason) <= _WIDEST else f'{reason[: _WIDEST - 1]}…'}"
        references = {**result.reference_backends, self._setup.backend: result.status}
        yield f"# {', '.join(f'{name}: {status}' for name, status in references.items())}"
        versions = {"python": platform.python_version(), **self._versions}
        yield f"# {', '.join(f'{x} {y}' for x, y in versions.items())}, {platform.machine()}"

    def _backend(self) -> Iterator[str]:
        """Name the backend, or import it; another one's name may be given on the command line."""
        name = self._setup.backend
        parsed = target.parse(name)
        if parsed is None:
            yield f'BACKEND = sys.argv[1] if len(sys.argv) > 1 else "{name}"'
            return
        source = Path(parsed.source)
        folder = source.resolve().parent if parsed.is_file else Path.cwd()
        module = source.stem if parsed.is_file else parsed.source
        yield f"sys.path.append({str(folder)!r})"
        yield f"from {module} import {parsed.attribute} as own"
        yield "BACKEND = own if len(sys.argv) == 1 else sys.argv[1]"

    def _is_shown(self) -> bool:
        """Run the file as its reader will."""
        try:
            done = subprocess.run(
                [sys.executable, str(self._path)],
                capture_output=True,
                timeout=_RUN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return self._result.status == "hang"
        return done.returncode == 1
