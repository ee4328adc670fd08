"""Which engines there are, which backends each has, and what pip is told to install."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from backbay.errors import InputError
from backbay.registry import BackendSpec, Registry
from backbay.registry.availability import fits_machine
from backbay.registry.distributions import Installed, required_name

ADAPTERS = "backbay-adapters"
_BASE = ("backbay[race]", "backbay-conformance")
_MODELS = ("backbay[models]",)
_PIP = ["pip", "install"]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A distribution that compiles, and the backends that are names for it: stock ones first."""

    name: str
    backends: tuple[BackendSpec, ...]
    torch: str | None = None
    """The version beside which it is installed."""

    @property
    def lines(self) -> dict[str, list[BackendSpec]]:
        """The lines that install it, each with its backends; an adapter's comes last."""
        found: dict[str, list[BackendSpec]] = {}
        for spec in self.backends:
            found.setdefault(spec.install_beside(self.torch) or "", []).append(spec)
        return found


def is_adapter(spec: BackendSpec) -> bool:
    """Whether a backend is Backbay's own way to an engine."""
    return spec.name.startswith("backbay_") and engine_of(spec) != "backbay"


def engine_of(spec: BackendSpec) -> str | None:
    """Return the distribution that does a backend's work."""
    needed = next(iter(spec.requires.distributions), "")
    return required_name(needed) or spec.origin.distribution


def chosen(registry: Registry, names: Sequence[str], torch: str | None = None) -> list[Engine]:
    """Return the engines of the backends named; default: of all that may run on this machine.

    All backends of an engine are tried in its environment, the adapter beside the stock one.

    Raises:
        InputError: a name is not known, or no line that installs it is.
    """
    specs = {name: x.spec for name, x in registry.resolutions().items()}
    engines: dict[str, list[BackendSpec]] = {}
    for spec in sorted(specs.values(), key=is_adapter):
        engine = engine_of(spec)
        if engine is not None and spec.install and spec.alias_of is None and spec.name != "backbay":
            engines.setdefault(engine, []).append(spec)
    if not names:
        here = registry.environment
        names = [x.name for each in engines.values() for x in each if fits_machine(x, here)]
    wanted = dict.fromkeys(_engine(registry, name, engines) for name in names)
    return [Engine(name=x, backends=tuple(engines[x]), torch=torch) for x in wanted]


def _engine(registry: Registry, name: str, engines: dict[str, list[BackendSpec]]) -> str:
    spec = registry.spec(name)
    engine = engine_of(spec)
    if engine is None or engine not in engines:
        why = f"; {spec.broken[0].remedy}" if spec.broken and spec.broken[0].remedy else ""
        raise InputError(f"backend {name!r}: no line that installs an engine for it is known{why}")
    return engine


def base(installed: Installed) -> list[str]:
    """Return what is installed of Backbay, as pip takes it."""
    return [_ours(line, installed) for line in _BASE]


def models(installed: Installed) -> list[str]:
    """Return what brings the models that are raced; an engine is loaded before they are there."""
    return [_ours(line, installed) for line in _MODELS]


def requirements(line: str, installed: Installed) -> list[str] | None:
    """Return what a line of installation gives pip; nothing where it is no ``pip install``."""
    words = shlex.split(line)
    if words[:2] != _PIP:
        return None
    return [_ours(word, installed) for word in words[2:]]


def _ours(requirement: str, installed: Installed) -> str:
    """Return a requirement; of Backbay's own, the one from which this Backbay was installed."""
    name = required_name(requirement)
    extras = requirement.removeprefix(name)
    if not name.startswith("backbay"):
        return requirement
    found = installed.find(name)
    if found is None:
        return requirement
    folder = _source(Path(found.folder))
    return f"{folder}{extras}" if folder is not None else f"{name}{extras}=={found.version}"


def _source(metadata: Path) -> str | None:
    """Return the folder that a distribution was installed from, as pip wrote it (PEP 610)."""
    try:
        url = json.loads((metadata / "direct_url.json").read_text("utf-8"))["url"]
    except (OSError, ValueError, KeyError):
        return None
    parts = urlsplit(url)
    return url2pathname(parts.path) if parts.scheme == "file" else None
