"""Load compiler functions: each once, whoever asks, with no trace of a load that failed.

A load is claimed before it begins, and no lock is held while foreign code runs: a plugin may look
up and register others while it is imported. Those who ask meanwhile wait for the one that loads.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Container, Hashable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from backbay.errors import BackbayError, BackendLoadError
from backbay.registry import bridge
from backbay.registry.spec import BackendSpec, CompilerFn

_IMPORT = ("<frozen importlib._bootstrap>", "_find_and_load")
"""File and function of Python's import: whoever is in it may hold a module's lock."""


@dataclass(slots=True)
class Transaction:
    """One load in progress, in one thread."""

    depth: int
    """Frames that were on the stack when it began."""

    in_torch: frozenset[str]
    """Names that torch's registry had then."""

    undo: list[tuple[dict[str, Any] | None, Callable[[], None]]] = field(default_factory=list)
    """Takes back what was registered meanwhile, the last first; with the namespace of the module
    whose import registered it, if one did."""

    def add(self, undo: Callable[[], None]) -> None:
        """Note how something is taken back that was registered just now."""
        stack = _stack()
        inside = stack[: len(stack) - self.depth]
        modules = (frame.f_globals for frame in inside if frame.f_code.co_name == "<module>")
        self.undo.append((next(modules, None), undo))

    def roll_back(self) -> None:
        """Take back what the next attempt would register again.

        A module that was imported whole stays imported, and would not: what it registered stays.
        """
        while self.undo:
            module, undo = self.undo.pop()
            if module is None or not _is_imported(module):
                undo()
        bridge.take_back_of_failed(self.in_torch)


def _stack() -> list[FrameType]:
    """Return this thread's frames, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (inspect's own way, without inspect)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _is_imported(namespace: dict[str, Any]) -> bool:
    module = sys.modules.get(str(namespace.get("__name__")))
    return module is not None and vars(module) is namespace


class _OpenTransactions(threading.local):
    def __init__(self) -> None:
        self.stack: list[Transaction] = []


_open = _OpenTransactions()


def current_transaction() -> Transaction | None:
    """Return the load that this thread is in the middle of, if any."""
    return _open.stack[-1] if _open.stack else None


@contextlib.contextmanager
def transaction() -> Iterator[None]:
    """Run foreign code; if it raises, nothing that it registered is left."""
    begun = Transaction(len(_stack()), frozenset(bridge.names_in_torch()))
    _open.stack.append(begun)
    try:
        yield
    except BaseException:
        begun.roll_back()
        raise
    finally:
        _open.stack.pop()


def source_of(spec: BackendSpec) -> Hashable:
    """Return what is loaded for a spec; two specs of one source have one compiler function."""
    origin = spec.origin
    return (
        *(spec.alias_of or spec.name, spec.loading, spec.target, spec.factory),
        *(origin.distribution, origin.version, origin.folder),
    )


@dataclass(slots=True)
class _Claim:
    """The right to load one backend."""

    source: Hashable
    what: str
    """The backend, for messages."""
    owner: int
    """The thread's identifier."""
    done: threading.Event = field(default_factory=threading.Event)
    result: CompilerFn | None = None
    error: BackbayError | None = None


class Loader:
    """Loads backends, each once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[Hashable, CompilerFn] = {}
        self._claims: dict[Hashable, _Claim] = {}
        self._waiting: dict[int, _Claim] = {}

    def forget(self, all_but: Container[Hashable]) -> None:
        """Forget what was loaded from sources that are no longer there."""
        with self._lock:
            self._loaded = {source: x for source, x in self._loaded.items() if source in all_but}

    def load(self, spec: BackendSpec, make: Callable[[], CompilerFn]) -> CompilerFn:
        """Return a spec's compiler function, loading it if nobody has.

        Raises:
            BackendLoadError: it cannot be loaded. The next call tries again.
        """
        source = source_of(spec)
        loaded = self._loaded.get(source)
        if loaded is not None:
            return loaded
        claim, mine = self._claim(source, f"backend {spec.name!r} of {spec.origin}")
        if mine:
            return self._run(claim, make)
        try:
            return self._awaited(claim, make)
        finally:
            with self._lock:
                self._waiting.pop(threading.get_ident(), None)

    def _claim(self, source: Hashable, what: str) -> tuple[_Claim, bool]:
        me = threading.get_ident()
        with self._lock:
            if source in self._loaded:  # since the first look
                return self._finished(source, what), False
            claim = self._claims.get(source)
            if claim is None:
                claim = self._claims[source] = _Claim(source, what, me)
                return claim, True
            if self._leads_to(claim, me):
                raise BackendLoadError(
                    f"{what} is looked up while it is being loaded, by its own code or by a "
                    "backend that it needs: look it up later, in a function"
                )
            self._waiting[me] = claim
            return claim, False

    def _finished(self, source: Hashable, what: str) -> _Claim:
        claim = _Claim(source, what, threading.get_ident(), result=self._loaded[source])
        claim.done.set()
        return claim

    def _leads_to(self, claim: _Claim | None, thread: int) -> bool:
        """Return whether waiting for a claim would be waiting for this thread itself."""
        while claim is not None and not claim.done.is_set():
            if claim.owner == thread:
                return True
            claim = self._waiting.get(claim.owner)
        return False

    def _awaited(self, claim: _Claim, make: Callable[[], CompilerFn]) -> CompilerFn:
        if not claim.done.is_set() and _is_importing():
            # The other thread may come to need a module whose lock this one holds. So wait where
            # it does: Python's import runs a module once, and its locks see a circle, ours don't.
            with transaction():
                made = make()
            with self._lock:
                return self._loaded.setdefault(claim.source, made)
        claim.done.wait()
        if claim.error is not None:
            raise BackendLoadError(str(claim.error)) from claim.error
        assert claim.result is not None
        return claim.result

    def _run(self, claim: _Claim, make: Callable[[], CompilerFn]) -> CompilerFn:
        try:
            with transaction():
                loaded = make()
        except BackbayError as error:
            self._finish(claim, error=error)
            raise
        except BaseException as error:
            interrupted = BackendLoadError(f"{claim.what}: loading it was interrupted: try again")
            self._finish(claim, error=interrupted)
            raise error from None
        self._finish(claim, result=loaded)
        assert claim.result is not None
        return claim.result

    def _finish(
        self, claim: _Claim, *, result: CompilerFn | None = None, error: BackbayError | None = None
    ) -> None:
        with self._lock:
            if result is not None:
                result = self._loaded.setdefault(claim.source, result)
            claim.result, claim.error = result, error
            del self._claims[claim.source]
        claim.done.set()


def _is_importing() -> bool:
    """Return whether this thread is in the middle of an import."""
    return any((x.f_code.co_filename, x.f_code.co_name) == _IMPORT for x in _stack())
