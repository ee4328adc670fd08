"""The registry: every backend by name, and which origin a name resolves to.

Torch's own names are reserved, then come the registrations of this process, then the entry points
in the order of ``sys.path``. What loses stays visible as a candidate.
"""

import difflib
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from backbay.errors import (
    BackendConflict,
    BackendLoadError,
    BackendNotFound,
    BackendUnavailable,
    InputError,
)
from backbay.registry import bridge, discovery, sharing
from backbay.registry.availability import Availability, check
from backbay.registry.environment import Environment
from backbay.registry.spec import BackendSpec, CompilerFn, Origin
from backbay.registry.target import TargetNotFound, parse

HIDDEN_TAGS = ("debug", "experimental")


@dataclass(frozen=True, slots=True)
class _Registration:
    """One in-process registration."""

    spec: BackendSpec
    given: CompilerFn
    resolved: CompilerFn
    """What both look-ups return: ``given``, or its stand-in where torch could not take it."""


class Registry:
    """Backends by name. The module's functions use one default instance; tests make their own."""

    def __init__(
        self, environment: Environment | None = None, *, shared_with_torch: bool = False
    ) -> None:
        """Make a registry.

        Args:
            environment: what backends are checked against; default: this machine and path.
            shared_with_torch: whether ``torch.compile(backend=name)`` finds what is registered
            here.
        """
        self._given_environment = environment
        self._shared_with_torch = shared_with_torch
        self._registered: dict[str, _Registration] = {}
        self._loaded: dict[BackendSpec, CompilerFn] = {}
        self._lock = threading.RLock()

    @functools.cached_property
    def environment(self) -> Environment:
        """What backends are checked against; looked at once."""
        return self._given_environment or Environment.current()

    @functools.cached_property
    def _discovered(self) -> tuple[BackendSpec, ...]:
        return tuple(discovery.discover(self.environment))

    def candidates(self, name: str) -> tuple[BackendSpec, ...]:
        """Give everything that claims a name; the first is what the name resolves to."""
        return tuple(spec for spec in self._all() if spec.name == name)

    def specs(self) -> dict[str, BackendSpec]:
        """Give what each known name resolves to, sorted by name."""
        winners: dict[str, BackendSpec] = {}
        for spec in self._all():
            winners.setdefault(spec.name, spec)
        return dict(sorted(winners.items()))

    def spec(self, name: str) -> BackendSpec:
        """Give what a name resolves to.

        Raises:
            BackendNotFound: nobody knows the name; the message gives the nearest one.
        """
        found = self.candidates(name)
        if found:
            return found[0]
        known = self.specs()
        close = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise BackendNotFound(
            f"no backend named {name!r}.{hint} {len(known)} are known: see `backbay list --all`."
        )

    def list_backends(
        self, exclude_tags: Sequence[str] | None = ("debug", "experimental")
    ) -> list[str]:
        """List names that ``torch.compile(backend=...)`` takes, without importing torch.

        Args:
            exclude_tags: backends that carry one of these tags are left out.
        """
        hidden = set(exclude_tags or ())
        return [name for name, spec in self.specs().items() if not hidden.intersection(spec.tags)]

    def availability(self, name: str, device: str | None = None) -> Availability:
        """Say whether a backend runs here, and if not why and what to do.

        Args:
            name: the backend.
            device: the device type that it would compile for; default: any that is here.

        Raises:
            BackendNotFound: nobody knows the name.
        """
        return check(self.spec(name), self.environment, device)

    def require(self, name: str, device: str | None = None) -> BackendSpec:
        """Give a backend's spec, if it runs here.

        Raises:
            BackendNotFound: nobody knows the name.
            BackendUnavailable: it is known and does not run here; the message says what to do.
        """
        spec = self.spec(name)
        availability = check(spec, self.environment, device)
        if availability.ready:
            return spec
        raise BackendUnavailable(
            f"backend {name!r} does not run here ({availability.state}): "
            f"{availability.reason}. What to do: {availability.remedy}."
        )

    def lookup_backend(self, compiler_fn: str | CompilerFn) -> CompilerFn:
        """Expand a backend's name to its compiler function; a function is given back as it is.

        A name is a registered one, ``module:attribute`` or ``file.py:attribute``. The same name
        gives the same object every time: Dynamo guards on it.

        Raises:
            BackendNotFound: nobody knows the name.
            BackendUnavailable: it is known and does not run here.
            BackendLoadError: its own code raised, or what it names cannot be called.
        """
        if not isinstance(compiler_fn, str):
            return compiler_fn
        if parse(compiler_fn) is not None:
            return _load_target(compiler_fn, compiler_fn)
        spec = self.require(compiler_fn)
        with self._lock:
            if spec not in self._loaded:
                self._loaded[spec] = self._load(spec)
            return self._loaded[spec]

    def resolve(self, name: str) -> str | CompilerFn:
        """Give what to hand to ``torch.compile(backend=...)`` for a name.

        Torch's own stay names: torch.compile gives some of them more than a call (mode, options).

        Raises:
            InputError: as `lookup_backend`.
        """
        if parse(name) is None and self.require(name).origin.kind == "torch":
            return name
        return self.lookup_backend(name)

    @overload
    def register_backend(
        self, compiler_fn: CompilerFn, name: str | None = None, tags: Sequence[str] = ()
    ) -> CompilerFn: ...

    @overload
    def register_backend(
        self, compiler_fn: None = None, name: str | None = None, tags: Sequence[str] = ()
    ) -> Callable[[CompilerFn], CompilerFn]: ...

    def register_backend(
        self,
        compiler_fn: CompilerFn | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
    ) -> Any:
        """Register a compiler function under a name; also a decorator, with or without arguments.

        What is registered with the default registry is found by ``torch.compile(backend=name)``
        and listed by ``torch.compiler.list_backends()``; torch is not imported for it.

        Args:
            compiler_fn: takes a graph module and its example inputs, gives a callable.
            name: what ``torch.compile(backend=...)`` is given; default: the function's own name.
            tags: ``debug`` and ``experimental`` hide a backend from ``list_backends``.

        Raises:
            BackendConflict: another object has the name. The same object again is fine.
            InputError: ``compiler_fn`` cannot be called, or has no name and none is given.
        """
        if compiler_fn is None:
            return functools.partial(self.register_backend, name=name, tags=tags)
        if not callable(compiler_fn):
            raise InputError(f"a backend must be callable, not {type(compiler_fn).__name__}")
        name = name or getattr(compiler_fn, "__name__", None)
        if not name:
            raise InputError(f"{compiler_fn!r} has no __name__: pass name=... to register it")
        origin = Origin(kind="process", location=bridge.location_of(compiler_fn))
        spec = BackendSpec(name=name, origin=origin, tags=tuple(tags))
        with self._lock:
            self._refuse_conflict(spec, compiler_fn)
            if name not in self._registered:
                self._registered[name] = self._registration(spec, compiler_fn)
        return compiler_fn

    def _registration(self, spec: BackendSpec, given: CompilerFn) -> "_Registration":
        if not self._shared_with_torch:
            return _Registration(spec, given, given)
        registration = _Registration(spec, given, sharing.shareable(given, spec.name))
        sharing.share(spec.name, registration.resolved, spec.tags)
        return registration

    def _all(self) -> Iterable[BackendSpec]:
        own = [spec for spec in self._discovered if spec.origin.kind == "torch"]
        published = [spec for spec in self._discovered if spec.origin.kind != "torch"]
        yield from own
        yield from [registration.spec for registration in list(self._registered.values())]
        yield from published
        known = {spec.name for spec in [*own, *published]} | set(self._registered)
        yield from (spec for spec in bridge.registered_in_torch() if spec.name not in known)

    def _refuse_conflict(self, spec: BackendSpec, compiler_fn: CompilerFn) -> None:
        for other in self._discovered:
            if other.name == spec.name and other.origin.kind == "torch":
                raise BackendConflict(
                    f"the name {spec.name!r} is reserved: {other.origin} has it. "
                    f"Register {spec.origin} under another name."
                )
        existing = self._registered.get(spec.name)
        if existing is not None and existing.given == compiler_fn:
            return
        held = bridge.held_by_torch(spec.name) if self._shared_with_torch else None
        if existing is None and (held is None or held == compiler_fn):
            return
        taken = existing.spec.origin if existing else f"{bridge.location_of(held)}, in torch"
        raise BackendConflict(
            f"the name {spec.name!r} is taken by {taken}. "
            f"Register {spec.origin} under another name."
        )

    def _load(self, spec: BackendSpec) -> CompilerFn:
        registered = self._registered.get(spec.name)
        if registered is not None and registered.spec == spec:
            return registered.resolved
        if spec.origin.kind == "distribution":
            assert spec.origin.entry_point is not None
            return _load_target(spec.origin.entry_point, f"{spec.name} of {spec.origin}")
        return bridge.load_from_torch(spec.name)


def _load_target(reference: str, what: str) -> CompilerFn:
    target = parse(reference)
    if target is None:
        raise BackendLoadError(f"backend {what}: {reference!r} is not of the form module:attribute")
    try:
        loaded = target.load()
    except TargetNotFound as error:
        raise BackendLoadError(f"backend {what}: {error}") from error
    except Exception as error:
        raise BackendLoadError(
            f"backend {what} raised while it was loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(loaded):
        raise BackendLoadError(f"backend {what}: {type(loaded).__name__} cannot be called")
    return loaded
