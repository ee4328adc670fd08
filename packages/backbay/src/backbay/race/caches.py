"""Compiler caches of a race: each arm has its own, empty for its trial, kept for the timing.

An arm's cache stays where it is, because compiled artefacts hold absolute paths: the process that
times all arms points the compilers at one after the other. What a toolchain finds out about the
machine, the same for each arm, is found out once.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path


class Caches:
    """The cache folders that the compilers of a race are pointed at."""

    def __init__(self, root: Path) -> None:
        self._root = root / "caches"
        self._toolchain = root / "toolchain" / "cache"

    def folder(self, arm: str) -> Path:
        """Return where an arm's cache is."""
        name = hashlib.sha256(arm.encode()).hexdigest()[:16]  # an arm may be named by a path
        return self._root / name / "cache"

    def environment(self, arm: str) -> Mapping[str, str]:
        """Return the environment variables that point compilers at an arm's cache.

        Temporary files have a folder beside it: a compiler that is killed leaves them.
        """
        return _environment(self.folder(arm))

    def toolchain(self) -> Mapping[str, str] | None:
        """Return the environment of whoever finds out about the toolchain for all arms.

        Its cache is copied into each that is begun afterwards. ``None`` where that was done.
        """
        if self._toolchain.exists():
            return None
        _make(self._toolchain)
        return _environment(self._toolchain)

    def empty(self, arm: str) -> None:
        """Start with nothing cached but what is known of the toolchain."""
        folder = self.folder(arm)
        shutil.rmtree(folder.parent, ignore_errors=True)
        _make(folder)
        if self._toolchain.exists():
            shutil.copytree(self._toolchain, folder, copy_function=_link, dirs_exist_ok=True)

    def drop(self) -> None:
        """Forget everything: another workload's caches must not be hit."""
        shutil.rmtree(self._root, ignore_errors=True)


def variables(folder: str) -> Mapping[str, str]:
    """Return the environment variables that Inductor and Triton read their cache's place from."""
    return {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": str(Path(folder) / "triton")}


def _link(source: str, destination: str) -> None:
    try:
        os.link(source, destination)
    except FileNotFoundError:  # a compiler that still runs wrote it, and has given it its name
        return
    except OSError:
        shutil.copy2(source, destination)


def _environment(folder: Path) -> Mapping[str, str]:
    return {"TMPDIR": str(folder.parent / "tmp"), **variables(str(folder))}


def _make(folder: Path) -> None:
    (folder.parent / "tmp").mkdir(parents=True)
    folder.mkdir()
