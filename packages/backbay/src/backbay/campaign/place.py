"""Where the races of a campaign run: in this process's machine, or on many."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from backbay.campaign.plan import Unit
from backbay.race import Report


@dataclass(frozen=True, kw_only=True)
class Raced:
    """How a race ended."""

    unit: Unit
    report: Report | None = None
    reason: str = ""
    """Why there is no report; one line."""


class Placement(Protocol):
    """Runs races."""

    def device_names(self, devices: Iterable[str]) -> Mapping[str, str]:
        """Return what each device is: the GPU's own name, or the processor's.

        Raises:
            InputError: one can't be used, or stands for devices of several names.
        """

    def race(self, units: Sequence[Unit]) -> Generator[Raced, None, None]:
        """Run races, and yield each as it ends; what runs ends when the generator is closed."""
