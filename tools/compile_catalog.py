"""Turn the catalogue, ``catalog.toml``, into the module ``_catalog.py`` beside it.

    python tools/compile_catalog.py [--check]

Parsing TOML would be most of what ``backbay list`` costs; Python keeps a module compiled. The made
module is committed, and a test holds it equal to its source. Exit code 1 with ``--check``: it is
not up to date.
"""

import sys
import tomllib
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from backbay.errors import ManifestError
from backbay.registry import manifest
from backbay.registry.spec import BackendSpec, Origin

FOLDER = Path(manifest.__file__).parent
SOURCE, MADE = FOLDER / "catalog.toml", FOLDER / "_catalog.py"

HEAD = '''\
"""Made by ``python tools/compile_catalog.py`` from catalog.toml: do not edit."""

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
    made = manifest.read(
        data, lambda x: Origin(kind="catalogue", distribution=x), declared_by="catalogue"
    )
    if made.problems:
        raise ManifestError("\n".join(made.problems))
    assert all(by_kind.get(x.alias_of or x.name) for x in made.specs), "registers is required here"
    return made.specs


def code(specs: list[BackendSpec]) -> str:
    """Return the made module's text."""
    return HEAD + "".join(f"    {expression(spec)},\n" for spec in specs) + ")\n"


def expression(value: Any) -> str:
    """Return the code that makes a value; what a record has by default is left out."""
    if isinstance(value, tuple):
        return "(" + "".join(f"{expression(x)}, " for x in value) + ")"
    if not is_dataclass(value):
        return repr(value)
    parts = [
        f"{x.name}={expression(getattr(value, x.name))}"
        for x in fields(value)
        if is_given(value, x)
    ]
    return f"{type(value).__name__}({', '.join(parts)})"


def is_given(value: Any, part: Any) -> bool:
    """Whether a field of a record holds something else than by default."""
    held = getattr(value, part.name)
    if part.default_factory is not MISSING:
        return bool(held != part.default_factory())
    return part.default is MISSING or held != part.default


def main() -> int:
    """Write the made module, or compare it with what is there."""
    made = code(source_specs())
    if "--check" in sys.argv[1:]:
        return int(MADE.read_text("utf-8") != made)
    MADE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
