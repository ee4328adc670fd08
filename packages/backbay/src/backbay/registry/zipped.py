"""Distributions inside a zip file that is on ``sys.path``, as zipapps and some installers have."""

import errno
import os
import zipfile
import zlib
from pathlib import Path

_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
"""What zipfile raises for damage; RuntimeError for encryption, and for unknown compression."""


def top_folders(path: str) -> set[str]:
    """Return the names of the folders at the top of a zip file.

    Raises:
        OSError: it can't be read, or is no zip file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [x.partition("/") for x in archive.namelist()]
    except _UNREADABLE as error:
        raise OSError(
            errno.EINVAL, f"it is neither a folder nor a zip file: {error}", path
        ) from error
    return {name for name, slash, _ in names if slash}


def read_inside(path: str, largest: int) -> str:
    """Return the text of a file whose path leads through a zip file.

    Raises:
        FileNotFoundError: there is no zip file on the way, or no such file in it.
        OSError: it can't be read, is larger than so many bytes, or is not UTF-8.
    """
    archive = next((x for x in Path(path).parents if x.is_file()), None)
    if archive is None or not zipfile.is_zipfile(archive):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    member = Path(path).relative_to(archive).as_posix()
    try:
        with zipfile.ZipFile(archive) as opened:
            if member not in opened.namelist():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            with opened.open(member) as file:
                data = file.read(largest + 1)
    except _UNREADABLE as error:
        raise OSError(errno.EINVAL, f"it cannot be read: {error}", path) from error
    if len(data) > largest:
        raise OSError(errno.EINVAL, f"it is larger than {largest >> 10} KiB", path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(errno.EINVAL, f"it is not UTF-8: {error}", path) from error
