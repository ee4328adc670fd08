"""Measures one workload: prepare, get every arm ready, time them side by side.

All that touches torch happens in a child process. An arm that raises, crashes or hangs is a record
with its reason; after a loss the others begin anew without it.
"""

import datetime as dt
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from backbay.session import Failure, Lost, NoReply, Refused
from backbay.timing import measure
from backbay.timing.rounds import Plan
from speed import requests
from speed.record import Run, Sampled
from speed.turns import Client, Clients

Tell = Callable[[str], None]
Keep = Callable[[Run], object]
Planned = Callable[[Mapping[str, float]], Plan]
"""From each arm's seconds a step to how much is timed."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long things may take, in seconds."""

    prepare_s: float = 300.0
    arm_s: float = 400.0


class Unmeasurable(Exception):  # noqa: N818 (what became of a workload)
    """A workload could not even be built."""


@dataclass(kw_only=True)
class Conduct:
    """One workload and the arms that it is run with."""

    clients: Clients
    prepare: requests.Prepare
    planned: Planned
    extend: Callable[[Mapping[str, Sequence[float]]], bool]
    """From the samples so far to whether as much is timed again."""
    patience: Patience
    tell: Tell
    keep: Keep
    """Is given the run whenever more of it was timed: it may be stopped before it ends."""
    shared: bool = False
    """Whether arms share their compiler caches; then none of them says how long it compiled."""

    watch: Collection[str] = ()
    """Of which arms it is said what the device does in a step."""

    prepared: requests.Prepared | None = None
    _found: dict[str, Sampled] = field(default_factory=dict)
    """Arms whose process is there, and how they did."""
    _lost: dict[str, Sampled] = field(default_factory=dict)
    _created: str = ""

    def run(self, arms: Sequence[str], prove: Sequence[str] = ()) -> tuple[Run, requests.Proved]:
        """Measure these arms, and prove some of them.

        Raises:
            Unmeasurable: the workload was not built.
        """
        self._created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        proved = requests.Proved(verdicts={})
        while True:
            left = [x for x in arms if x not in self._lost]
            if not left and (arms or not prove):
                break
            whole = False
            try:
                with tempfile.TemporaryDirectory(prefix="backbay-speed-") as caches:
                    client = self.clients.take()
                    whole = self._attempt(client, left, caches)
                    if whole:
                        unlost = [x for x in prove if x not in self._lost]
                        proved = self._prove(client, unlost, caches)
                        break
            finally:
                self.clients.done(lost=not whole)
        return self._run, proved

    @property
    def _run(self) -> Run:
        return Run(created=self._created, arms={**self._found, **self._lost})

    def _attempt(self, client: Client, arms: Sequence[str], caches: str) -> bool:
        """Return whether nobody was lost."""
        self._found = {}
        self._build(client)
        try:
            for arm in arms:
                self._compile(client, arm, caches)
            with self.clients.alone():
                self._measure(client)
        except _ArmLost as lost:
            self._found = {}
            self._lost[lost.arm] = Sampled(status=lost.status, reason=lost.reason)
            return False
        return True

    def _build(self, client: Client) -> None:
        try:
            reply = client.ask(self.prepare, timeout_s=self.patience.prepare_s)
        except NoReply as error:
            raise Unmeasurable(error.reason) from error
        assert isinstance(reply, requests.Prepared)
        self.prepared = reply

    def _compile(self, client: Client, arm: str, caches: str) -> None:
        self.tell(f"{arm}: compiling")
        reply = self._asked(client, arm, requests.Ready(arm=arm, caches=caches, shared=self.shared))
        if reply is None:
            return
        assert isinstance(reply, requests.Readied)
        self._found[arm] = Sampled(
            status=reply.status,
            reason=reply.reason,
            compile_s=None if self.shared else reply.compile_s,
            error=reply.error,
            notes=reply.notes,
        )
        self.tell(f"{arm}: {_said(self._found[arm])}")

    def _measure(self, client: Client) -> None:
        """Time who is ready, in turns, after calls that are not timed."""
        step_s: dict[str, float] = {}
        for arm, found in [x for x in self._found.items() if x[1].status == "ok"]:
            reply = self._asked(client, arm, requests.Settle(arm=arm))
            if reply is None:
                continue
            assert isinstance(reply, requests.Settled)
            step_s[arm] = reply.step_s
            notes = (*found.notes, *reply.notes)
            self._found[arm] = replace(found, peak_bytes=reply.peak_bytes, notes=notes)
            self.tell("; ".join((f"{arm}: {1e3 * reply.step_s:.4g} ms a step", *reply.notes)))
        if not step_s:
            return
        self._time(client, step_s)
        for arm in [x for x in self.watch if x in step_s]:
            try:
                reply = client.ask(requests.Watch(arm=arm), timeout_s=self.patience.arm_s)
            except NoReply as error:  # its times stand
                self.tell(f"{arm}: not watched: {error.reason}")
                break
            assert isinstance(reply, requests.Watched)
            self._found[arm] = replace(self._found[arm], work=reply.work)
        self.keep(self._run)

    def _time(self, client: Client, step_s: Mapping[str, float]) -> None:
        plan = self.planned(step_s)
        samples: dict[str, list[float]] = {name: [] for name in step_s}
        while True:
            try:
                more = measure.interleave(
                    dict.fromkeys(step_s, client),
                    plan,
                    limit_s=self.patience.arm_s * plan.rounds,
                    on_round=lambda _done, _of: True,
                )
            except measure.BlockLost as lost:
                reason = f"lost while it was timed: {lost.reason}"
                raise _ArmLost(lost.backend, _status(lost.status), reason) from lost
            for name, values in more.milliseconds.items():
                samples[name] += values
                self._found[name] = replace(self._found[name], samples_ms=tuple(samples[name]))
            self.keep(self._run)
            if not self.extend(samples):
                return

    def _asked(self, client: Client, arm: str, request: requests.Request) -> requests.Reply | None:
        """Return the reply; None where the arm raised, which is then what is known of it.

        Raises:
            _ArmLost: the process died or hung, or lost the device.
        """
        try:
            return client.ask(request, timeout_s=self.patience.arm_s)
        except Lost as lost:
            raise _ArmLost(arm, _status(lost.status), lost.reason) from lost
        except Refused as refused:
            if refused.reason.startswith("AcceleratorError"):  # the process has no device any more
                raise _ArmLost(arm, "crashed", refused.reason) from refused
            self._found[arm] = Sampled(status="failed", reason=refused.reason)
            self.tell(f"{arm}: {_said(self._found[arm])}")
            return None

    def _prove(self, client: Client, arms: Sequence[str], caches: str) -> requests.Proved:
        if not arms:
            return requests.Proved(verdicts={})
        self.tell(f"proving {', '.join(arms)}")
        request = requests.Prove(arms=tuple(arms), caches=caches)
        try:
            reply = client.ask(request, timeout_s=self.patience.arm_s * (1 + len(arms)))
        except NoReply as error:
            self.tell(f"no proof: {error.reason}")
            return requests.Proved(verdicts={})
        assert isinstance(reply, requests.Proved)
        return reply


class _ArmLost(Exception):  # noqa: N818 (what became of an arm)
    """Its process is gone."""

    def __init__(self, arm: str, status: requests.Status, reason: str) -> None:
        super().__init__(f"{arm}: {reason}")
        self.arm = arm
        self.status = status
        self.reason = reason


def _status(failure: Failure) -> requests.Status:
    return "timeout" if failure == "timeout" else "crashed"


def _said(found: Sampled) -> str:
    if found.status != "ok":
        return f"{found.status}: {found.reason}"
    taken = "" if found.compile_s is None else f" in {found.compile_s:.1f} s"
    return "; ".join((f"compiled{taken}", *found.notes))
