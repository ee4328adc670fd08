"""``backbay.lock``: which distribution gives each backend here, so that a drift is seen, not run.

The file is TOML. It holds torch's version range, where torch is installed, and for each backend
that a distribution provides, the distribution, its version, what is loaded, and a digest of what
its manifest says.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from backbay.errors import InputError
from backbay.registry.distributions import normalise
from backbay.registry.registry import Registry
from backbay.registry.spec import BackendSpec, Origin, as_data

FILE = "backbay.lock"
_VERSION = 1
_KEYS = ("distribution", "version", "target", "manifest")


def lock_text(registry: Registry) -> str:
    """Return the text of a lock file for what is installed here.

    Raises:
        InputError: two distributions contend for a name.
    """
    lines = [
        "# Written by `backbay lock`; `backbay lock --check` compares it with what is installed.",
        f"version = {_VERSION}",
    ]
    torch = registry.environment.torch_build.get("__version__")
    if torch is not None:
        major, minor = torch.split(".")[:2]
        lines.append(f'torch = ">={major}.{minor},<{major}.{int(minor) + 1}"')
    for name, entry in _entries(registry).items():
        lines += ["", "[[backend]]", f"name = {json.dumps(name)}"]
        lines += [f"{key} = {json.dumps(entry[key])}" for key in _KEYS]
    return "\n".join(lines) + "\n"


def drift(registry: Registry, path: Path) -> list[str]:
    """Return how what is installed differs from a lock file; nothing where it does not.

    Raises:
        InputError: the file is not there, or is not a lock file.
    """
    locked = _read(path)
    here = _entries(registry)
    problems = list(_torch_drift(registry, locked.get("torch")))
    wanted = {entry["name"]: entry for entry in locked.get("backend", [])}
    for name, entry in wanted.items():
        problems += _entry_drift(name, entry, here.get(name))
    problems += [
        f"{name} is provided by {here[name]['distribution']} and is not in the lock"
        for name in here
        if name not in wanted
    ]
    return problems


def manifest_digest(spec: BackendSpec) -> str:
    """Return SHA-256 over all that is declared of a backend, wherever the files lie."""
    declared = replace(spec, origin=Origin(kind=spec.origin.kind), declared_by=None)
    text = json.dumps(as_data(declared), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _entries(registry: Registry) -> dict[str, dict[str, str]]:
    specs = registry.specs()  # with all that is declared, which a resolution may leave out
    return {
        name: {
            "distribution": normalise(spec.origin.distribution or ""),
            "version": spec.origin.version or "",
            "target": spec.target or "",
            "manifest": manifest_digest(spec),
        }
        for name, resolution in registry.resolutions().items()
        if (spec := registry.spec(name) if resolution.conflict else specs[name])
        and spec.origin.kind == "distribution"
        and resolution.standing == "wins"
    }


def _torch_drift(registry: Registry, wanted: str | None) -> Iterator[str]:
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 (as in availability.py)

    version = registry.environment.torch_build.get("__version__")
    if version is None and wanted is not None:
        yield f"torch is not installed, and the lock says torch{wanted}"
    if version is None:
        return
    if wanted is None:
        yield f"torch {version} is installed, and is not in the lock"
    elif not SpecifierSet(wanted).contains(version, prereleases=True):
        yield f"torch {version} is installed, and the lock says torch{wanted}"


def _entry_drift(name: str, wanted: dict[str, Any], here: dict[str, str] | None) -> Iterator[str]:
    if here is None:
        yield f"{name} is locked to {wanted['distribution']}, which does not provide it here"
        return
    for key in _KEYS:
        if here[key] != wanted.get(key):
            yield f"{name}: {key} is {here[key]}, and the lock says {wanted.get(key)}"


def _read(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"there is no {path}: write it with `backbay lock`") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    backends = data.get("backend", [])
    readable = isinstance(backends, list) and all(
        isinstance(x, dict) and isinstance(x.get("name"), str) for x in backends
    )
    if (
        data.get("version") != _VERSION
        or not isinstance(data.get("torch", ""), str)
        or not readable
    ):
        raise InputError(f"{path} is no lock file of version {_VERSION}: write it anew")
    return data
