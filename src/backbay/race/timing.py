"""Times the survivors: all in one process, or each in its own where that one dies."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from backbay.child import ChildLost
from backbay.race import job, measure
from backbay.race.decide import EAGER
from backbay.race.lane import Lane
from backbay.race.record import Status


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long things may take, in seconds."""

    backend_s: float = 600.0
    """One backend's compile and proof, or the reference."""
    timing_s: float = 20.0
    """The timing of all backends of one workload together."""


@dataclass(kw_only=True)
class Timing:
    """The timed part of a race."""

    setup: job.Setup
    digest: str
    """Of the reference's parameters and inputs."""
    open_lane: Callable[[], Lane]
    limits: Limits
    tell: Callable[[str, str], None]
    """Called with backend and text."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds a call, one sample a round."""
    lost: dict[str, tuple[Status, str]] = field(default_factory=dict)
    """Who had been right and could not be timed, and why."""
    notes: list[str] = field(default_factory=list)

    def run(self, names: Sequence[str]) -> None:
        """Time these backends; eager must be one of them."""
        try:
            with self.open_lane() as lane:
                step_s = self._ready(lane, names)
                self._interleave(dict.fromkeys(step_s, lane), step_s)
        except (ChildLost, measure.BlockLost) as failure:
            self.notes.append(
                f"timing all backends in one process failed ({failure}): each was timed in a "
                "process of its own, the idle ones stopped"
            )
            self._run_apart(names)

    def _run_apart(self, names: Sequence[str]) -> None:
        left = [name for name in names if name not in self.lost]
        with contextlib.ExitStack() as stack:
            lanes, step_s = self._open_apart(left, stack)
            while EAGER in lanes and not self.samples:  # without eager nobody can be compared
                if len(lanes) == 1:
                    lanes[EAGER].resume()  # alone it is not stopped between blocks
                try:
                    self._interleave(lanes, {name: step_s[name] for name in lanes})
                except measure.BlockLost as failure:  # the others are ready as they are
                    self.lost[failure.backend] = (failure.status, failure.reason)
                    lanes.pop(failure.backend).stop()

    def _open_apart(
        self, names: Sequence[str], stack: contextlib.ExitStack
    ) -> tuple[dict[str, Lane], dict[str, float]]:
        lanes: dict[str, Lane] = {}
        step_s: dict[str, float] = {}
        for name in names:
            lane = stack.enter_context(self.open_lane())
            try:
                step_s |= self._ready(lane, [name])
            except ChildLost as failure:
                self.lost[name] = (failure.status, failure.reason)
                continue
            lane.stop()
            lanes[name] = lane
        return {name: lanes[name] for name in step_s}, step_s

    def _ready(self, lane: Lane, names: Sequence[str]) -> Mapping[str, float]:
        """Compile these in a lane, and give the time of one step of each that got ready."""
        self.tell(", ".join(names), "compiling again, from a warm cache")
        request = job.Open(setup=self.setup, backends=tuple(names), digest=self.digest)
        reply = lane.ask(request, timeout_s=self.limits.backend_s * len(names))
        if isinstance(reply, job.Refused):
            raise ChildLost(reply.reason, "failed")
        assert isinstance(reply, job.Opened)
        self.lost |= {name: ("failed", why) for name, why in reply.failed.items()}
        return reply.step_s

    def _interleave(self, lanes: Mapping[str, Lane], step_s: Mapping[str, float]) -> None:
        if EAGER not in lanes:  # nobody to compare with
            return
        everyone = ", ".join(lanes)
        self.samples = measure.interleave(
            lanes,
            measure.plan(step_s, self.limits.timing_s),
            timeout_s=self.limits.backend_s,
            on_round=lambda done, of: self.tell(everyone, f"timing, round {done} of {of}"),
        )
