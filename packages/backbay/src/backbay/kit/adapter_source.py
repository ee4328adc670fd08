"""A digest of what an adapter is written in: what it made is stale once any of that changes."""

import hashlib
import secrets
import sys
from collections.abc import Collection, Iterator
from pathlib import Path


def source_digest(classes: Collection[type]) -> str:
    """Return a digest of the Python files that classes are written in.

    Of a class in a package these are all files of the package, since it may use any of them. A
    class that has no file, as in an interactive session, gets another digest in each process.
    """
    whole = hashlib.sha256()
    for module in sorted({x.__module__ for x in classes}):
        files = sorted(_files(module))
        if not files:
            whole.update(secrets.token_bytes(32))
        for path in files:
            whole.update(f"{module} {path.name}\0".encode())
            whole.update(path.read_bytes())
    return whole.hexdigest()


def _files(module: str) -> Iterator[Path]:
    package = sys.modules.get(module.partition(".")[0])
    for folder in getattr(package, "__path__", ()):
        yield from Path(folder).rglob("*.py")
    if not hasattr(package, "__path__"):
        file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
        if file.is_file():
            yield file
