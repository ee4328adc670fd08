"""The registry: every backend by name, what a name resolves to, and its compiler function."""

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload
from weakref import WeakSet

from backbay.errors import BackendLoadError, BackendNotFound, InputError, warn_of_experimental
from backbay.registry import bridge
from backbay.registry.availability import is_absent
from backbay.registry.environment import Environment
from backbay.registry.known import KnownBackends
from backbay.registry.loading import Loader, load_target, source_of, transaction
from backbay.registry.policy import STATE, Policy, active, handed_down
from backbay.registry.spec import BackendSpec, CompilerFn, Origin

if TYPE_CHECKING:
    from backbay.registry.configured import ConfiguredBackend
    from backbay.registry.registration import Details, Registrations
    from backbay.registry.target import Target

_Registered = TypeVar("_Registered", bound=CompilerFn)


class Registry(KnownBackends):
    """Backends by name. `default_registry` is the process's; tests make their own."""

    def __init__(
        self,
        environment: Environment | None = None,
        *,
        standing: Policy | None = None,
        shared_with_torch: bool = False,
    ) -> None:
        """Make a registry.

        Args:
            environment: what backends are checked against; default: this machine and path.
            standing: the policy below that of context managers; default: the configuration file's
                and the environment's.
            shared_with_torch: whether ``torch.compile(backend=name)`` finds what is registered
                here.
        """
        super().__init__(environment, standing=standing)
        self._shared_with_torch = shared_with_torch
        self._registered: Registrations | None = None
        self._configured: dict[Hashable, ConfiguredBackend] = {}
        self._loader = Loader()
        self._lock = threading.RLock()
        self._generation = 0
        self._warm: dict[str, CompilerFn] = {}
        self._default: str | CompilerFn | None = None
        _registries.add(self)
        if shared_with_torch and os.environ.get(STATE):
            from backbay.registry.registration import Inherited  # noqa: PLC0415 (few have a parent)

            for name, (reference, tags) in handed_down().backends.items():
                summary = f"{reference}, handed down in {STATE}"
                self.register_backend(
                    Inherited(name, reference), name, tags, replace=True, summary=summary
                )

    def exported(self) -> contextlib.AbstractContextManager[None]:
        """Let processes that are started in a block have this registry's policy and registrations.

        ``with registry.exported(): multiprocessing.spawn(...)``; by any way of starting processes
        that passes the environment on. The child's default registry takes it up.
        """
        from backbay.registry.registration import exported  # noqa: PLC0415 (few have children)

        return exported(self)

    @property
    def _registrations(self) -> "Registrations":
        from backbay.registry.registration import Registrations  # noqa: PLC0415 (a listing has none)

        with self._lock:  # cached_property holds no lock from Python 3.12 on
            if self._registered is None:
                self._registered = Registrations(shared_with_torch=self._shared_with_torch)
            return self._registered

    def _of_this_process(self) -> tuple[list[BackendSpec], list[BackendSpec]]:
        if self._registered is None:
            return [], list(bridge.registered_in_torch())
        return self._registered.everything()

    def registered_specs(self) -> list[BackendSpec]:
        """Return the specs of what this process registered here."""
        return self._registered.specs() if self._registered is not None else []

    def registered_functions(self) -> list[tuple[BackendSpec, CompilerFn]]:
        """Return what this process registered here, as a look-up of its name gives it."""
        registered = self._registered.all() if self._registered is not None else []
        return [(x.spec, x.resolved) for x in registered]

    def spec_of(self, compiler_fn: CompilerFn) -> BackendSpec | None:
        """Return what is known of a compiler function, whatever its name resolves to.

        It is known where this process registered it, or where it is what torch or a distribution
        provides; elsewhere there is nothing.
        """
        from backbay.registry.registration import is_of  # noqa: PLC0415 (a listing has none)

        registered = self._registered.all() if self._registered is not None else []
        own = (x.spec for x in registered if x.is_of(compiler_fn))
        others = (x for x in self._claimants() if is_of(compiler_fn, x))
        return next(itertools.chain(own, others), None)

    def warn_if_experimental(self, backend: str | CompilerFn) -> None:
        """Warn where a backend that was chosen is experimental, once a process and backend.

        Nothing is loaded: of ``module:attribute``, of a name that leads to nothing here, and of a
        function that nobody registered or provides, nothing is known.
        """
        spec = self.spec_of(backend) if not isinstance(backend, str) else self._chosen(backend)
        if spec is not None:
            _warn_of(spec)

    def _chosen(self, name: str) -> BackendSpec | None:
        try:
            resolution = self.resolution(name)
        except BackendNotFound:
            return None
        return resolution.spec if resolution.standing == "wins" else None

    # -- looking up

    def lookup_backend(self, compiler_fn: str | CompilerFn) -> CompilerFn:
        """Expand a backend's name to its compiler function; a function is returned as it is.

        A name is a registered one, ``module:attribute`` or ``file.py:attribute``. The same name
        gives the same object every time: Dynamo guards on it. As with torch, what can be loaded is
        given, whether or not it would run here: that is what `require` asks. Of an experimental one
        it warns.

        Raises:
            BackendNotFound: nobody knows the name.
            BackendConflict: several claim it, and no rule decides.
            BackendUnavailable: it is known and not installed, or it is blocked.
            BackendLoadError: its own code raised, or what it names cannot be called.
        """
        if not isinstance(compiler_fn, str):
            self.warn_if_experimental(compiler_fn)
            return compiler_fn
        warm = self._warm.get(compiler_fn)
        if warm is not None and not active.get():
            return warm
        if _target(compiler_fn) is None:
            return self._lookup(compiler_fn)
        with transaction():
            loaded = load_target(compiler_fn, f"backend {compiler_fn}")
        self.warn_if_experimental(loaded)
        return loaded

    def _lookup(self, name: str) -> CompilerFn:
        while True:
            generation = self._generation
            spec = self._loadable(name)
            in_process = spec.origin.kind == "process"
            loaded = self._registered_as(spec) if in_process else self._load(spec)
            # Meanwhile another thread, or the backend itself, may have registered another.
            unchanged = generation == self._generation or spec == self._loadable(name)
            if loaded is not None and unchanged:
                break
        _warn_of(spec)
        with self._lock:
            if generation == self._generation and not active.get() and not in_process:
                self._warm[name] = loaded
        return loaded

    def _load(self, spec: BackendSpec) -> CompilerFn:
        try:
            return self._loader.load(spec)
        except BackendLoadError as error:
            pin = self.policy.pinned(spec.name)
            if pin is None:
                raise
            raise BackendLoadError(f"{error} ({pin[1]} pins the name to {pin[0]})") from error

    def _loadable(self, name: str) -> BackendSpec:
        resolution = self.resolution(name)
        spec = resolution.winner
        if resolution.standing == "blocked" or is_absent(spec, self.environment):
            return self.require(name)
        return spec

    def _registered_as(self, spec: BackendSpec) -> CompilerFn | None:
        """Return what is registered, here or with torch; nothing if it was taken back since."""
        if spec.loading == "torch":
            return bridge.held_by_torch(spec.name)
        registration = self._registered.get(spec.name) if self._registered is not None else None
        return registration.resolved if registration and registration.spec == spec else None

    def resolve(self, name: str) -> str | CompilerFn:
        """Return what to hand to ``torch.compile(backend=...)`` for a name.

        Torch's own stay names: torch.compile gives some of them more than a call (mode, options).

        Raises:
            InputError: as `lookup_backend`.
        """
        if _target(name) is None and (spec := self.require(name)).origin.kind == "torch":
            _warn_of(spec)
            return name
        return self.lookup_backend(name)

    def get_backend(
        self, name: str, *, mode: str | None = None, options: Mapping[str, Any] | None = None
    ) -> "ConfiguredBackend":
        """Return a backend with its mode and options as one callable for ``torch.compile``.

        The same request gives the same object every time, and an equal one after pickling: Dynamo
        recompiles for a new one. It has a ``digest`` for caches.

        Raises:
            InputError: as `lookup_backend`.
        """
        if _target(name) is None:
            spec = self.spec(name)
        else:
            origin = Origin(kind="process", location=name)
            spec = BackendSpec(name=name, origin=origin, loading="callable", target=name)
        compiler_fn = self.lookup_backend(name)
        wanted = self.configured(spec, compiler_fn, mode, options or {})
        with self._lock:
            made = self._configured.get(wanted.key)
            if made is None or made != wanted:
                made = self._configured[wanted.key] = wanted
            return made

    def configured(
        self,
        spec: BackendSpec,
        compiler_fn: CompilerFn,
        mode: str | None,
        options: Mapping[str, Any],
    ) -> "ConfiguredBackend":
        """Return a compiler function with its mode and options; equal for an equal request."""
        from backbay.registry.configured import (  # noqa: PLC0415 (imports hashlib)
            ConfiguredBackend,
        )

        return ConfiguredBackend(
            spec, compiler_fn, mode, dict(options), restore=_restored, registry=self
        )

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Compile in a block with a backend of this registry's: it looks up its others here."""
        token = current_registry.set(self)
        try:
            yield
        finally:
            current_registry.reset(token)

    # -- registering

    @overload
    def register_backend(
        self,
        compiler_fn: _Registered,
        name: str | None = None,
        tags: Sequence[str] = (),
        *,
        replace: bool = False,
        **details: "Unpack[Details]",
    ) -> _Registered: ...

    @overload
    def register_backend(
        self,
        compiler_fn: None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        *,
        replace: bool = False,
        **details: "Unpack[Details]",
    ) -> Callable[[_Registered], _Registered]: ...

    def register_backend(
        self,
        compiler_fn: CompilerFn | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        *,
        replace: bool = False,
        **details: "Unpack[Details]",
    ) -> Any:
        """Register a compiler function under a name; also a decorator, with or without arguments.

        What is registered with the default registry is found by ``torch.compile(backend=name)``
        and listed by ``torch.compiler.list_backends()``; torch is not imported for it.

        Args:
            compiler_fn: takes a graph module and its example inputs, gives a callable.
            name: what ``torch.compile(backend=...)`` is given; default: the function's own name.
            tags: ``debug`` and ``experimental`` hide a backend from ``list_backends``; of an
                experimental one whoever chooses it is warned.
            replace: whether it may take a name that another registration or distribution has.
            details: summary, traits, requirements, option schema: see `BackendSpec`;
                ``experimental=True`` is the same as the tag. What is not given is taken from what
                the function says of itself, as a backend of the kit does.

        Raises:
            BackendConflict: another object has the name. The same object again is fine.
            InputError: ``compiler_fn`` cannot be called, or has no name and none is given.
        """
        if compiler_fn is None:
            return functools.partial(
                self.register_backend, name=name, tags=tags, replace=replace, **details
            )
        self._register(compiler_fn, name, tags, replace=replace, details=details)
        return compiler_fn

    def _register(
        self,
        compiler_fn: CompilerFn,
        name: str | None,
        tags: Sequence[str],
        *,
        replace: bool,
        details: "Details",
    ) -> Callable[[], None]:
        """Register a compiler function, and return what puts back what the name had before."""
        from backbay.registry.registration import described  # noqa: PLC0415 (a listing has none)

        spec = described(compiler_fn, name, tags, dict(details))
        others = [x for x in self._discovered.specs if x.name == spec.name]
        with self._changing():
            return self._registrations.add(
                spec, compiler_fn, others=others, policy=self.policy, replacing=replace
            )

    def register_debug_backend(
        self, compiler_fn: CompilerFn | None = None, name: str | None = None
    ) -> Any:
        """Register a backend that is there for finding faults: hidden from lists by default."""
        return self.register_backend(compiler_fn, name, ("debug",))

    def register_experimental_backend(
        self, compiler_fn: CompilerFn | None = None, name: str | None = None
    ) -> Any:
        """Register a backend whose author makes no promises: hidden from lists by default."""
        return self.register_backend(compiler_fn, name, ("experimental",))

    def unregister_backend(self, name: str) -> None:
        """Take back a registration that was made here, from torch's registry too.

        Code that was compiled with it goes on; what is registered under the name later, even the
        same function, is another backend to Dynamo, so that nothing old is served for it.

        Raises:
            BackendNotFound: nothing was registered here under the name.
        """
        with self._changing():
            self._registrations.remove(name)

    @contextlib.contextmanager
    def registered(
        self,
        compiler_fn: CompilerFn,
        name: str | None = None,
        tags: Sequence[str] = (),
        *,
        replace: bool = False,
        **details: "Unpack[Details]",
    ) -> Iterator[CompilerFn]:
        """Register a compiler function for a block of code; then the name is as it was before.

        Raises:
            BackendConflict, InputError: as `register_backend`.
        """
        put_back = self._register(compiler_fn, name, tags, replace=replace, details=details)
        try:
            yield compiler_fn
        finally:
            with self._changing():
                put_back()

    def refresh(self) -> None:
        """Look at the installation, the configuration file and the environment again.

        What this process registered stays, and so does what was loaded, where its distribution is
        unchanged.
        """
        with self._changing():
            self._completed.clear()
            for cached in ("environment", "_standing", "_standing_discovered"):
                self.__dict__.pop(cached, None)
        self._loader.forget({source_of(spec) for spec in self._standing_discovered.specs})

    # -- the default

    def set_default_backend(self, backend: str | CompilerFn | None) -> None:
        """Set what is compiled with where nobody names a backend; ``None``: torch's own default.

        Torch is told too, where it has a default to set (2.13 and later).

        Raises:
            InputError: nobody knows the name, or it is neither a name nor callable.
        """
        if backend is not None and not isinstance(backend, str) and not callable(backend):
            raise InputError(f"a backend is a name or callable, not {type(backend).__name__}")
        if isinstance(backend, str):
            self.resolve(backend)
        self._default = backend
        if self._shared_with_torch:
            bridge.share_default(backend)

    def get_default_backend(self) -> str | CompilerFn:
        """Return what is compiled with where nobody names a backend."""
        return self._default or "inductor"

    # -- inside

    def _after_fork(self) -> None:
        """Free, in a child process, what threads hold that only its parent has."""
        self._lock = threading.RLock()
        self._loader.after_fork()
        if self._registered is not None:
            self._registered.after_fork()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._generation += 1
                self._warm.clear()


_registries: WeakSet[Registry] = WeakSet()


def _after_fork() -> None:
    bridge.after_fork()
    for registry in list(_registries):
        registry._after_fork()  # noqa: SLF001 (nobody else may call it)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

current_registry: ContextVar[Registry | None] = ContextVar("current_registry", default=None)
"""Where a backend that is compiling was looked up: its code generator is looked up there too."""

default_registry = Registry(shared_with_torch=True)
"""The process's registry: torch.compile finds by name what is registered in it."""


def _warn_of(spec: BackendSpec) -> None:
    if spec.experimental:
        warn_of_experimental(spec.name, str(spec.origin))


def _target(name: str) -> "Target | None":
    """Return what a name leads to where it is ``module:attribute`` or ``file.py:attribute``."""
    if ":" not in name:
        return None
    from backbay.registry.target import parse  # noqa: PLC0415 (few names are of this form)

    return parse(name)


def _restored(
    name: str,
    mode: str | None,
    options: dict[str, Any],
    reference: str | None,
    tags: tuple[str, ...],
) -> "ConfiguredBackend":
    """Return what was pickled as a configured backend, from this process's registry."""
    try:
        return default_registry.get_backend(name, mode=mode, options=options)
    except BackendNotFound:
        if reference is None:
            raise
    default_registry.register_backend(default_registry.lookup_backend(reference), name, tags)
    return default_registry.get_backend(name, mode=mode, options=options)
