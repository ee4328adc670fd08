"""``backbay.lock``: which distribution gives each backend here, so that a drift is seen, not run.

The file is TOML. It holds torch's version range, where torch is installed, and for each backend
that a distribution provides, the distribution, its version, what is loaded, and a digest of what
its manifest says.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import tomlkit
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from backbay.errors import InputError
from backbay.registry.distributions import normalise
from backbay.registry.known import KnownBackends
from backbay.registry.spec import BackendSpec, Origin, as_data
from backbay.registry.toml import read_toml

FILE = "backbay.lock"
_VERSION = 1
_HEAD = "Written by `backbay lock`; `backbay lock --check` compares it with what is installed."


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What gives one backend."""

    name: str
    distribution: str
    version: str
    target: str
    manifest: str
    """Digest of what its manifest says."""


class _Lock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file holds."""

    version: Literal[1]
    torch: str | None = None
    backend: tuple[_Entry, ...] = ()


def lock_text(registry: KnownBackends) -> str:
    """Return the text of a lock file for what is installed here.

    Raises:
        InputError: two distributions contend for a name.
    """
    document = tomlkit.document()
    document.add(tomlkit.comment(_HEAD))
    document.add("version", tomlkit.item(_VERSION))
    torch = registry.environment.torch_build.get("__version__")
    if torch is not None:
        major, minor = torch.split(".")[:2]
        document.add("torch", tomlkit.item(f">={major}.{minor},<{major}.{int(minor) + 1}"))
    entries = [msgspec.structs.asdict(x) for x in _entries(registry).values()]
    if entries:
        document.add("backend", tomlkit.item(entries))
    return tomlkit.dumps(document)


def drift(registry: KnownBackends, path: Path) -> list[str]:
    """Return how what is installed differs from a lock file; nothing where it does not.

    Raises:
        InputError: the file is not there, or is not a lock file.
    """
    locked = _read(path)
    here = _entries(registry)
    problems = list(_torch_drift(registry, locked.torch))
    wanted = {entry.name: entry for entry in locked.backend}
    for name, entry in wanted.items():
        problems += _entry_drift(entry, here.get(name))
    problems += [
        f"{name} is provided by {here[name].distribution} and is not in the lock"
        for name in here
        if name not in wanted
    ]
    return problems


def manifest_digest(spec: BackendSpec) -> str:
    """Return SHA-256 over all that is declared of a backend, wherever the files lie."""
    declared = replace(spec, origin=Origin(kind=spec.origin.kind), declared_by=None)
    text = json.dumps(as_data(declared), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _entries(registry: KnownBackends) -> dict[str, _Entry]:
    specs = registry.specs()  # with all that is declared, which a resolution may leave out
    return {
        name: _Entry(
            name=name,
            distribution=normalise(spec.origin.distribution or ""),
            version=spec.origin.version or "",
            target=spec.target or "",
            manifest=manifest_digest(spec),
        )
        for name, resolution in registry.resolutions().items()
        if (spec := registry.spec(name) if resolution.conflict else specs[name])
        and spec.origin.kind == "distribution"
        and resolution.standing == "wins"
    }


def _torch_drift(registry: KnownBackends, wanted: str | None) -> Iterator[str]:
    version = registry.environment.torch_build.get("__version__")
    if version is None and wanted is not None:
        yield f"torch is not installed, and the lock says torch{wanted}"
    if version is None:
        return
    if wanted is None:
        yield f"torch {version} is installed, and is not in the lock"
    elif not SpecifierSet(wanted).contains(version, prereleases=True):
        yield f"torch {version} is installed, and the lock says torch{wanted}"


def _entry_drift(wanted: _Entry, here: _Entry | None) -> Iterator[str]:
    if here is None:
        yield f"{wanted.name} is locked to {wanted.distribution}, which does not provide it here"
        return
    for key in _Entry.__struct_fields__:
        found, locked = getattr(here, key), getattr(wanted, key)
        if found != locked:
            yield f"{wanted.name}: {key} is {found}, and the lock says {locked}"


def _read(path: Path) -> _Lock:
    try:
        lock = msgspec.convert(read_toml(str(path)), _Lock)
        SpecifierSet(lock.torch or "")
    except FileNotFoundError as error:
        raise InputError(f"there is no {path}: write it with `backbay lock`") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, InvalidSpecifier, msgspec.ValidationError) as error:
        raise InputError(
            f"{path} is no lock file of version {_VERSION}: {error}: write it anew"
        ) from error
    return lock
