"""What was measured of a graph before: which rewrites it is better off without, kept on disk.

It is in Backbay's store, beside decisions: an entry for each graph, and for each match site that
was timed alone. What cannot be read, or others may have written, is measured again.
"""

from collections import Counter

import msgspec

from backbay import compile_log
from backbay.decisions import Store, StoreError
from backbay_optimizer.passes.match_sites import is_site


class PairTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Two ways side by side: of one match site, alone; or of a whole graph, with CUDA graphs."""

    ratio: float
    """Time of what the rewrite makes of it, or of a replay, by that of what Inductor does."""
    interval: tuple[float, float]
    """95 %."""
    created: str
    """UTC, ISO 8601."""


class Replays(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a graph is replayed as a CUDA graph."""

    used: bool
    why: str
    """What was found, in one line."""
    created: str
    """UTC, ISO 8601."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One graph's."""

    off: tuple[str, ...]
    """Rewrites that are left out, and match sites, as ``REWRITE@DIGEST``, where one is; empty: all
    that fire are worth it."""
    fired: tuple[str, ...]
    """Rewrites that changed the graph."""
    gain: float
    """Time of the graph without any of them, by that of the one that is chosen."""
    interval: tuple[float, float]
    """Of the gain, 95 %."""
    milliseconds: dict[str, float]
    """Medians: what was left out, joined by a comma, to the time of a call."""
    created: str
    """UTC, ISO 8601."""

    def __str__(self) -> str:
        """Return it in one line."""
        low, high = self.interval
        kept = [x for x in self.fired if x not in self.off]
        whole = [x for x in self.off if not is_site(x)]
        sites = Counter(x.partition("@")[0] for x in self.off if is_site(x))
        kinds = [f"{x} at {n} kind{'s' * (n > 1)} of match site" for x, n in sites.items()]
        left = f"; {', '.join(whole + kinds)} left out" if self.off else ""
        return (
            f"{', '.join(kept) or 'no rewrite'} kept{left}: "
            f"{self.gain:.3f} [{low:.3f}, {high:.3f}] times as fast as without rewrites"
        )


def read(key: str) -> Choice | None:
    """Return what is known of a graph."""
    return _store().measured(Choice, key)


def write(key: str, choice: Choice) -> None:
    """Keep what was measured; where that can't be written, the compile log says so."""
    _keep(key, choice)


def read_timing(key: str) -> PairTiming | None:
    """Return what is known of a match site."""
    return _store().measured(PairTiming, key)


def write_timing(key: str, found: PairTiming) -> None:
    """Keep what was measured, as `write` does."""
    _keep(key, found)


def read_replays(key: str) -> Replays | None:
    """Return whether a graph is replayed."""
    return _store().measured(Replays, key)


def write_replays(key: str, found: Replays) -> None:
    """Keep whether a graph is replayed, as `write` does."""
    _keep(key, found)


def _store() -> Store:
    return Store(on_problem=lambda why: _note(f"what was known is measured again: {why}"))


def _keep(key: str, kept: Choice | PairTiming | Replays) -> None:
    try:
        _store().keep_measured(key, kept)
    except StoreError as error:
        _note(f"what was measured is not kept, and is measured again next time: {error}")


def _note(why: str) -> None:
    compile_log.note(compile_log.Record(asked="backbay", ran="inductor", why=why))
