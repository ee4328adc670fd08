"""Write a package from the templates beside this file: whole, or not at all."""

import functools
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

import backbay
from backbay.errors import InputError, PathTaken

TESTED_TORCH = ">=2.11,<2.16"
"""The releases that what is written was tested on: its manifest says so, and `doctor` warns."""
TORCH = TESTED_TORCH.partition(",")[0]
"""The releases that it installs beside: a newer torch is no reason to refuse."""

LICENSES = ("Apache-2.0", "MIT", "BSD-3-Clause")

_HERE = Path(__file__).parent
_SUFFIX = ".jinja"
_AUTHOR = re.compile(r"(?P<name>[^<>]*[^<>\s])(?:\s*<(?P<email>[^<>@\s]+@[^<>@\s]+)>)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who the package is by."""

    name: str
    email: str | None = None


def author_of(text: str) -> Author:
    """Read an author, as in ``Ada Lovelace <ada@example.org>``; the address may be left out.

    Raises:
        InputError: it is not of that form, or not one line.
    """
    found = _AUTHOR.fullmatch(text.strip())
    if found is None or not text.isprintable():
        raise InputError(f"{text!a} is no author: give 'Name' or 'Name <address@example.org>'")
    return Author(name=found["name"].strip(), email=found["email"])


def write(
    folder: Path, *, name: str, package: str, license_: str, author: Author | None
) -> list[str]:
    """Write a package into a folder that is not there yet, and give its files' names.

    All is written to a temporary folder beside it, which then takes its name: whoever interrupts
    this finds nothing half made.

    Args:
        folder: where; its parent must exist.
        name: of the backend and of the distribution.
        package: what Python imports.
        license_: one of `LICENSES`.
        author: who holds the copyright.

    Raises:
        PathTaken: something is there already.
        InputError: its parent is no folder, or nothing can be written there.
    """
    if folder.exists() or folder.is_symlink():
        raise PathTaken(f"{folder} exists, and nothing was written: give another --directory")
    if not folder.parent.is_dir():
        raise InputError(f"{folder.parent} is no folder: make it, or give another --directory")
    texts = _texts(name=name, package=package, license_=license_, author=author)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
            made = Path(beside) / "made"
            for path, text in texts.items():
                _put(made / path, text)
            made.rename(folder)
    except OSError as error:
        raise InputError(
            f"{folder} could not be written: {error.strerror or error}; nothing was left behind"
        ) from error
    return list(texts)


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def _texts(*, name: str, package: str, license_: str, author: Author | None) -> dict[str, str]:
    """Return every file's text, by its path in the package."""
    holder = author.name if author is not None else f"the authors of {name}"
    values: dict[str, Any] = {
        "name": name,
        "package": package,
        "license": license_,
        "author": author,
        "holder": holder,
        "torch": TORCH,
        "tested_torch": TESTED_TORCH,
        "version": backbay.__version__,
    }
    templates = _environment("template")
    texts = {
        path.removesuffix(_SUFFIX).replace("src/package/", f"src/{package}/"): (
            templates.get_template(path).render(values)
        )
        for path in templates.list_templates()
    }
    licence = _environment("licenses").get_template(f"{license_}.txt").render(values)
    return dict(sorted({**texts, "LICENSE": licence}.items()))


def _environment(folder: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / folder),
        autoescape=False,  # noqa: S701 (Python, TOML and plain text; the name holds no quotes)
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # Of printable characters, which all texts here have, JSON's strings are TOML's.
    environment.filters["toml"] = functools.partial(json.dumps, ensure_ascii=False)
    return environment
