"""Load compiler functions: each once, whoever asks, with no trace of a load that failed.

A load is claimed before it begins, and no lock is held while foreign code runs: a plugin may look
up and register others while it is imported. Those who ask meanwhile wait for the one that loads.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from backbay.errors import BackbayError, BackendLoadError
from backbay.registry.spec import BackendSpec, CompilerFn


@dataclass(slots=True)
class Transaction:
    """One load in progress, in one thread."""

    spec: BackendSpec
    undo: list[Callable[[], None]] = field(default_factory=list)
    """Takes back what was registered while it ran; the last first."""

    def roll_back(self) -> None:
        """Take everything back."""
        while self.undo:
            self.undo.pop()()


@dataclass(slots=True)
class _Claim:
    """The right to load one backend."""

    spec: BackendSpec
    owner: int
    """The thread's identifier."""
    done: threading.Event = field(default_factory=threading.Event)
    result: CompilerFn | None = None
    error: BackbayError | None = None


class _OpenTransactions(threading.local):
    def __init__(self) -> None:
        self.stack: list[Transaction] = []


_open = _OpenTransactions()


def current_transaction() -> Transaction | None:
    """Give the load that this thread is in the middle of, if any."""
    return _open.stack[-1] if _open.stack else None


class Loader:
    """Loads backends, each once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[BackendSpec, CompilerFn] = {}
        self._claims: dict[BackendSpec, _Claim] = {}
        self._waiting: dict[int, _Claim] = {}

    def get(self, spec: BackendSpec) -> CompilerFn | None:
        """Give what was loaded for a spec, if anything was."""
        return self._loaded.get(spec)

    def forget(self, keep: Callable[[BackendSpec], bool]) -> None:
        """Forget what was loaded for specs that are no longer there."""
        with self._lock:
            self._loaded = {spec: x for spec, x in self._loaded.items() if keep(spec)}

    def load(self, spec: BackendSpec, make: Callable[[], CompilerFn]) -> CompilerFn:
        """Give a spec's compiler function, loading it if nobody has.

        Raises:
            BackendLoadError: it cannot be loaded. The next call tries again.
        """
        loaded = self._loaded.get(spec)
        if loaded is not None:
            return loaded
        claim, mine = self._claim(spec)
        if mine:
            return self._run(claim, make)
        self._wait(claim)
        if claim.error is not None:
            raise BackendLoadError(str(claim.error)) from claim.error
        assert claim.result is not None
        return claim.result

    def _claim(self, spec: BackendSpec) -> tuple[_Claim, bool]:
        me = threading.get_ident()
        with self._lock:
            if spec in self._loaded:  # since the first look
                return self._finished(spec), False
            claim = self._claims.get(spec)
            if claim is None:
                claim = self._claims[spec] = _Claim(spec, me)
                return claim, True
            if self._leads_to(claim, me):
                raise BackendLoadError(
                    f"backend {spec.name!r} of {spec.origin} is looked up while it is being "
                    "loaded, by its own code or by a backend that it needs: look it up later, in "
                    "a function"
                )
            self._waiting[me] = claim
            return claim, False

    def _finished(self, spec: BackendSpec) -> _Claim:
        claim = _Claim(spec, threading.get_ident(), result=self._loaded[spec])
        claim.done.set()
        return claim

    def _leads_to(self, claim: _Claim | None, thread: int) -> bool:
        """Tell whether waiting for a claim would be waiting for this thread itself."""
        while claim is not None and not claim.done.is_set():
            if claim.owner == thread:
                return True
            claim = self._waiting.get(claim.owner)
        return False

    def _wait(self, claim: _Claim) -> None:
        try:
            claim.done.wait()
        finally:
            with self._lock:
                self._waiting.pop(threading.get_ident(), None)

    def _run(self, claim: _Claim, make: Callable[[], CompilerFn]) -> CompilerFn:
        spec = claim.spec
        try:
            with _transaction(spec):
                loaded = make()
        except BackbayError as error:
            self._finish(claim, error=error)
            raise
        except BaseException as error:
            self._finish(claim, error=BackendLoadError(f"loading {spec.name!r} was interrupted"))
            raise error from None
        self._finish(claim, result=loaded)
        return loaded

    def _finish(
        self, claim: _Claim, *, result: CompilerFn | None = None, error: BackbayError | None = None
    ) -> None:
        with self._lock:
            claim.result, claim.error = result, error
            if result is not None:
                self._loaded[claim.spec] = result
            del self._claims[claim.spec]
        claim.done.set()


@contextlib.contextmanager
def _transaction(spec: BackendSpec) -> Iterator[None]:
    transaction = Transaction(spec)
    _open.stack.append(transaction)
    try:
        yield
    except BaseException:
        transaction.roll_back()
        raise
    finally:
        _open.stack.pop()
