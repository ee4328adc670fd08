"""The ranges of numbers that commands and functions take alike."""

from typing import Any

from backbay.errors import InputError

LONGEST_S = 1_000_000
"""Seconds, which are eleven days; the system calls that wait take little more."""
LARGEST_SEED = (1 << 63) - 1
"""What every generator of random numbers takes."""


def check_seed(seed: Any) -> None:
    """Check what random numbers are drawn from.

    Raises:
        InputError: it is no whole number, or no generator takes it.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"seed {seed!r}: give a whole number from 0 to {LARGEST_SEED}")


def check_seconds(what: str, seconds: Any, *, none_at_all: bool = False) -> None:
    """Check a time limit.

    Args:
        what: its name, for the error.
        seconds: the limit.
        none_at_all: whether 0 is one.

    Raises:
        InputError: it is no number of seconds that can be waited.
    """
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # Comparisons hold for no number that is none.
    if number and (0 < seconds <= LONGEST_S or (none_at_all and seconds == 0)):
        return
    least = "from 0" if none_at_all else "above 0"
    raise InputError(f"{what} is {seconds!r}: give a number of seconds {least}, up to {LONGEST_S}")
