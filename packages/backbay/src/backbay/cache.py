"""What was found out before, kept on disk: a file each, JSON or bytes, under ``$BACKBAY_CACHE``.

What is read decides what is called working, and what is compiled. So a file is believed as ssh
believes its own: it and the folders that hold it, up to the cache folder, belong to this user or to
root, and nobody else may write to them. Windows has no such owners and modes: nothing is checked.
"""

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

_Kept = TypeVar("_Kept")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Untrusted(PermissionError):  # noqa: N818 (reads as what it says of a file)
    """Others may have written a file, or may write to its folder; the message says what to do."""


def cache_folder() -> Path:
    """Return the cache folder: ``$BACKBAY_CACHE``, or the user's own."""
    given = os.environ.get("BACKBAY_CACHE", "").strip()
    return Path(given) if given else platformdirs.user_cache_path("backbay")


def read_cached(path: Path, kind: type[_Kept]) -> _Kept | None:
    """Return what a file holds; nothing where there is none, or it can't be read.

    Raises:
        Untrusted: somebody else may have written it.
    """
    kept = read_bytes_cached(path)
    try:
        return None if kept is None else msgspec.json.decode(kept, type=kind)
    except msgspec.MsgspecError:
        return None


def read_bytes_cached(path: Path) -> bytes | None:
    """Return a file's bytes; nothing where there is none, or it can't be read.

    Raises:
        Untrusted: somebody else may have written it.
    """
    try:
        for holder in (*_holders(path), path):
            check_owner(holder)
        return path.read_bytes()
    except Untrusted:
        raise
    except OSError:
        return None


def write_cached(path: Path, kept: Any) -> None:
    """Write a file of JSON, whole or not at all.

    Raises:
        Untrusted: it would not be believed: others may write to its folder.
        OSError: it can't be written.
    """
    write_bytes_cached(path, msgspec.json.encode(kept))


def write_bytes_cached(path: Path, kept: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        Untrusted: it would not be believed: others may write to its folder.
        OSError: it can't be written.
    """
    own_folder(path)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
    try:
        temporary.write_bytes(kept)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def keep_newest(folder: Path, most_bytes: int) -> None:
    """Remove the files of a folder that were used longest ago, until the rest fits.

    Args:
        folder: of the cache; folders in it are left.
        most_bytes: of all its files together.

    Raises:
        OSError: it can't be read.
    """
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process may be at it
            found += [(path.stat(), path)] if path.is_file() else []
    total = 0
    for stats, path in sorted(found, key=lambda x: x[0].st_mtime_ns, reverse=True):
        total += stats.st_size
        if total > most_bytes:
            path.unlink(missing_ok=True)


def mark_used(path: Path) -> None:
    """Have `keep_newest` take a file for one that was just used, if this user may say so."""
    with contextlib.suppress(OSError):
        os.utime(path)


def own_folder(path: Path) -> None:
    """Make the folders that hold a file of the cache, where nobody else may write.

    Raises:
        Untrusted: others may write to one that is there.
        OSError: one can't be made.
    """
    holders = _holders(path)
    holders[0].parent.mkdir(parents=True, exist_ok=True)
    for holder in holders:
        holder.mkdir(mode=0o700, exist_ok=True)
        check_owner(holder)


def _holders(path: Path) -> list[Path]:
    """Return the folders from the cache folder down to a file's own; elsewhere, its own."""
    root = cache_folder()
    inside = [x for x in path.parents if x == root or root in x.parents]
    return inside[::-1] or [path.parent]


def check_owner(path: Path) -> None:
    """Check that a file or folder belongs to this user or to root, and nobody else may write it.

    Raises:
        Untrusted: it doesn't, or others may; the message says what to do.
        FileNotFoundError: there is none.
    """
    found = path.stat()
    if not hasattr(os, "geteuid"):
        return
    if found.st_uid not in {os.geteuid(), 0}:
        raise Untrusted(
            f"{path} is not used: it belongs to user {found.st_uid}, not to you. "
            "Remove it, or set BACKBAY_CACHE to a folder of your own"
        )
    if found.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        raise Untrusted(
            f"{path} is not used: others may write to it (mode {mode:04o}). "
            f"If nobody did: chmod go-w {path}"
        )
