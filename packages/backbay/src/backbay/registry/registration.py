"""What this process registers: the table, its rules, taking things back, and handing them down.

A spawned process re-imports modules, but does not do again what a notebook, a test or a launcher
did at run time. What is handed down to it is data in an environment variable, with the policy.
"""

import contextlib
import functools
import json
import os
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from backbay.errors import BackendConflict, BackendNotFound, InputError
from backbay.registry import bridge
from backbay.registry.loading import current_transaction, load_target
from backbay.registry.policy import PROCESS, STATE, STATE_VERSION, Policy
from backbay.registry.spec import (
    LONGEST_NAME,
    TEXT_PATTERN,
    BackendSpec,
    CompilerFn,
    KnownFault,
    Option,
    Origin,
    Requirements,
    Traits,
    as_data,
)
from backbay.registry.target import parse, reference_of

if TYPE_CHECKING:
    from backbay.registry.registry import Registry


class Details(TypedDict, total=False):
    """What an in-process registration may say of its backend; the rest is unknown."""

    summary: str
    traits: Traits
    requires: Requirements
    limits: tuple[KnownFault, ...]
    options: tuple[Option, ...]
    further_options: Literal["inductor"]
    reserved_launch_param_names: tuple[str, ...]
    homepage: str
    experimental: bool
    """The same as the tag."""


_DETAILS: Mapping[str, type] = {
    "summary": str,
    "traits": Traits,
    "requires": Requirements,
    "limits": tuple,
    "options": tuple,
    "further_options": str,
    "reserved_launch_param_names": tuple,
    "homepage": str,
    "experimental": bool,
}


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Registration:
    """One in-process registration."""

    spec: BackendSpec
    given: CompilerFn
    resolved: CompilerFn
    """What Backbay's look-up returns: ``given``, or a stand-in where torch could not take it, or
    where it was taken back once: Dynamo would serve what it compiled then."""

    shared: CompilerFn
    """What torch's registry gets: the same where that checks what it makes (backends of the kit and
    stand-ins do), else a stand-in for it."""

    def is_of(self, compiler_fn: CompilerFn) -> bool:
        """Whether it is of this compiler function."""
        return self.resolved is compiler_fn or _same(self.given, compiler_fn)


class Registrations:
    """The registrations of one registry."""

    def __init__(self, *, shared_with_torch: bool) -> None:
        self._shared = shared_with_torch
        self._by_name: dict[str, Registration] = {}
        self._taken_back: list[weakref.ref[Any]] = []
        self._ended: weakref.WeakKeyDictionary[Registration, Registration | None]
        self._ended = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()

    def after_fork(self) -> None:
        """Make anew, in a child process, a lock that a thread of its parent's may hold."""
        self._lock = threading.RLock()

    def all(self) -> list[Registration]:
        """Return all that is registered."""
        return list(self._by_name.values())

    def specs(self) -> list[BackendSpec]:
        """Return the specs of all that is registered."""
        return [registration.spec for registration in self.all()]

    def everything(self) -> tuple[list[BackendSpec], list[BackendSpec]]:
        """Return what is registered here, and what is in torch's registry, as of one moment."""
        with self._lock:
            return self.specs(), list(bridge.registered_in_torch())

    def get(self, name: str) -> Registration | None:
        """Return what is registered under a name."""
        return self._by_name.get(name)

    def add(
        self,
        spec: BackendSpec,
        compiler_fn: CompilerFn,
        *,
        others: Sequence[BackendSpec],
        policy: Policy,
        replacing: bool,
    ) -> Callable[[], None]:
        """Register a compiler function, and return what puts back what the name had before.

        Args:
            spec: what it is.
            compiler_fn: the function.
            others: who else claims the name: torch itself, and distributions.
            policy: which may pin the name.
            replacing: whether it may take a name that another has.

        Raises:
            BackendConflict: the name is reserved, or another has it.
            InputError: it cannot be a name.
        """
        name = spec.name
        if len(name) > LONGEST_NAME or re.search(TEXT_PATTERN, name) is None:
            raise InputError(f"{name[:LONGEST_NAME]!a} cannot be a backend's name")
        if parse(name) is not None:
            raise InputError(
                f"{name!r} cannot be a backend's name: it names an attribute of a module"
            )
        published = any(_is_published(x, compiler_fn) for x in others)
        with self._lock:
            existing = self._by_name.get(name)
            if existing is not None and _same(existing.given, compiler_fn):
                return _nothing
            if published and not (existing is not None and replacing):
                return _nothing  # its own distribution's entry point leads to it: one, not two
            self._refuse(spec, compiler_fn, existing, others, policy, replacing=replacing)
            resolved = self._resolved(spec, compiler_fn)
            shared = _shared(spec, compiler_fn, resolved)
            now = Registration(spec, compiler_fn, resolved, shared)
            self._exchange(existing, now)
        return self._undo(existing, now)

    def remove(self, name: str) -> None:
        """Take a registration back.

        Raises:
            BackendNotFound: this registry registered no backend of this name.
        """
        with self._lock:
            existing = self._by_name.get(name)
            if existing is not None:
                self._exchange(existing, None)
                self._undo(existing, None)
                return
        held = bridge.held_by_torch(name)
        hint = (
            f" {bridge.location_of(held)} registered it with torch, which keeps it."
            if held is not None
            else " See `backbay list --all`."
        )
        raise BackendNotFound(f"this process registered no backend {name!r} with Backbay.{hint}")

    def _restore(self, now: Registration | None, before: Registration | None) -> None:
        """Put back what a name had before; not if it has something else by now.

        Whoever put that there may in turn want back what ends here: it gets what was before it.
        """
        either = now or before
        with self._lock:
            while before is not None and before in self._ended:
                before = self._ended[before]
            if either is not None and self._by_name.get(either.spec.name) is now:
                self._exchange(now, before)
            elif now is not None:
                self._ended[now] = before

    def _exchange(self, old: Registration | None, new: Registration | None) -> None:
        if old is not None:
            self._remove(old)
        try:
            if new is not None:
                self._put(new)
        except BaseException:
            if old is not None:
                self._put(old)
            raise

    def _undo(self, before: Registration | None, now: Registration | None) -> Callable[[], None]:
        undo = functools.partial(self._restore, now, before)
        transaction = current_transaction()
        if transaction is not None:
            transaction.add(undo)
        return undo

    def _put(self, registration: Registration) -> None:
        spec = registration.spec
        if self._shared:
            bridge.share(spec.name, registration.shared, spec.tags)
        self._by_name[spec.name] = registration

    def _remove(self, registration: Registration) -> None:
        name = registration.spec.name
        del self._by_name[name]
        alive = [reference for reference in self._taken_back if reference() is not None]
        self._taken_back = alive
        if registration.resolved is registration.given:  # else the next one is a new one anyhow
            self._taken_back.append(weakref.ref(registration.given))
        if self._shared:
            bridge.withdraw(name, registration.shared)

    def _resolved(self, spec: BackendSpec, given: CompilerFn) -> CompilerFn:
        another = any(reference() is given for reference in self._taken_back)
        if not another and self._shared:
            # Under another name it may have other tags, and up to 2.14.0 torch has one set of them.
            tags = [x.spec.tags for x in self._by_name.values() if x.resolved is given]
            another = any(x != spec.tags for x in [*tags, getattr(given, "_tags", spec.tags)])
        if another:
            return bridge.stand_in(given, spec)
        return bridge.shareable(given, spec)

    def _refuse(
        self,
        spec: BackendSpec,
        compiler_fn: CompilerFn,
        existing: Registration | None,
        others: Sequence[BackendSpec],
        policy: Policy,
        *,
        replacing: bool,
    ) -> None:
        held = bridge.held_by_torch(spec.name) if self._shared and existing is None else None
        if held is not None and _same(held, compiler_fn):
            return
        for other in others:
            if other.origin.kind == "torch":
                raise BackendConflict(
                    f"the name {spec.name!r} is reserved: {other.origin} has it. "
                    f"Register {spec.origin} under another name."
                )
        if replacing:
            return
        taken = _taken_by(existing, held, others, policy, spec.name)
        if taken is not None:
            raise BackendConflict(
                f"the name {spec.name!r} is taken by {taken}. Register {spec.origin} under "
                "another name, or take the name over with replace=True."
            )


def described(
    compiler_fn: Any, name: str | None, tags: Iterable[str], details: Mapping[str, Any]
) -> BackendSpec:
    """Return the spec of a compiler function that is being registered.

    Raises:
        InputError: it cannot be called, or has no name and none is given, or its tags are no names,
            or a detail is unknown or of the wrong type.
    """
    _check_details(details)
    if not callable(compiler_fn):
        raise InputError(f"a backend must be callable, not {type(compiler_fn).__name__}")
    own = getattr(compiler_fn, "__name__", None) or getattr(
        bridge.unwrapped(compiler_fn), "__name__", None
    )
    name = name or (own if isinstance(own, str) else None)
    if not name:
        raise InputError(f"{compiler_fn!r} has no __name__: pass name=... to register it")
    if not isinstance(name, str):
        raise InputError(f"a backend's name must be a text, not {type(name).__name__}")
    tags = tags if isinstance(tags, str) else tuple(tags)
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise InputError(f"tags must be a list of names, not {tags!r}")
    # Of its class, as Python asks: what a compiler function says of itself.
    say = getattr(type(compiler_fn), "__backbay_details__", None)
    details = {**(say(compiler_fn) if say is not None else {}), **details}
    if details.pop("experimental", False) and "experimental" not in tags:
        tags = (*tags, "experimental")
    origin = Origin(kind="process", location=bridge.location_of(compiler_fn))
    spec = BackendSpec(name=name, origin=origin, loading="object", tags=tags)
    return replace(spec, **details, declared_by=origin.location) if details else spec


def is_of(compiler_fn: CompilerFn, spec: BackendSpec) -> bool:
    """Whether a compiler function is what a spec leads to, as far as that is loaded by now."""
    if spec.loading == "torch":
        return bridge.held_by_torch(spec.name) is compiler_fn
    return spec.target is not None and _same(_imported(spec.target), compiler_fn)


def _nothing() -> None:
    """Take nothing back: nothing was changed."""


def _shared(spec: BackendSpec, given: CompilerFn, resolved: CompilerFn) -> CompilerFn:
    if resolved is not given or hasattr(type(given), "__backbay_details__"):
        return resolved  # a stand-in, or a backend of the kit: both check what they make
    if bridge.held_by_torch(spec.name) is given:
        return given  # it registered itself there
    return bridge.stand_in(given, spec)


def _same(one: CompilerFn, other: CompilerFn) -> bool:
    """Whether two are the same backend: one object, or methods of one object."""
    return one is other or (type(one) is type(other) and hasattr(one, "__self__") and one == other)


def _is_published(spec: BackendSpec, compiler_fn: CompilerFn) -> bool:
    """Whether a distribution's entry point leads to this, as far as that is known by now."""
    if spec.origin.kind != "distribution" or spec.target is None:
        return False
    published = _imported(spec.target)
    if published is not None:
        return _same(published, compiler_fn) or _defined(published) == _defined(compiler_fn)
    # Its module is not imported yet, or is being imported: one package does not contradict itself.
    package = (bridge.module_of(bridge.unwrapped(compiler_fn)) or "").partition(".")[0]
    return package == spec.target.partition(":")[0].partition(".")[0]


def _imported(target: str) -> Any:
    """Return what ``module:attribute`` is by now; nothing if it is not imported that far."""
    module, _, attribute = target.partition(":")
    first, *rest = attribute.split(".")
    found = getattr(sys.modules.get(module), "__dict__", {}).get(first)  # runs no __getattr__ of it
    for name in rest:
        found = getattr(found, name, None)
    return found


def _defined(compiler_fn: Any) -> tuple[Any, Any] | object:
    """Return where a function is defined, which stays when its module is run again."""
    name = getattr(compiler_fn, "__qualname__", None)
    return (bridge.module_of(compiler_fn), name) if name is not None else object()


def _taken_by(
    existing: Registration | None,
    held: CompilerFn | None,
    others: Sequence[BackendSpec],
    policy: Policy,
    name: str,
) -> str | None:
    if existing is not None:
        return str(existing.spec.origin)
    if held is not None:
        return f"{bridge.location_of(held)}, in torch"
    pin = policy.pinned(name)
    if pin is not None and pin[0] == PROCESS:
        return None
    installed = (x.origin for x in others if x.origin.kind == "distribution")
    free = (x for x in installed if policy.why_blocked(x.distribution or "") is None)
    return next((str(origin) for origin in free), None)


def _check_details(details: Mapping[str, Any]) -> None:
    strange = details.keys() - _DETAILS.keys()
    if strange:
        known = ", ".join(sorted(_DETAILS))
        raise InputError(f"register_backend takes no {min(strange)!r}; it takes {known}")
    for key, value in details.items():
        if not isinstance(value, _DETAILS[key]):
            wanted, given = _DETAILS[key].__name__, type(value).__name__
            raise InputError(f"{key} of a backend must be a {wanted}, not {given}")
    further = details.get("further_options", "inductor")
    if further != "inductor":
        raise InputError(f"further_options of a backend is 'inductor', not {further!r}")


class Inherited:
    """A backend that the parent process registered; imported when it is first called."""

    def __init__(self, name: str, reference: str) -> None:
        self.__name__ = name
        self.reference = reference

    def __call__(self, graph_module: Any, example_inputs: Any, **given: Any) -> Any:
        """Import it, and compile with it."""
        what = f"backend {self.__name__!r}, registered by the parent process"
        return load_target(self.reference, what)(graph_module, example_inputs, **given)


@contextlib.contextmanager
def exported(registry: "Registry") -> Iterator[None]:
    """Let processes that are started in this block have this registry's state.

    The policy of context managers counts too. A backend is handed down as ``module:name``: one that
    another process can't import (a lambda, a function of ``__main__``) is left out, with a warning.
    """
    backends = {}
    for spec, compiler_fn in registry.registered_functions():
        given = getattr(compiler_fn, "func", compiler_fn)  # a stand-in is a partial
        reference = getattr(compiler_fn, "reference", None) or reference_of(given)
        if reference is None:
            text = f"backend {spec.name!r} of {spec.origin} can't be imported by another process"
            warnings.warn(text, stacklevel=3)
            continue
        backends[spec.name] = (reference, spec.tags)
    state = {
        "version": STATE_VERSION,
        "layers": as_data(registry.policy.layers),
        "backends": backends,
    }
    before = os.environ.get(STATE)
    os.environ[STATE] = json.dumps(state, default=sorted)  # sets of names
    try:
        yield
    finally:
        if before is None:
            del os.environ[STATE]
        else:
            os.environ[STATE] = before
