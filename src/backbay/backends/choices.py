"""What was measured of a graph before: which rewrites it is better off without, kept on disk.

A file for each graph, under ``$BACKBAY_CACHE/choices`` or the user's cache folder. One that cannot
be read is as good as none: it is measured again. No torch here.
"""

import os
import tempfile
from pathlib import Path

import msgspec
import platformdirs


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One graph's."""

    off: tuple[str, ...]
    """Rewrites that are left out; empty: all that fire are worth it."""
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
        """Say it in one line."""
        low, high = self.interval
        kept = [x for x in self.fired if x not in self.off]
        left = f"; {', '.join(self.off)} left out" if self.off else ""
        return (
            f"{', '.join(kept) or 'no rewrite'} kept{left}: "
            f"{self.gain:.3f} [{low:.3f}, {high:.3f}] times as fast as without rewrites"
        )


def folder() -> Path:
    """Give where choices are kept."""
    given = os.environ.get("BACKBAY_CACHE", "").strip()
    return (Path(given) if given else platformdirs.user_cache_path("backbay")) / "choices"


def read(key: str) -> Choice | None:
    """Give what is known of a graph."""
    try:
        return msgspec.json.decode(_path(key).read_bytes(), type=Choice)
    except (OSError, msgspec.MsgspecError):
        return None


def write(key: str, choice: Choice) -> None:
    """Keep what was measured; a folder that cannot be written to keeps nothing."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(msgspec.json.encode(choice))
        os.replace(file.name, path)  # noqa: PTH105 (whole or not at all, whoever else writes it)
    except OSError:
        return


def _path(key: str) -> Path:
    return folder() / f"{key}.json"
