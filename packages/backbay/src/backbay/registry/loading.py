"""Load compiler functions: each once, whoever asks, with no trace of a load that failed.

Whatever a backend's code raises is put in words, which name the backend and its distribution; only
what a signal raises passes, Ctrl-C first of all. It runs in a copy of the context: a policy that it
enters and does not leave is not the caller's.

A load is claimed before it begins, and no lock is held while foreign code runs: a plugin may look
up and register others while it is imported. Those who ask meanwhile wait for the one that loads,
unless that one waits for them. A process that was forked meanwhile gets an error: the thread that
loads is not there, and Python's own lock of the module stays taken.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Container, Hashable, Iterator
from contextvars import copy_context
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from backbay.errors import BackbayError, BackendLoadError
from backbay.registry import bridge
from backbay.registry.spec import BackendSpec, CompilerFn

if TYPE_CHECKING:
    from backbay.registry.interrupts import Signals
    from backbay.registry.target import Target

_Made = TypeVar("_Made")

_LONGEST_TEXT = 1_000  # characters of an error's text
_LOOK_AGAIN = 0.05  # seconds
_PATIENCE_S = 60.0
"""A thread that loads may wait so long at one place for others before who waits for it gives up."""
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
            imported = module and sys.modules.get(str(module.get("__name__")))
            if imported is None or vars(imported) is not module:
                undo()
        bridge.take_back_of_failed(self.in_torch)


def _stack(thread: int | None = None) -> list[FrameType]:
    """Return a thread's frames, the innermost first; default: this thread's.

    Another thread goes on meanwhile: some of its frames may be missing.
    """
    # inspect's and faulthandler's own ways, without their imports
    frame = sys._getframe(1) if thread is None else sys._current_frames().get(thread)  # noqa: SLF001
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


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
    spec: BackendSpec
    owner: int
    """The thread's identifier."""
    depth: int
    """Frames that were on that thread's stack."""
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

    def after_fork(self) -> None:
        """Abandon, in a child process, the loads of threads that only its parent has."""
        self._lock = threading.Lock()  # whoever held the old one is not here
        self._waiting.clear()
        for claim in self._claims.values():
            if claim.owner != threading.get_ident():
                claim.error = BackendLoadError(
                    f"{_said(claim.spec)} was being loaded by another thread when this process was "
                    "forked, and can't be loaded here any more: look it up before the fork, or "
                    "start the process in another way than by a fork"
                )
                claim.done = threading.Event()
                claim.done.set()

    def load(self, spec: BackendSpec) -> CompilerFn:
        """Return a spec's compiler function, loading it if nobody has.

        Raises:
            BackendLoadError: its code raised or exits, or it gives nothing that can be called. The
                next call tries again.
        """
        if spec.loading == "torch":
            return _run(spec)  # torch keeps it, and may be told otherwise
        source = source_of(spec)
        loaded = self._loaded.get(source)
        if loaded is not None:
            return loaded
        claim, mine = self._claim(source, spec)
        if mine:
            return self._load(claim)
        try:
            return self._awaited(claim)
        finally:
            with self._lock:
                self._waiting.pop(threading.get_ident(), None)

    def _claim(self, source: Hashable, spec: BackendSpec) -> tuple[_Claim, bool]:
        """Return the claim on a backend, and whether it is this thread's to load it."""
        me = threading.get_ident()
        with self._lock:
            if source in self._loaded:  # since the first look
                claim = _Claim(source, spec, me, 0, result=self._loaded[source])
                claim.done.set()
                return claim, False
            if source not in self._claims:
                claim = self._claims[source] = _Claim(source, spec, me, len(_stack()))
                return claim, True
            claim = self._claims[source]
            if self._leads_to(claim, me):
                raise _circle(spec)
            self._waiting[me] = claim
            return claim, False

    def _leads_to(self, claim: _Claim | None, thread: int) -> bool:
        """Whether waiting for a claim would be waiting for this thread itself."""
        while claim is not None and not claim.done.is_set():
            if claim.owner == thread:
                return True
            claim = self._waiting.get(claim.owner)
        return False

    def _awaited(self, claim: _Claim) -> CompilerFn:
        importing = any((x.f_code.co_filename, x.f_code.co_name) == _IMPORT for x in _stack())
        if importing and not claim.done.is_set():
            # The other thread may come to need a module whose lock this one holds. So wait where
            # it does: Python's import runs a module once, and its locks see a circle, ours don't.
            with transaction():
                made = _run(claim.spec)
            with self._lock:
                return self._loaded.setdefault(claim.source, made)
        stood = _Standing(claim)
        while not claim.done.wait(_LOOK_AGAIN):
            if _awaits_this_thread(claim) or stood.too_long():
                raise _circle(claim.spec)
        if claim.error is not None:
            raise BackendLoadError(str(claim.error)) from claim.error
        assert claim.result is not None
        return claim.result

    def _load(self, claim: _Claim) -> CompilerFn:
        try:
            with transaction():
                made = _run(claim.spec)
        except BaseException as error:
            interrupted = f"{_said(claim.spec)}: loading it was interrupted: try again"
            ours = error if isinstance(error, BackbayError) else None
            claim.error = ours or BackendLoadError(interrupted)
            raise
        else:
            with self._lock:
                claim.result = self._loaded.setdefault(claim.source, made)
            return claim.result
        finally:
            with self._lock:
                del self._claims[claim.source]
            claim.done.set()


def load_target(reference: str, what: str) -> CompilerFn:
    """Load ``module:attribute`` or ``file.py:attribute``.

    Args:
        reference: what to load.
        what: the backend, for messages.

    Raises:
        BackendLoadError: there is no such thing, its code raised, or it cannot be called.
    """
    return _attribute(reference, what, lambda target: target.load())


def _run(spec: BackendSpec) -> CompilerFn:
    """Return a backend's compiler function by running its code."""
    what = _said(spec)
    if spec.loading == "torch":
        return _in_words(what, lambda: bridge.load_from_torch(spec.name))
    target = spec.target
    if target is None:
        raise BackendLoadError(f"{what}: nothing says how it is loaded")
    if spec.loading == "import":
        name = spec.alias_of or spec.name
        return _in_words(what, lambda: bridge.load_by_import(target, name), but=BackendLoadError)
    loaded = _attribute(target, what, lambda target: target.load_installed())
    if not spec.factory:
        return loaded
    made: CompilerFn = _in_words(what, loaded)
    if not callable(made):
        raise BackendLoadError(f"{what}: its factory gave {type(made).__name__}, not a callable")
    return made


def _said(spec: BackendSpec) -> str:
    return f"backend {spec.name!r} of {spec.origin}"


def _circle(spec: BackendSpec) -> BackendLoadError:
    return BackendLoadError(
        f"{_said(spec)} is looked up while it is being loaded, by its own code or by a backend "
        "that it needs: look it up later, in a function"
    )


def _awaits_this_thread(claim: _Claim) -> bool:
    """Whether the thread that loads waits for this one, as far as its stack shows that.

    Either it joins this thread; or it waits for some thread while it imports a module, and this one
    runs a function of that module.
    """
    inside = _inside(claim)
    join = threading.Thread.join.__code__
    me = threading.get_ident()
    if any(x.f_code is join and x.f_locals["self"].ident == me for x in inside):
        return True
    if not _waits(inside):
        return False
    own = _stack()
    if any(_has_in_hand(frame, future) for frame in own for future in _awaited_futures(inside)):
        return True
    running = [frame.f_globals for frame in own]
    imported = (x.f_globals for x in inside if x.f_code.co_name == "<module>")
    return any(x is y for x in imported for y in running)


class _Standing:
    """Whether the thread that loads has not moved for long, while it waits for another thread.

    What it waits for may be this thread in the end, by ways that no stack shows.
    """

    def __init__(self, claim: _Claim) -> None:
        self._claim = claim
        self._where: tuple[int, int] | None = None
        self._since = 0.0

    def too_long(self) -> bool:
        inside = _inside(self._claim)
        where = (id(inside[0]), inside[0].f_lasti) if _waits(inside) else None
        if where != self._where:
            self._where, self._since = where, time.monotonic()
        return where is not None and time.monotonic() - self._since > _PATIENCE_S


def _inside(claim: _Claim) -> list[FrameType]:
    """Return the frames of a thread that loads, from the load on, the innermost first."""
    stack = _stack(claim.owner)
    return stack[: max(0, len(stack) - claim.depth)]


def _waits(inside: list[FrameType]) -> bool:
    return bool(inside) and inside[0].f_code.co_filename == threading.__file__


def _awaited_futures(inside: list[FrameType]) -> Iterator[object]:
    """Yield the futures that functions of concurrent.futures hold which wait for them."""
    for frame in inside:
        if frame.f_globals.get("__name__", "").startswith("concurrent.futures"):
            for value in list(frame.f_locals.values()):
                yield from value if isinstance(value, (list, set, frozenset)) else [value]


def _has_in_hand(frame: FrameType, future: object) -> bool:
    """Whether a frame is of an executor's thread that works for this future."""
    if frame.f_globals.get("__name__") != "concurrent.futures.thread":
        return False
    return getattr(frame.f_locals.get("self"), "future", None) is future is not None


def _attribute(reference: str, what: str, load: "Callable[[Target], object]") -> CompilerFn:
    from backbay.registry.target import TargetNotFound, parse  # noqa: PLC0415 (listing loads none)

    target = parse(reference)
    if target is None:
        raise BackendLoadError(f"{what}: {reference!r} is not of the form module:attribute")
    try:
        loaded = _in_words(what, lambda: load(target), but=TargetNotFound)
    except TargetNotFound as error:
        raise BackendLoadError(f"{what}: {error}") from error
    if not callable(loaded):
        raise BackendLoadError(
            f"{what}: {type(loaded).__name__} cannot be called: name a function of a graph "
            "module and its example inputs"
        )
    return loaded


def _in_words(
    what: str, run: Callable[[], _Made], *, but: type[Exception] | tuple[()] = ()
) -> _Made:
    """Run foreign code, and return what it returns.

    Args:
        what: whose code it is.
        run: the code.
        but: a kind of error that passes as it is.

    Raises:
        BackendLoadError: it raised. What a signal raised passes.
    """
    from backbay.registry.interrupts import Signals  # noqa: PLC0415 (a listing loads none)

    signals = Signals.now()
    try:
        return copy_context().run(run)
    except but:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and signals.raised(error):
            raise
        verb = "ends the process" if isinstance(error, SystemExit) else "raised"
        said = f"{type(error).__name__}: {_text(error, signals)}".strip().splitlines()[0]
        raise BackendLoadError(f"{what} {verb} while it is loaded: {said}") from error


def _text(error: BaseException, signals: "Signals") -> str:
    """Return a foreign error's text, to make which is foreign code, too."""
    try:
        return str(error)[:_LONGEST_TEXT]
    except BaseException as another:
        if not isinstance(another, Exception) and signals.raised(another):
            raise
        return f"({type(another).__name__} when asked for its text)"
