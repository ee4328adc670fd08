"""Files that a command writes: whole or not at all, and found out before anything else is done."""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from backbay.errors import InputError


def check_writable(*paths: Path | None) -> None:
    """Check that files can be written in the end; none is touched. ``-`` is standard output.

    Raises:
        InputError: one can't be.
    """
    for path in paths:
        if path is None or path == Path("-"):
            continue
        with _told(path):
            if _is_special(path):
                if not os.access(path, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            else:
                with _neighbour(path.resolve()):
                    pass


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Return the path of a neighbour, which takes the file's place when the block ends well.

    A device or a pipe has no neighbour, and is written itself.

    Raises:
        InputError: it can't be written; the file is as it was.
    """
    with _told(path):
        if _is_special(path):
            yield path
            return
        target = path.resolve()  # a link stays a link
        with _neighbour(target) as neighbour:
            yield neighbour
            with neighbour.open("rb+") as file:
                os.fsync(file.fileno())  # a full disk may not say so before
            if target.exists():
                shutil.copymode(target, neighbour)
            neighbour.replace(target)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


@contextlib.contextmanager
def _neighbour(target: Path) -> Iterator[Path]:
    neighbour = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    neighbour.touch(exist_ok=False)
    try:
        yield neighbour
    finally:
        neighbour.unlink(missing_ok=True)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} can't be written: {error.strerror or error}") from error
