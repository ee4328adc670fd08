"""A virtual environment that is only read, and what is put into it by hand."""

import re
import venv
from pathlib import Path

from backbay.registry import Environment
from backbay.registry.known import KnownBackends
from backbay.registry.other_interpreter import other_interpreter

TORCH = "__version__ = '2.13.0+cu126'\ncuda: str | None = '12.6'\nhip: str | None = None\n"


class Other:
    """A virtual environment, and what is put into it by hand."""

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        venv.EnvBuilder(symlinks=True, system_site_packages=shared).create(folder)
        self.folder = folder
        self.python = folder / "bin" / "python"
        (self.site,) = folder.glob("lib/python*/site-packages")

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def publish(self, name: str, version: str = "1.0", **files: str) -> None:
        """Write a distribution's metadata; files are named as in ``entry_points_txt``."""
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        said = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", **files}
        named = {re.sub("_(txt|json)$", r".\1", key): text for key, text in said.items()}
        self.write({f"{info}/{key}": text for key, text in named.items()})

    def read(self) -> Environment:
        return Environment.of(other_interpreter(self.python))

    def known(self) -> KnownBackends:
        return KnownBackends(self.read())
