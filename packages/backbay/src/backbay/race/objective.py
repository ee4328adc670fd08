"""What is decided by: how fast, how little memory, or how soon so many calls are done."""

from typing import Literal, get_args

import msgspec

from backbay.errors import InputError
from backbay.reporting import wording

Kind = Literal["throughput", "latency", "memory", "total"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm is chosen for.

    Raises:
        InputError: the parts contradict each other.
    """

    kind: Kind = "throughput"
    """``throughput``: calls one right after the other. ``latency``: the device has finished each
    before the next. ``memory``: the peak of one step. ``total``: compilation and so many calls."""
    calls: int | None = None
    """For ``total``."""
    warm: bool = False
    """For ``total``: whether compilation finds a warm cache."""
    memory_limit: int | None = None
    """Bytes that the peak of one step may reach, whatever the kind is."""
    margin: float = 0.0
    """By how much an arm must be better to be chosen, for example 0.03 for 3 %."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"no objective {self.kind!r}: choose one of {', '.join(KINDS)}")
        if self.kind == "total" and not (self.calls and self.calls > 0):
            raise InputError("the total depends on how often the model is called: give calls")
        if self.kind != "total" and (self.calls is not None or self.warm):
            raise InputError(f"calls and a warm cache count for the total, not for {self.kind}")
        if self.memory_limit is not None and self.memory_limit <= 0:
            raise InputError(f"a memory limit is more than 0 bytes, not {self.memory_limit}")

    def __str__(self) -> str:
        """Return it in words; empty where it is the time of a call, as nobody needs to be told."""
        words: str = "" if self.kind == "throughput" else self.kind
        if self.kind == "total":
            cache = "warm" if self.warm else "cold"
            words = f"{wording.counted(self.calls or 0, 'call')} and a {cache} compilation"
        limit = "" if self.memory_limit is None else f"within {wording.size(self.memory_limit)}"
        return " ".join(filter(None, (words, limit)))

    def exceeded(self, peak: int | None) -> str:
        """Return why an arm may not be chosen whose peak this is; empty where it may."""
        limit = self.memory_limit
        if peak is None or limit is None or peak <= limit:
            return ""
        return f"needs {wording.size(peak)}, above the limit of {wording.size(limit)}"


def worded(objective: Objective) -> str:
    """Return what a total is of, to begin a sentence; empty for any other objective."""
    return f"with {objective}, " if objective.kind == "total" else ""


def parse_size(text: str) -> int:
    """Return the bytes of a size: a number, and one of B, KB, KiB, MB, MiB, GB, GiB, TB, TiB.

    Raises:
        InputError: it is none.
    """
    units = {unit: 1024**power for power, unit in enumerate(wording.SIZES)}
    units |= {unit.replace("i", ""): 1000**power for power, unit in enumerate(wording.SIZES)}
    number = text.strip().rstrip("KMGTiB").strip()
    unit = text.strip()[len(number) :].strip() or "B"
    try:
        return int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise InputError(f"{text!r} is no size: write 500MB, 8GiB or a number of bytes") from None
