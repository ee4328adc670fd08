"""Turn ``catalog.toml`` into ``_catalog.py``: ``python -m backbay.registry.compile_catalog``.

Parsing TOML would be most of what ``backbay list`` costs; Python keeps a module compiled. The made
module is committed, and a test holds it equal to its source.
"""

import sys
import tomllib
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from backbay.errors import ManifestError
from backbay.registry import manifest
from backbay.registry.spec import BackendSpec, Origin

HERE = Path(__file__).parent
SOURCE, MADE = HERE / "catalog.toml", HERE / "_catalog.py"

_HEAD = '''\
"""Made by ``python -m backbay.registry.compile_catalog`` from catalog.toml: do not edit."""

from backbay.registry.spec import (
    BackendSpec,
    KnownFault,
    Option,
    Origin,
    Requirements,
    Traits,
)

SPECS: tuple[BackendSpec, ...] = (
'''


def source_specs() -> list[BackendSpec]:
    """Read the catalogue's source.

    Raises:
        ManifestError: something in it is not understood.
    """
    data = tomllib.loads(SOURCE.read_text("utf-8"))
    by_kind = {x["name"]: x.get("registers") for x in data["backend"]}
    made = manifest.read(data, _origin, declared_by="catalogue")
    if made.problems:
        raise ManifestError("\n".join(made.problems))
    assert all(by_kind.get(x.alias_of or x.name) for x in made.specs), "registers is required here"
    return made.specs


def code(specs: list[BackendSpec]) -> str:
    """Return the made module's text."""
    return _HEAD + "".join(f"    {_expression(spec)},\n" for spec in specs) + ")\n"


def _origin(distribution: str | None) -> Origin:
    return Origin(kind="catalogue", distribution=distribution)


def _expression(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + "".join(f"{_expression(x)}, " for x in value) + ")"
    if not is_dataclass(value):
        return repr(value)
    parts = [
        f"{x.name}={_expression(getattr(value, x.name))}" for x in fields(value) if _given(value, x)
    ]
    return f"{type(value).__name__}({', '.join(parts)})"


def _given(value: Any, part: Any) -> bool:
    held = getattr(value, part.name)
    if part.default_factory is not MISSING:
        return bool(held != part.default_factory())
    return part.default is MISSING or held != part.default


def main() -> int:
    """Write the made module; with ``--check`` only tell whether it is up to date."""
    made = code(source_specs())
    if "--check" in sys.argv:
        return 0 if MADE.read_text("utf-8") == made else 1
    MADE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
