"""What the user allows: which distributions may provide backends, which one wins, which is default.

A policy has layers, in rising order: a configuration file, the environment, context managers. For
each question the highest layer that says something about it decides. Nothing here loads a backend.

A process that starts others may hand its layers down to them, with what it has registered, as data
in one environment variable.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from backbay.errors import PolicyError
from backbay.registry.distributions import is_distribution_name, normalise

STATE = "BACKBAY_STATE"
"""The variable in which a process hands down its policy and its registrations."""
STATE_VERSION = 1
CONFIG_FILE = "backbay.toml"
_LARGEST_CONFIG = 1 << 20
_OFF = frozenset({"0", "false", "off", "no"})
_ON = frozenset({"1", "true", "on", "yes"})
_KEYS = ("block", "allow", "pin", "default", "require")
_OWN = frozenset({"backbay", "torch"})
PROCESS = "process"
"""What a name is pinned to so that this process's own registration wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one source says."""

    source: str
    """Where it is from, as a user would write it: a path, a variable, a call."""

    block: frozenset[str] = frozenset()
    """Normalised names of distributions of which no code is run."""

    allow: frozenset[str] | None = None
    """If given, only these distributions (and torch) may provide backends."""

    pin: Mapping[str, str] = field(default_factory=dict)
    """Backend name to the distribution (or ``process``) that it comes from."""

    default: Mapping[str, str] = field(default_factory=dict)
    """Device type to the backend that ``backbay.default`` takes."""

    require: tuple[str, ...] = ()
    """Backends that must be ready: ``backbay doctor`` fails otherwise."""


@dataclass(frozen=True, slots=True)
class Policy:
    """All layers, lowest first."""

    layers: tuple[Layer, ...] = ()

    def why_blocked(self, distribution: str) -> str | None:
        """Return which setting blocks a distribution, if one does."""
        name = normalise(distribution)
        for layer in reversed(self.layers):
            if name in layer.block:
                return f"{distribution} is blocked by {layer.source}"
            if layer.allow is not None:
                if name in layer.allow or name in _OWN:
                    return None
                return f"{distribution} is not among those that {layer.source} allows"
        return None

    def pinned(self, name: str) -> tuple[str, str] | None:
        """Return the distribution to which a name is pinned, and by which source."""
        for layer in reversed(self.layers):
            if name in layer.pin:
                return layer.pin[name], layer.source
        return None

    def default_for(self, device: str) -> tuple[str, str] | None:
        """Return the backend that is the default for a device type, and by which source."""
        for layer in reversed(self.layers):
            if device in layer.default:
                return layer.default[device], layer.source
        return None

    @property
    def required(self) -> dict[str, str]:
        """Return the backends that must be ready, each with the source that says so."""
        return {name: layer.source for layer in self.layers for name in layer.require}

    def with_layers(self, layers: tuple[Layer, ...]) -> "Policy":
        """Return this policy with further layers on top."""
        return Policy((*self.layers, *layers)) if layers else self


active: ContextVar[tuple[Layer, ...]] = ContextVar("backbay_policy", default=())
"""The layers of the context managers that are open here; each thread and task has its own."""


@contextlib.contextmanager
def policy(
    *,
    block: Iterable[str] = (),
    allow: Iterable[str] | None = None,
    pin: Mapping[str, str] | None = None,
    default: str | Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Set a policy for a block of code; it lies above the file's and the environment's.

    It holds in this thread and in tasks started from it, not in other threads or processes.

    Args:
        block: distributions of which no code is run.
        allow: only these distributions, and torch, may provide backends.
        pin: backend name to the distribution that it comes from, or ``process``.
        default: what ``backbay.default`` takes: one backend, or one for each device type.
    """
    layer = _layer(
        "backbay.policy()",
        {
            "block": _given(block),
            "allow": None if allow is None else _given(allow),
            "pin": dict(pin or {}),
            "default": default if isinstance(default, str) else dict(default or {}),
        },
    )
    token = active.set((*active.get(), layer))
    try:
        yield
    finally:
        active.reset(token)


def standing_policy() -> Policy:
    """Read the configuration file and the environment.

    Raises:
        PolicyError: one of them cannot be understood. A policy that is half understood would let
            through what it was written to block.
    """
    return Policy((*_file_layers(), *_environment_layers(os.environ), *handed_down().layers))


@dataclass(frozen=True, slots=True)
class HandedDown:
    """What the parent process decided."""

    layers: tuple[Layer, ...] = ()

    backends: Mapping[str, tuple[str, list[str]]] = field(default_factory=dict)
    """Name of what it registered to the reference by which it is imported, and its tags."""


def handed_down() -> HandedDown:
    """Read what the parent process handed down, if it did.

    Raises:
        PolicyError: the variable holds something else.
    """
    text = os.environ.get(STATE)
    if not text:
        return HandedDown()
    import msgspec  # noqa: PLC0415 (few have a parent)

    try:
        state = msgspec.json.decode(text, type=dict[str, Any])
        version = state.get("version")
        if version != STATE_VERSION:
            wanted = f"this Backbay reads {STATE_VERSION}"
            raise PolicyError(f"{STATE} is of version {version!r}, and {wanted}")
        said = msgspec.convert(state.get("layers"), list[dict[str, Any]])
        backends = msgspec.convert(state.get("backends"), dict[str, tuple[str, list[str]]])
        layers = [
            _layer(f"{x.pop('source', None)}, of the parent process ({STATE})", x) for x in said
        ]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PolicyError(f"{STATE} cannot be read: {error}") from error
    return HandedDown(tuple(layers), backends)


def configuration_file() -> str | None:
    """Return the path of the configuration file that holds here, if there is one.

    ``BACKBAY_CONFIG`` names it, or turns it off; otherwise it is the ``backbay.toml``, or the
    ``pyproject.toml`` with a ``[tool.backbay]`` table, nearest above the current directory.
    """
    given = os.environ.get("BACKBAY_CONFIG", "").strip()
    if given:
        return None if given.lower() in _OFF else given
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        return None
    while True:
        for name in (CONFIG_FILE, "pyproject.toml"):
            path = os.path.join(folder, name)
            if os.path.isfile(path) and (name == CONFIG_FILE or _mentions_backbay(path)):
                return path
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def _mentions_backbay(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return b"[tool.backbay" in file.read(_LARGEST_CONFIG)
    except OSError:
        return False


def _file_layers() -> Iterator[Layer]:
    path = configuration_file()
    if path is None:
        return
    from backbay.registry.toml import read_toml  # noqa: PLC0415 (only where there is a file)

    try:
        data: Any = read_toml(path)
    except (OSError, ValueError) as error:
        from backbay.causes import of_file  # noqa: PLC0415 (likewise)

        raise PolicyError(f"{path} cannot be read: {of_file(path, error)}") from error
    if os.path.basename(path) == "pyproject.toml":
        tool = data.get("tool")
        data = tool.get("backbay", {}) if isinstance(tool, dict) else {}
    yield _layer(path, data)


def _environment_layers(environment: Mapping[str, str]) -> Iterator[Layer]:
    for key, read in _VARIABLES.items():
        value = environment.get(f"BACKBAY_{key.upper()}", "").strip()
        if value and value.lower() not in _OFF:
            source = f"BACKBAY_{key.upper()}={value}"
            yield _layer(source, {key: read(value, source)})
    switch = environment.get("BACKBAY_PLUGINS", "").strip().lower()
    if switch in _OFF:
        yield Layer(source="BACKBAY_PLUGINS=0", allow=frozenset())
    elif switch and switch not in _ON:
        raise PolicyError(f"BACKBAY_PLUGINS={switch!r} is neither on nor off")


def _listed(value: str, _: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _mapped(value: str, source: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in _listed(value, source)]
    if not all(name and equals and what for name, equals, what in pairs):
        raise PolicyError(f"{source} is not of the form NAME=VALUE,NAME=VALUE")
    return {name.strip(): what.strip() for name, _, what in pairs}


_VARIABLES: Mapping[
    str, Callable[[str, str], Any]
] = {  # the last say most: what is blocked is not let in by a list that allows it
    "allow": _listed,
    "block": _listed,
    "pin": _mapped,
    "default": lambda value, source: _mapped(value, source) if "=" in value else value,
    "require": _listed,
}

ANY_DEVICE = ("cpu", "cuda", "xpu", "mps", "hpu", "npu", "xla", "meta")


def _layer(source: str, data: Any) -> Layer:
    if not isinstance(data, dict):
        raise PolicyError(f"{source}: a policy is a table, not {type(data).__name__}")
    strange = [key for key in data if key not in _KEYS]
    if strange:
        raise PolicyError(f"{source}: unknown key {strange[0]!r}; a policy has {', '.join(_KEYS)}")
    allow = data.get("allow")
    default = data.get("default", {})
    if isinstance(default, str):
        default = dict.fromkeys(ANY_DEVICE, default)
    return Layer(
        source=source,
        block=_distributions(source, "block", data.get("block", [])),
        allow=None if allow is None else _distributions(source, "allow", allow),
        pin=_table(source, "pin", data.get("pin", {})),
        default=_table(source, "default", default),
        require=tuple(_texts(source, "require", data.get("require", []))),
    )


def _given(names: Iterable[str]) -> Any:
    return names if isinstance(names, str) else list(names)  # a text is no list of its letters


def _distributions(source: str, key: str, value: Any) -> frozenset[str]:
    names = _texts(source, key, value)
    strange = [name for name in names if not is_distribution_name(name)]
    if strange:  # it would match nothing, and let through what it was written to block
        raise PolicyError(f"{source}: {key}: {strange[0]!r} is not a distribution's name")
    return frozenset(map(normalise, names))


def _texts(source: str, key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise PolicyError(f"{source}: {key} must be a list of names")
    return value


def _table(source: str, key: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(x, str) for x in value.values()):
        raise PolicyError(f"{source}: {key} must map names to names")
    return value
