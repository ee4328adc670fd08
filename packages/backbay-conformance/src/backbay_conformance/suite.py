"""All cases of the suite, and which of them a profile runs."""

import fnmatch
import functools
import hashlib
import importlib
import importlib.resources
from collections.abc import Collection, Iterable, Sequence

from backbay.errors import InputError
from backbay_conformance.case import Case
from backbay_conformance.record import LEVELS, Profile

SHARES: dict[str, float] = {
    "load": 1.0,
    "contract": 1.0,
    "ops": 0.05,
    "dtypes": 0.0025,
    "training": 0.014,
    "shapes": 0.012,
    "context": 1.0,
    "errors": 0.1,
    "properties": 0.006,
    "programs": 1.0,
    "honesty": 1.0,
}
"""Share of each level's cases that the ``quick`` profile runs; the seed decides which."""
HEAVY_SHARE = 0.02
"""Share of those that take long, of whatever level."""


def collected(
    device: str, levels: Collection[int] | None = None, *, all_samples: bool = False
) -> dict[str, Case]:
    """Return the cases of some levels by their ids, in the order in which they are run.

    Args:
        device: the device type that they will run on.
        levels: numbers of levels; all where None.
        all_samples: all sample inputs of each operator, instead of the first.

    Raises:
        ValueError: two cases have one id.
    """
    found: dict[str, Case] = {}
    for number, name in enumerate(LEVELS):
        if levels is not None and number not in levels:
            continue
        module = importlib.import_module(f"backbay_conformance.levels.{name}")
        for case in module.cases(device, all_samples=all_samples):
            if case.id in found:
                raise ValueError(f"two cases are called {case.id}")
            found[case.id] = case
    return found


def chosen(
    cases: Iterable[Case],
    *,
    profile: Profile,
    seed: int,
    only: Sequence[str] = (),
) -> list[Case]:
    """Return the cases that are to be run.

    Args:
        cases: of the levels that are asked for.
        profile: ``quick`` takes a share of each level that the seed decides, ``full`` all.
        seed: of the choice.
        only: patterns of ids, as in a shell; then the profile does not matter.

    Raises:
        InputError: a pattern matches no case.
    """
    cases = list(cases)
    if not only:
        return [x for x in cases if profile == "full" or _drawn(x, seed)]
    for pattern in only:
        if not any(fnmatch.fnmatchcase(x.id, pattern) for x in cases):
            raise InputError(f"no case of these levels is called {pattern!r}")
    return [x for x in cases if any(fnmatch.fnmatchcase(x.id, y) for y in only)]


def _drawn(case: Case, seed: int) -> bool:
    share = SHARES[LEVELS[case.level]] if case.share is None else case.share
    if case.id in heavy():
        share = min(share, HEAVY_SHARE)
    digest = hashlib.sha256(f"{seed} {case.id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < share


@functools.cache
def heavy() -> frozenset[str]:
    """Return the ids of the cases that take long; see ``tools/heavy_cases.py``."""
    file = importlib.resources.files("backbay_conformance") / "heavy.txt"
    lines = file.read_text(encoding="utf-8").splitlines()
    return frozenset(x for x in lines if not x.startswith("#"))


def numbered(levels: Iterable[str | int]) -> list[int]:
    """Return the numbers of levels that are named or numbered; ``0-3`` is a range.

    Raises:
        InputError: there is no such level.
    """
    numbers: list[int] = []
    for level in levels:
        first, dash, last = str(level).partition("-")
        low = _number(first)
        numbers += range(low, _number(last) + 1) if dash else [low]
    return sorted(set(numbers))


def _number(level: str) -> int:
    if level in LEVELS:
        return LEVELS.index(level)
    if level.isdecimal() and int(level) < len(LEVELS):
        return int(level)
    raise InputError(
        f"no level {level!r}: levels are 0 to {len(LEVELS) - 1}, or {', '.join(LEVELS)}"
    )
