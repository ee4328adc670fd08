"""Compiler caches of a race: empty for every trial, and kept for the timing that follows.

Everything happens under one path, because compiled artefacts hold absolute paths: a trial's cache
is moved aside when the trial ends, and the survivors' are laid on top of each other to be timed.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path


class Caches:
    """The cache folder that every compiler of a race is pointed at."""

    def __init__(self, root: Path) -> None:
        self._live = root / "cache"
        self._kept = root / "kept"
        self._temporary = root / "tmp"

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that point Inductor and Triton at the folder.

        Temporary files have one beside it: a compiler that is killed leaves them.
        """
        return {
            "TMPDIR": str(self._temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self._live),
            "TRITON_CACHE_DIR": str(self._live / "triton"),
        }

    def empty(self) -> None:
        """Start with nothing cached."""
        shutil.rmtree(self._live, ignore_errors=True)
        self._live.mkdir(parents=True)
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir(exist_ok=True)

    def keep(self, backend: str) -> None:
        """Move aside what a backend's trial left."""
        self._kept.mkdir(exist_ok=True)
        self._live.rename(self._kept_by(backend))

    def restore(self, backends: Iterable[str]) -> None:
        """Lay out what these backends' trials left, so that the same compile is a cache hit."""
        self.empty()
        for kept in filter(Path.exists, map(self._kept_by, backends)):
            shutil.copytree(kept, self._live, copy_function=_link, dirs_exist_ok=True)

    def drop(self) -> None:
        """Forget everything: another workload's caches must not be hit."""
        shutil.rmtree(self._kept, ignore_errors=True)

    def _kept_by(self, backend: str) -> Path:
        return self._kept / hashlib.sha256(backend.encode()).hexdigest()  # may be named by a path


def _link(source: str, destination: str) -> None:
    if Path(destination).exists():  # addressed by content: the same name is the same file
        return
    try:
        os.link(source, destination)
    except OSError:
        shutil.copy2(source, destination)
