"""Measures one workload: prepare, get every arm ready, time them side by side.

All that touches torch happens in a child process. An arm that raises, crashes or hangs is a record
with its reason; after a loss the others begin anew without it.
"""

import datetime as dt
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from backbay.session import Lost, NoReply, Refused
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

    prepared: requests.Prepared | None = None
    _lost: dict[str, Sampled] = field(default_factory=dict)
    _created: str = ""

    def run(self, arms: Sequence[str], prove: Sequence[str] = ()) -> tuple[Run, requests.Proved]:
        """Measure these arms, and prove some of them.

        Raises:
            Unmeasurable: the workload was not built.
        """
        self._created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        proved = requests.Proved(verdicts={})
        ready: dict[str, requests.Readied] = {}
        samples: Mapping[str, Sequence[float]] = {}
        while True:
            left = [x for x in arms if x not in self._lost]
            if not left and (arms or not prove):
                break
            whole = False
            try:
                with tempfile.TemporaryDirectory(prefix="backbay-speed-") as caches:
                    client = self.clients.take()
                    ready, samples, whole = self._attempt(client, left, caches)
                    if whole:
                        unlost = [x for x in prove if x not in self._lost]
                        proved = self._prove(client, unlost, caches)
                        break
            finally:
                self.clients.done(lost=not whole)
        return self._run_of(ready, samples), proved

    def _attempt(
        self, client: Client, arms: Sequence[str], caches: str
    ) -> tuple[dict[str, requests.Readied], Mapping[str, Sequence[float]], bool]:
        """Return who is ready, their samples, and whether nobody was lost."""
        self._build(client)
        ready: dict[str, requests.Readied] = {}
        for arm in arms:
            self.tell(f"{arm}: compiling")
            request = requests.Ready(arm=arm, caches=caches, shared=self.shared)
            try:
                reply = client.ask(request, timeout_s=self.patience.arm_s)
            except Lost as lost:
                self._lost[arm] = Sampled(status=lost.status, reason=lost.reason)
                return ready, {}, False
            except Refused as refused:
                reply = requests.Readied(status="failed", reason=refused.reason)
            assert isinstance(reply, requests.Readied)
            self.tell(f"{arm}: {_said(reply)}")
            ready[arm] = reply
        try:
            with self.clients.alone():
                return ready, self._time(client, ready), True
        except measure.BlockLost as lost_block:
            reason = f"lost while it was timed: {lost_block.reason}"
            status: requests.Status = "timeout" if lost_block.status == "timeout" else "crashed"
            self._lost[lost_block.backend] = Sampled(status=status, reason=reason)
            return ready, {}, False

    def _build(self, client: Client) -> None:
        try:
            reply = client.ask(self.prepare, timeout_s=self.patience.prepare_s)
        except NoReply as error:
            raise Unmeasurable(error.reason) from error
        assert isinstance(reply, requests.Prepared)
        self.prepared = reply

    def _time(
        self, client: Client, ready: Mapping[str, requests.Readied]
    ) -> Mapping[str, Sequence[float]]:
        step_s = {x: r.step_s for x, r in ready.items() if r.status == "ok" and r.step_s}
        if not step_s:
            return {}
        plan, samples = self.planned(step_s), {name: [] for name in step_s}  # type: ignore[var-annotated]
        while True:
            more = measure.interleave(
                dict.fromkeys(step_s, client),
                plan,
                limit_s=self.patience.arm_s * plan.rounds,
                on_round=lambda _done, _of: True,
            )
            for name, values in more.milliseconds.items():
                samples[name] += values
            self.keep(self._run_of(ready, samples))
            if not self.extend(samples):
                return samples

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

    def _run_of(
        self, ready: Mapping[str, requests.Readied], samples: Mapping[str, Sequence[float]]
    ) -> Run:
        found = {name: self._sampled(x, samples.get(name, ())) for name, x in ready.items()}
        return Run(created=self._created, arms={**found, **self._lost})

    def _sampled(self, ready: requests.Readied, samples: Sequence[float]) -> Sampled:
        return Sampled(
            status=ready.status,
            reason=ready.reason,
            compile_s=None if self.shared else ready.compile_s,
            peak_bytes=ready.peak_bytes,
            error=ready.error,
            notes=ready.notes,
            samples_ms=tuple(samples),
        )


def _said(reply: requests.Readied) -> str:
    if reply.status != "ok":
        return f"{reply.status}: {reply.reason}"
    compiled = "" if reply.compile_s is None else f"compiled in {reply.compile_s:.1f} s, "
    said = f"{compiled}{1e3 * (reply.step_s or 0):.4g} ms a step"
    return "; ".join((said, *reply.notes))
