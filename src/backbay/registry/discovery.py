"""Where backends come from: torch's own, and the entry points that distributions publish.

Nothing here imports torch or runs any backend's code.
"""

import functools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backbay.registry.environment import Environment
from backbay.registry.spec import BackendSpec, Origin, Requirements

ENTRY_POINT_GROUP = "torch_dynamo_backends"


def discover(environment: Environment) -> Iterator[BackendSpec]:
    """Give every backend that this installation offers; torch's own come first."""
    yield from torch_backends(environment)
    yield from entry_point_backends(environment)


def torch_backends(environment: Environment) -> Iterator[BackendSpec]:
    """Give the backends that the installed torch registers itself, as the catalogue has them."""
    version = environment.torch_build.get("__version__")
    if version is None:
        return
    origin = Origin(kind="torch", distribution="torch", version=version)
    for entry in _catalogue():
        yield _from_catalogue(entry, origin)


def entry_point_backends(environment: Environment) -> Iterator[BackendSpec]:
    """Give the backends published as ``torch_dynamo_backends``; what they need is unknown."""
    for entry_point in environment.installed.entry_points(ENTRY_POINT_GROUP):
        origin = Origin(
            kind="distribution",
            distribution=entry_point.distribution.name,
            version=entry_point.distribution.version,
            entry_point=entry_point.value,
        )
        yield BackendSpec(name=entry_point.name, origin=origin)


@functools.cache
def _catalogue() -> tuple[Mapping[str, Any], ...]:
    # Not importlib.resources: its imports are felt in a listing.
    text = Path(__file__).with_name("catalog.toml").read_text("utf-8")
    return tuple(tomllib.loads(text)["backend"])


def _from_catalogue(entry: Mapping[str, Any], origin: Origin) -> BackendSpec:
    requires = Requirements(
        distributions=tuple(entry.get("distributions", ())),
        devices=tuple(entry.get("devices", ())),
        tools=tuple(entry.get("tools", {}).items()),
    )
    return BackendSpec(
        name=entry["name"],
        origin=origin,
        summary=entry["summary"],
        tags=tuple(entry.get("tags", ())),
        requires=requires,
        install=entry.get("install"),
    )
