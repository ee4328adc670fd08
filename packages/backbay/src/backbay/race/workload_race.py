"""One workload's race: reference, a trial for each arm, interleaved timing, a decision.

Everything that touches torch happens in sessions. A backend that fails, crashes, hangs or is wrong
is a row with its reason, and the race goes on. Backends hand on what their calls gave; a judge, in
a process where none was loaded, says whether it is right.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from backbay.decisions import Arm
from backbay.errors import WorkloadInvalid
from backbay.judge import Judge, JudgeLost, Prepared
from backbay.judge.client import JudgeSession
from backbay.race.ahead import Ahead
from backbay.race.caches import Caches
from backbay.race.costs import costs
from backbay.race.decide import EAGER, INDUCTOR, Deciding, with_exceptions
from backbay.race.field import Entrant
from backbay.race.given import Given, InputSets
from backbay.race.objective import Objective
from backbay.race.record import Decision, Part, Result, Trying, VerdictRecord
from backbay.race.requests import (
    ArmSetup,
    Captured,
    GetReady,
    Proving,
    WarmUp,
)
from backbay.race.times import Times
from backbay.race.timing import Limits, Timing
from backbay.race.trials import OpenSession, Trials, reveal
from backbay.race.turns import Turns
from backbay.reporting.machine import cores
from backbay.session import NoReply, Refused, end_until_done
from backbay.timing import stats
from backbay.timing.gpu_work import GpuWork
from backbay.workloads.setup import WorkloadSetup

_CORES_EACH = 2
"""That an arm which is being compiled keeps busy, more or less."""
_PEAKS_EACH = 4
"""Of eager's peak memory: what compiling and proving an arm takes, more or less."""

_MOST_AHEAD = 4
"""Arms whose processes start while the reference is made, and the toolchain is looked at."""

_EXPERIMENTAL = "experimental: its author makes no promises"


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """How sessions are opened: in child processes, or in this one."""

    reference: Callable[[Mapping[str, str]], JudgeSession]
    """Makes the reference."""
    backends: OpenSession
    here: bool = False
    """Whether it is this one."""


Tell = Callable[[str, str, str, str], None]
"""Called with workload, arm, what is going on, and how far it is; the last may be empty."""
OnRow = Callable[[Result], None]
"""Called with each row when it has come, and again when it has times."""


@dataclass(kw_only=True)
class WorkloadRace:
    """One workload and everyone who runs it."""

    setup: WorkloadSetup
    entrants: Sequence[Entrant]
    arms: Mapping[str, ArmSetup]
    """How each entrant compiles, by its name."""
    caches: Caches
    folder: Path
    """Where the reference is on its way to the judge, and what calls gave."""
    sessions: Sessions
    limits: Limits
    tell: Tell
    on_row: OnRow = lambda _: None
    objective: Objective = field(default_factory=Objective)
    turns: Turns = field(default_factory=Turns)
    capture: bool = False
    """Whether to find out which graphs backends are handed."""

    workload: str = ""
    """Its canonical name, once it was built."""
    device_name: str = ""
    notes: list[str] = field(default_factory=list)
    tried: dict[str, Trying] = field(default_factory=dict)
    disturbing: dict[str, str] = field(default_factory=dict)
    """Who has changed what all in a process share, and what that was."""
    captured: Captured | None = None
    """The graphs that backends are handed."""
    times: Times = field(default_factory=Times)
    parts: dict[str, Times] = field(default_factory=dict)
    """Of a step that calls the model several times, those of each call by itself."""

    gpu_work: dict[str, GpuWork] = field(default_factory=dict)
    """What a GPU does during a step of each."""
    busy: float = 0.0
    """Cores that other processes used while arms were timed."""
    decision: Decision | None = None
    results: tuple[Result, ...] = ()
    _ahead: Ahead = field(init=False)

    def __post_init__(self) -> None:
        self._ahead = Ahead(self.sessions.backends, timeout_s=self.limits.backend_s)

    def run(self) -> None:
        """Race, and fill in what came of it.

        Raises:
            WorkloadInvalid: the workload could not be built; nothing was raced.
            KeyboardInterrupt: there is no decision; the results are those of who had been tried.
        """
        self.workload = self.setup.workload
        self.folder.mkdir(exist_ok=True)
        judge = Judge(
            self.setup,
            self.folder,
            open_session=lambda: self.sessions.reference(self.caches.environment(EAGER)),
            timeout_s=self.limits.backend_s,
        )
        try:
            with judge, self._ahead:
                with self.turns.working(), self._toolchain():
                    self._start_ahead()
                    prepared = self._prepared(judge)
                if isinstance(prepared, Trying):
                    self.decision = self._without_reference(prepared)
                else:
                    self.decision = self._race(judge, prepared)
        except KeyboardInterrupt:
            self.times = Times()  # not all that was timed has been judged
            raise
        finally:
            tried = [entrant.name for entrant in self.entrants if entrant.name in self.tried]
            self.results = tuple(map(self._result, tried))

    def _start_ahead(self) -> None:
        """Start the processes of the first arms, and of the timing."""
        if self.sessions.here:
            return
        ready = [x.name for x in self.entrants if x.unavailable is None]
        for name in ready[: 1 + min(_MOST_AHEAD, self._wanted_at_once())]:  # eager is the first
            self.caches.empty(name)
            self._ahead.start(self.caches.environment(name))

    def _race(self, judge: Judge, prepared: Prepared) -> Decision:
        self._tried(EAGER, Trying(status="ok", peak_bytes=prepared.peak_bytes))
        proving = Proving(
            draws_random=prepared.draws_random,
            math_attention=prepared.math_attention,
            reduced=prepared.reduced,
        )
        sets = self._sets(prepared, proving)
        for entrant in self.entrants[1:]:
            if entrant.unavailable is not None:
                lacking = f"{entrant.unavailable.reason}; {entrant.unavailable.remedy}"
                self._tried(entrant.name, Trying(status="unavailable", reason=lacking))
        trials = self._trials(judge, prepared, proving, sets)
        with self.turns.working():
            if trials.at_once > 1:  # else it would make who compiles alone slower
                self._ahead.get_ready(self.caches.environment(EAGER), GetReady(setup=self.setup))
            trials.run([x for x in self.entrants[1:] if x.unavailable is None])
        self.captured, self.disturbing = trials.captured, trials.disturbing
        self.tried = {x.name: self.tried[x.name] for x in self.entrants}
        over = self._over_limit()
        with contextlib.suppress(JudgeLost):
            self._time(judge, prepared, sets, over)
        if judge.lost is not None:
            self.times = Times()  # not all that was timed has been judged
            return self._undecided(f"nothing is decided: the judge was lost: {judge.lost}")
        for name in self.tried:
            self.on_row(self._result(name))
        if EAGER not in self.times:
            return self._undecided(f"nothing was timed: {self.tried[EAGER].reason}")
        known = costs(self.objective, self.times, self.tried)
        if EAGER not in known:
            return self._undecided("nothing is decided: the system does not tell eager's memory")
        decided = Deciding(
            workload=self.workload,
            mode=self.setup.mode,
            costs=known,
            objective=self.objective,
            excluded=over,
            busy=self.busy,
            seconds=self.limits.timing_s,
        ).decision()
        if self.objective.kind == "memory":
            return decided
        return with_exceptions(decided, self.parts, over)

    def _trials(
        self, judge: Judge, prepared: Prepared, proving: Proving, sets: InputSets
    ) -> Trials:
        at_once = self._at_once(prepared)
        if at_once > 1:
            note = f"* up to {at_once} arms were compiled at the same time: alone, each takes less"
            self.notes.append(note)
        return Trials(
            setup=self.setup,
            arms=self.arms,
            judge=judge,
            prepared=prepared,
            proving=proving,
            sets=sets,
            caches=self.caches,
            folder=self.folder,
            open_session=self._ahead,
            limits=self.limits,
            at_once=at_once,
            tell=self._say,
            done=self._tried,
            capture=self.capture,
        )

    def _at_once(self, prepared: Prepared) -> int:
        """Return how many arms are tried at the same time: as cores and memory allow.

        One, where compile times decide, or where all of them would be in this process.
        """
        if self.sessions.here or self.objective.kind == "total":
            return 1
        ready = sum(x.unavailable is None for x in self.entrants) - 1
        wanted = self._wanted_at_once()
        if prepared.peak_bytes and prepared.free_bytes:
            wanted = min(wanted, prepared.free_bytes // (_PEAKS_EACH * prepared.peak_bytes))
        return max(1, min(wanted, ready))

    def _wanted_at_once(self) -> int:
        return self.limits.at_once or max(1, cores() // _CORES_EACH)

    def _tried(self, name: str, tried: Trying) -> None:
        self.tried[name] = tried
        self.on_row(self._result(name))

    def _over_limit(self) -> list[str]:
        """Return who needs more memory than it may, and note it."""
        found = []
        for name, tried in self.tried.items():
            why = self.objective.exceeded(tried.peak_bytes) if tried.status == "ok" else ""
            if why:
                found.append(name)
                note = why if name == EAGER else f"not timed: it {why}"
                self.tried[name] = msgspec.structs.replace(tried, notes=(*tried.notes, note))
        return found

    @contextlib.contextmanager
    def _toolchain(self) -> Iterator[None]:
        """Find out about Inductor's toolchain meanwhile, where Inductor takes part.

        Not by another backend: what that leaves may be anything.
        """
        ready = (x.arm.backend for x in self.entrants if x.unavailable is None)
        wanted = INDUCTOR in ready and not self.sessions.here
        environment = self.caches.toolchain() if wanted else None
        if environment is None:
            yield
            return
        session = self.sessions.backends(environment)
        request = WarmUp(setup=self.setup, arm=ArmSetup(arm=Arm(backend=INDUCTOR)))

        def warm_up() -> None:
            with contextlib.suppress(NoReply):  # then each arm's trial does it for itself
                session.ask(request, timeout_s=self.limits.backend_s)

        with ThreadPoolExecutor(1) as pool, session:
            warming = pool.submit(warm_up)
            try:
                yield
            except BaseException:
                warming.cancel()
                end_until_done(session.end, [warming])
                raise
            warming.result()

    def _prepared(self, judge: Judge) -> Prepared | Trying:
        """Have the reference made; eager may have failed.

        Raises:
            WorkloadInvalid: the workload could not be built.
        """
        self._say(EAGER, "reference: eager and float64")
        self.caches.empty(EAGER)
        try:
            prepared = judge.prepare()
        except Refused as refused:
            if refused.input_error:
                raise WorkloadInvalid(refused.reason, refused.detail) from None
            return Trying(status="failed", reason=refused.reason)
        except NoReply as lost:
            return Trying(status=lost.status, reason=lost.reason)
        self.workload = prepared.workload
        self.device_name = prepared.device_name
        self.notes += prepared.notes
        return prepared

    def _sets(self, prepared: Prepared, proving: Proving) -> InputSets:
        """Return where the sets of inputs are written; the last is kept for the end."""
        files = [self.folder / f"inputs-{i}" for i in range(1, len(prepared.seeds))]
        last = files.pop() if len(prepared.seeds) > 1 else None
        unjudged = _unjudged(prepared)
        if unjudged:
            self.notes.append(f"what ran while the clock did was not judged: {unjudged}")
        return InputSets(
            files=tuple(files),
            seeds=prepared.seeds,
            last=last,
            sampled=not unjudged,
            afterwards=not proving.apart,
        )

    def _time(
        self, judge: Judge, prepared: Prepared, sets: InputSets, over: Collection[str]
    ) -> None:
        right = [name for name, outcome in self.tried.items() if outcome.status == "ok"]
        survivors = [name for name in right if name == EAGER or name not in over]

        def reveal_last() -> None:
            if sets.last is not None:
                judge.reveal(len(sets.seeds) - 1, sets.last)

        timing = Timing(
            setup=self.setup,
            digest=prepared.digest,
            open_session=lambda: self._ahead(self.caches.environment(EAGER)),
            limits=self.limits,
            objective=self.objective,
            turns=self.turns,
            cache_of=lambda name: str(self.caches.folder(name)),
            cost_of=lambda times: costs(self.objective, times, self._compiled(timing)),
            tell=self._say,
            folder=self.folder,
            sets=sets,
            arms=self.arms,
            reveal=lambda: reveal(judge, sets),
            reveal_last=reveal_last,
            calls=prepared.calls,
        )
        timing.run(survivors, {x: y for x, y in self.disturbing.items() if x in survivors})
        self.caches.drop()
        self.times = Times(timing.groups)
        taken = [Times([x]) for x in timing.parts]
        self.parts = dict(zip(prepared.calls, taken, strict=False))  # none where all were apart
        self.notes += timing.notes
        self.busy = timing.busy
        self.gpu_work = timing.gpu_work
        self.tried = self._compiled(timing)
        for name, why in timing.left_early.items():
            tried = self.tried[name]
            self.tried[name] = msgspec.structs.replace(tried, notes=(*tried.notes, why))
        for name, (status, reason) in timing.lost.items():
            what = "its timing was cut off" if status == "timeout" else "lost while it was timed"
            why = f"right, but {what}: {reason}"
            self.tried[name] = msgspec.structs.replace(self.tried[name], status=status, reason=why)
        for name, reason in timing.apart.items():
            tried = self.tried[name]
            note = f"timed in a process of its own, beside eager in another: {reason}"
            self.tried[name] = msgspec.structs.replace(tried, notes=(*tried.notes, note))
        for name, given in timing.given.items():
            self._judge_timed(judge, name, given)

    def _compiled(self, timing: Timing) -> dict[str, Trying]:
        """Return who was tried, with what compiling from a warm cache has taken."""
        return {
            name: msgspec.structs.replace(tried, warm_compile_s=timing.compile_s.get(name))
            for name, tried in self.tried.items()
        }

    def _judge_timed(self, judge: Judge, name: str, given: Sequence[Given]) -> None:
        """Take the times from who was right, and not while the clock ran."""
        tried = self.tried[name]
        if tried.status != "ok":
            return
        try:
            judged = judge.verdict([x.put_back() for x in given])
        except NoReply as lost:
            reason = f"what it gave while the clock ran could not be judged: {lost.reason}"
            self.tried[name] = msgspec.structs.replace(tried, status="failed", reason=reason)
        else:
            if judged.passed:
                assert tried.verdict is not None, "it was judged before"
                calls = tried.verdict.calls + len(given)
                verdict = msgspec.structs.replace(tried.verdict, calls=calls)
                self.tried[name] = msgspec.structs.replace(tried, verdict=verdict)
                return
            verdict = VerdictRecord.of(judged, len(given))
            self.tried[name] = msgspec.structs.replace(
                tried, status="wrong", reason=verdict.why, verdict=verdict
            )
        self.times = self.times.without(name)
        self.parts = {call: times.without(name) for call, times in self.parts.items()}

    def _result(self, name: str) -> Result:
        outcome, arm = self.tried[name], self.arms[name].arm
        tried = {key: getattr(outcome, key) for key in outcome.__struct_fields__}
        times = self._times(name)
        parts = "; ".join(_worded(x) for x in times.get("parts", ()))
        is_experimental = any(x.experimental for x in self.entrants if x.name == name)
        notes = (_EXPERIMENTAL if is_experimental else "", *outcome.notes, parts)
        tried["notes"] = tuple(filter(None, notes))
        return Result(
            workload=self.workload,
            mode=self.setup.mode,
            backend=arm.backend,
            compile_mode=arm.mode,
            options=arm.options,
            scope=arm.scope,
            arm=name,
            gpu_work=self.gpu_work.get(name),
            **tried,
            **times,
        )

    def _times(self, name: str) -> dict[str, Any]:
        if name not in self.times:
            return {}
        own, eagers = self.times[name], self.times.eagers(name)
        median_ms, ci_ms = stats.median(own)
        times: dict[str, Any] = {
            "samples_ms": tuple(own),
            "eager_samples_ms": () if eagers is self.times[EAGER] else tuple(eagers),
            "median_ms": median_ms,
            "ci_ms": ci_ms,
        }
        for rival in (EAGER, INDUCTOR):
            if rival in self.times:
                value, interval = self.times.ratio(rival, name)
                times |= {f"ratio_to_{rival}": value, f"ratio_to_{rival}_ci": interval}
        times["parts"] = tuple(_part(call, x, name) for call, x in self.parts.items() if name in x)
        return times

    def _without_reference(self, eager: Trying) -> Decision:
        """Fill the rows with why nothing could be raced."""
        self.tried[EAGER] = eager
        for entrant in self.entrants[1:]:
            reason = "not run: eager itself gave nothing to compare with"
            self.tried[entrant.name] = Trying(status="failed", reason=reason)
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


def _part(call: str, times: Times, name: str) -> Part:
    median_ms, ci_ms = stats.median(times[name])
    value, interval = times.ratio(EAGER, name)
    return Part(
        call=call,
        median_ms=median_ms,
        ci_ms=ci_ms,
        ratio_to_eager=value,
        ratio_to_eager_ci=interval,
    )


def _worded(part: Part) -> str:
    low, high = part.ratio_to_eager_ci
    if low == high == 1.0:  # eager's own
        return f"{part.call}: {part.median_ms:.3g} ms"
    times = f"{part.ratio_to_eager:.2f}x [{low:.2f}, {high:.2f}] eager"
    return f"{part.call}: {part.median_ms:.3g} ms, {times}"


def _unjudged(prepared: Prepared) -> str:
    """Return why what is given while the clock runs can't be judged; empty where it can."""
    if prepared.draws_random:
        return (
            "the model draws random numbers, and a backend that draws them its own way draws "
            "others than eager"
        )
    if prepared.reduced:
        return "the float64 truth fits smaller inputs only"
    if prepared.state_matters:
        return (
            "what a call returns depends on the state that those before it left. One call from a "
            "known state was judged afterwards"
        )
    return ""
