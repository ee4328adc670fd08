"""Distributions inside a zip file that is on ``sys.path``, as zipapps and some installers have."""

import zipfile
import zlib

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
        raise OSError(f"{path} is neither a folder nor a zip file: {error}") from error
    return {name for name, slash, _ in names if slash}


def read_member(path: str, member: str, largest: int) -> str | None:
    """Return the text of a file in a zip file; nothing where it has none of this name.

    Raises:
        OSError: it can't be read, is larger than so many bytes, or is not UTF-8.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if member not in archive.namelist():
                return None
            with archive.open(member) as file:
                data = file.read(largest + 1)
    except _UNREADABLE as error:
        raise OSError(f"{path}/{member} cannot be read: {error}") from error
    if len(data) > largest:
        raise OSError(f"{path}/{member} is larger than {largest >> 10} KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(f"{path}/{member} is not UTF-8: {error}") from error
