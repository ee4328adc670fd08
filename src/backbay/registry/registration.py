"""What this process registers: the table, its rules, and taking things back."""

import contextlib
import functools
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from backbay.errors import BackendConflict, BackendNotFound, InputError
from backbay.registry import bridge, sharing
from backbay.registry.loading import current_transaction
from backbay.registry.policy import PROCESS, Policy
from backbay.registry.spec import BackendSpec, CompilerFn, Origin


@dataclass(frozen=True, slots=True)
class Registration:
    """One in-process registration."""

    spec: BackendSpec
    given: CompilerFn
    resolved: CompilerFn
    """What both look-ups return: ``given``, or a stand-in where torch could not take it, or where
    it was taken back once: Dynamo would serve what it compiled then."""


class Registrations:
    """The registrations of one registry."""

    def __init__(self, *, shared_with_torch: bool) -> None:
        self._shared = shared_with_torch
        self._by_name: dict[str, Registration] = {}
        self._taken_back: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.RLock()

    def specs(self) -> list[BackendSpec]:
        """Give the specs of all that is registered."""
        return [registration.spec for registration in list(self._by_name.values())]

    def get(self, name: str) -> Registration | None:
        """Give what is registered under a name."""
        return self._by_name.get(name)

    def add(
        self,
        spec: BackendSpec,
        compiler_fn: CompilerFn,
        *,
        others: Iterable[BackendSpec],
        policy: Policy,
        replacing: bool,
    ) -> bool:
        """Register a compiler function; tell whether anything changed.

        Args:
            spec: what it is.
            compiler_fn: the function.
            others: who else claims the name: torch itself, and distributions.
            policy: which may pin the name.
            replacing: whether it may take a name that another has.

        Raises:
            BackendConflict: the name is reserved, or another has it.
        """
        others = list(others)
        if any(_is_published(x, compiler_fn) for x in others):
            return False  # its own distribution's entry point leads to it: one backend, not two
        with self._lock:
            existing = self._by_name.get(spec.name)
            if existing is not None and _same(existing.given, compiler_fn):
                return False
            self._refuse(spec, compiler_fn, existing, others, policy, replacing=replacing)
            if existing is not None:
                self._remove(existing)
            self._put(spec, compiler_fn)
        self._note_undo(spec.name, existing)
        return True

    def remove(self, name: str) -> Registration:
        """Take a registration back.

        Raises:
            BackendNotFound: this registry registered no backend of this name.
        """
        with self._lock:
            existing = self._by_name.get(name)
            if existing is None:
                held = bridge.held_by_torch(name)
                hint = (
                    f" {bridge.location_of(held)} registered it with torch, which keeps it."
                    if held is not None
                    else " See `backbay list --all`."
                )
                raise BackendNotFound(
                    f"this process registered no backend {name!r} with Backbay.{hint}"
                )
            self._remove(existing)
            return existing

    def restore(self, name: str, registration: Registration | None) -> None:
        """Put back what a name had before: a registration, or none."""
        with self._lock:
            current = self._by_name.get(name)
            if current is not None:
                self._remove(current)
            if registration is not None:
                self._put(registration.spec, registration.given)

    def _put(self, spec: BackendSpec, given: CompilerFn) -> None:
        resolved = given
        if self._was_taken_back(given):
            resolved = sharing.stand_in(given, spec.name)
        elif self._shared:
            resolved = sharing.shareable(given, spec.name)
        self._by_name[spec.name] = Registration(spec, given, resolved)
        if self._shared:
            sharing.share(spec.name, resolved, spec.tags)

    def _remove(self, registration: Registration) -> None:
        name = registration.spec.name
        del self._by_name[name]
        with contextlib.suppress(TypeError):  # no weak references, or no hash: it had a stand-in
            self._taken_back.add(registration.given)
        if self._shared:
            sharing.withdraw(name, registration.resolved)

    def _was_taken_back(self, given: CompilerFn) -> bool:
        try:
            return given in self._taken_back
        except TypeError:
            return False

    def _note_undo(self, name: str, before: Registration | None) -> None:
        transaction = current_transaction()
        if transaction is not None:
            transaction.undo.append(functools.partial(self.restore, name, before))

    def _refuse(
        self,
        spec: BackendSpec,
        compiler_fn: CompilerFn,
        existing: Registration | None,
        others: list[BackendSpec],
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
    compiler_fn: Any, name: str | None, tags: Iterable[str], details: dict[str, Any]
) -> BackendSpec:
    """Describe a compiler function that is being registered.

    Raises:
        InputError: it cannot be called, or has no name and none is given.
    """
    if not callable(compiler_fn):
        raise InputError(f"a backend must be callable, not {type(compiler_fn).__name__}")
    name = name or _name_of(compiler_fn)
    if not name:
        raise InputError(f"{compiler_fn!r} has no __name__: pass name=... to register it")
    origin = Origin(kind="process", location=bridge.location_of(_inner(compiler_fn)))
    spec = BackendSpec(name=name, origin=origin, loading="object", tags=tuple(tags))
    return replace(spec, **details, declared_by=origin.location) if details else spec


def _inner(compiler_fn: Any) -> Any:
    while isinstance(compiler_fn, functools.partial):
        compiler_fn = compiler_fn.func
    return compiler_fn


def _name_of(compiler_fn: Any) -> str | None:
    name = getattr(compiler_fn, "__name__", None) or getattr(_inner(compiler_fn), "__name__", None)
    return name if isinstance(name, str) else None


def _same(one: CompilerFn, other: CompilerFn) -> bool:
    """Tell whether two are the same backend: one object, or methods of one object."""
    return one is other or (type(one) is type(other) and hasattr(one, "__self__") and one == other)


def _is_published(spec: BackendSpec, compiler_fn: CompilerFn) -> bool:
    module = bridge.module_of(_inner(compiler_fn))
    if spec.origin.kind != "distribution" or spec.target is None or module is None:
        return False
    return module.partition(".")[0] == spec.target.partition(":")[0].partition(".")[0]


def _taken_by(
    existing: Registration | None,
    held: CompilerFn | None,
    others: list[BackendSpec],
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
    return next((str(origin) for origin in installed), None)
