"""What was decided for a model: which arm to use, where, and what was measured for it."""

import hashlib
from typing import Literal

import msgspec

from backbay.decisions.arm import Arm

GAIN = 0.03
"""What gains less is not worth what it may cost later: a compilation, a dependency, a surprise."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a measured time depends on beside the model."""

    device: str
    """The GPU's own name, or the processor's; ``cuda`` and ``cpu`` name many."""
    driver: str = ""
    """CUDA's version and the driver's; empty on a CPU."""
    threads: int = 0
    """Of a CPU; 0 on an accelerator."""
    versions: dict[str, str] = {}
    """Distribution name to version: torch, triton, and what provides the backend."""

    @property
    def key(self) -> str:
        """What decisions are looked up by: all but who provides a backend, which each one names."""
        common = sorted((k, v) for k, v in self.versions.items() if k in {"torch", "triton"})
        whole = repr((self.device, self.driver, self.threads, common))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The arm that was the fastest right one on a workload, or eager where none was faster.

    Where a race could not tell, that is kept, too: eager is the arm then.
    """

    workload: str
    step: Literal["infer", "train"]
    dtype: str = ""
    arm: Arm
    over_eager: float | None = None
    """Eager's time by this arm's."""
    interval: tuple[float, float] | None = None
    """Of that ratio, 95 %."""
    objective: str = ""
    """What it was decided by, where that is not the time of a call."""
    abstained: bool = False
    """Whether the race could not tell any arm from eager."""
    unclear: bool = False
    """Whether it could not because times scattered: another race may tell."""
    raced: tuple[str, ...] = ()
    """The arms that took part, as one writes them."""
    graphs: tuple[str, ...]
    """Digests of the graphs that Dynamo captured."""
    place: Place
    created: str
    """UTC, ISO 8601."""

    @property
    def name(self) -> str:
        """Eight letters and digits: a later decision on the same model and place has the same.

        That one race could not tell takes no other race's place, unless it asked the same.
        """
        asked = (sorted(self.raced), self.objective) if self.abstained else ()
        whole = repr((self.workload, self.step, sorted(self.graphs), self.place.key, *asked))
        return hashlib.sha256(whole.encode()).hexdigest()[:8]

    @property
    def why(self) -> str:
        """Return in one line what was measured."""
        when = self.created[:10] + (f" for {self.objective}" if self.objective else "")
        if self.abstained:
            scattered = ": times scattered too much" if self.unclear else ""
            return f"raced on {when}: no arm could be told from {self.arm}{scattered}"
        if self.over_eager is None or self.interval is None:
            return f"raced on {when}: no arm was faster than {self.arm}"
        low, high = self.interval
        return f"raced on {when}: {self.over_eager:.2f}x [{low:.2f}, {high:.2f}] eager"
