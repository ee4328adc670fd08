"""One workload's race: reference, a trial for each backend, interleaved timing, a decision.

Everything that touches torch happens in sessions. A backend that fails, crashes, hangs or is wrong
is a row with its reason, and the race goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from backbay.errors import WorkloadInvalid
from backbay.race.caches import Caches
from backbay.race.decide import EAGER, INDUCTOR, decide
from backbay.race.field import Entrant
from backbay.race.record import Decision, Result
from backbay.race.requests import Reference, Referenced, Reply, Request, Tried, Try
from backbay.race.timing import Limits, Timing
from backbay.session import NoReply, Refused, Session
from backbay.timing import stats
from backbay.workloads.setup import WorkloadSetup

OpenSession = Callable[[Mapping[str, str]], Session[Request, Reply]]
"""Returns a session whose process has these environment variables."""

Tell = Callable[[str, str, str, str], None]
"""Called with workload, backend, what is going on, and how far it is; the last may be empty."""


@dataclass(kw_only=True)
class WorkloadRace:
    """One workload and everyone who runs it."""

    setup: WorkloadSetup
    entrants: Sequence[Entrant]
    caches: Caches
    golden: Path
    """The file that keeps the reference while the race runs."""
    open_session: OpenSession
    limits: Limits
    tell: Tell

    workload: str = ""
    """Its canonical name, once it was built."""
    device_name: str = ""
    notes: list[str] = field(default_factory=list)
    tried: dict[str, Tried] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)

    decision: Decision | None = None
    results: tuple[Result, ...] = ()

    def run(self) -> None:
        """Race, and fill in what came of it.

        Raises:
            WorkloadInvalid: the workload could not be built; nothing was raced.
        """
        self.workload = self.setup.workload
        reference = self._reference()
        if isinstance(reference, Tried):
            self.decision = self._without_reference(reference)
        else:
            self.decision = self._race(reference)
        self.results = tuple(self._result(entrant.name) for entrant in self.entrants)

    def _race(self, reference: Referenced) -> Decision:
        self.tried[EAGER] = Tried(status="ok", peak_bytes=reference.peak_bytes)
        for entrant in self.entrants[1:]:
            self.tried[entrant.name] = self._trial(entrant, reference.digest)
        self._time(reference.digest)
        if EAGER not in self.samples:
            return self._undecided(f"nothing was timed: {self.tried[EAGER].reason}")
        return decide(self.workload, self.setup.mode, self.samples)

    def _reference(self) -> Referenced | Tried:
        self._say(EAGER, "reference: eager and float64")
        reply = self._ask(Reference(setup=self.setup, golden=str(self.golden)))
        if isinstance(reply, Tried):
            return reply
        assert isinstance(reply, Referenced)
        self.workload = reply.workload
        self.device_name = reply.device_name
        self.notes += reply.notes
        return reply

    def _trial(self, entrant: Entrant, digest: str) -> Tried:
        if entrant.unavailable is not None:
            why = entrant.unavailable
            return Tried(status="unavailable", reason=f"{why.reason}; {why.remedy}")
        self._say(entrant.name, "compiling and proving")
        request = Try(
            setup=self.setup, backend=entrant.name, golden=str(self.golden), digest=digest
        )
        reply = self._ask(request)
        self.caches.keep(entrant.name)
        assert isinstance(reply, Tried)
        return reply

    def _ask(self, request: Request) -> Reply:
        """Ask a process of its own, with empty caches; one that gives no reply has tried in vain.

        Raises:
            WorkloadInvalid: the workload could not be built.
        """
        self.caches.empty()
        try:
            with self.open_session(self.caches.environment) as session:
                return session.ask(request, timeout_s=self.limits.backend_s)
        except Refused as refused:
            if isinstance(request, Reference) and refused.input_error:
                raise WorkloadInvalid(refused.reason, refused.detail) from None
            return Tried(status="failed", reason=refused.reason)
        except NoReply as lost:
            return Tried(status=lost.status, reason=lost.reason)

    def _time(self, digest: str) -> None:
        survivors = [name for name, outcome in self.tried.items() if outcome.status == "ok"]
        self.caches.restore(survivors)
        timing = Timing(
            setup=self.setup,
            digest=digest,
            open_session=lambda: self.open_session(self.caches.environment),
            limits=self.limits,
            tell=self._say,
        )
        timing.run(survivors)
        self.caches.drop()
        self.samples = timing.samples
        self.notes += timing.notes
        for name, (status, reason) in timing.lost.items():
            why = f"right, but lost while it was timed: {reason}"
            self.tried[name] = msgspec.structs.replace(self.tried[name], status=status, reason=why)

    def _result(self, name: str) -> Result:
        outcome = self.tried[name]
        tried = {key: getattr(outcome, key) for key in outcome.__struct_fields__}
        return Result(
            workload=self.workload,
            mode=self.setup.mode,
            backend=name,
            **tried,
            **self._times(name),
        )

    def _times(self, name: str) -> dict[str, Any]:
        if name not in self.samples:
            return {}
        own = self.samples[name]
        median_ms, ci_ms = stats.median(own)
        times: dict[str, Any] = {
            "samples_ms": tuple(own),
            "median_ms": median_ms,
            "ci_ms": ci_ms,
        }
        for rival in (EAGER, INDUCTOR):
            if rival in self.samples:
                value, interval = stats.ratio(self.samples[rival], own)
                times |= {f"ratio_to_{rival}": value, f"ratio_to_{rival}_ci": interval}
        return times

    def _without_reference(self, eager: Tried) -> Decision:
        """Fill the rows with why nothing could be raced."""
        self.tried[EAGER] = eager
        for entrant in self.entrants[1:]:
            reason = "not run: eager itself gave nothing to compare with"
            self.tried[entrant.name] = Tried(status="failed", reason=reason)
        return self._undecided(f"nothing was raced: eager itself {eager.status}: {eager.reason}")

    def _undecided(self, sentence: str) -> Decision:
        return Decision(
            workload=self.workload,
            mode=self.setup.mode,
            winner=EAGER,
            abstained=True,
            sentence=sentence,
        )

    def _say(self, backend: str, text: str, how_far: str = "") -> None:
        self.tell(self.workload, backend, text, how_far)
