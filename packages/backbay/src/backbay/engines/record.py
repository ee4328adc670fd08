"""What became of engines, each in an environment of its own: ``backbay doctor --fresh-venvs``.

No torch here. What was not tried, or is not known, is ``null``.
"""

from typing import Literal

import msgspec

from backbay.reporting.machine import Machine
from backbay.timing.interval import Interval

SCHEMA = "backbay.engines/1"
MODELS = ("mlp", "conv_net", "block")
"""The small models, functions of `backbay.engines.models`."""
USES = ("inference", "training", "changing batch")
WORKLOADS = ("decoder", "hf:bert", "timm:resnet18")
"""What is raced."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A small model in one use, as `backbay verify` found it."""

    model: str
    use: str
    status: str
    """``right``, or what the first check that is not was."""
    reason: str = ""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """A workload, as `backbay race` found it."""

    workload: str
    status: str
    reason: str = ""
    to_eager: float | None = None
    """Eager's median over this backend's: above 1 is faster than eager."""
    to_eager_ci: Interval | None = None
    to_inductor: float | None = None
    to_inductor_ci: Interval | None = None
    operators: int | None = None
    """Those of the model, as the race counts them; ``null`` where torch can't count them."""
    owned: int | None = None
    """How many of them the backend runs itself, and does not leave to torch's own kernels."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What the registry in the environment says of a backend, and what happened when tried."""

    backend: str
    state: str
    """As `backbay doctor` says."""
    reason: str
    remedy: str
    works: bool | None = None
    """Whether it compiled and ran a small function; ``null`` where there is nothing to load."""
    error: str = ""
    """Why it did not."""
    as_catalogued: bool | None = None
    """Whether it works where the catalogue calls it ready, and else fails with the error that the
    catalogue quotes."""
    versions: dict[str, str] = {}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One backend."""

    engine: str
    """The distribution that does the work; its backends share an environment."""
    backend: str
    adapter: bool
    """Whether it is Backbay's, and not the engine's or torch's own."""
    install: str
    """The line that installs it, as catalogued."""
    installed: Literal["yes", "no", "not tried"] = "not tried"
    why_not: str = ""
    """What pip says, or that no line is known."""
    loaded: Loaded | None = None
    cases: tuple[Case, ...] = ()
    speeds: tuple[Speed, ...] = ()
    conformance: dict[str, int] | None = None
    """How many cases of level quick have which status; ``null`` where it was not asked for."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that were asked for."""

    schema: str = SCHEMA
    created: str
    """UTC, ISO 8601."""
    machine: Machine
    torch: str
    """The version that was asked for."""
    command: str
    """What makes this report again."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """What the races say of their times, each with its engine and workload."""
    partial: bool = False
    """Whether it was interrupted: what is missing was not tried."""

    @property
    def strange(self) -> tuple[Row, ...]:
        """The rows in which what happened is not what the catalogue says."""
        return tuple(
            x for x in self.rows if x.loaded is not None and x.loaded.as_catalogued is False
        )
