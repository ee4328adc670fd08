"""The two ways between this registry and torch's own; only this file touches torch's.

From torch: torch is imported here only when a backend of torch's is loaded; what other code has
registered with torch is read only where torch's registry is already in memory.

To torch: what is registered here goes through torch's own functions. ``import torch`` does not
load torch's registry, and neither may a registration here. Where the module is not loaded yet, a
finder waits for it on ``sys.meta_path``, takes itself away when it is looked for, and acts when it
has been run. Nothing of torch is patched.

Private names of torch's that are used: ``_COMPILER_FNS`` and ``_BACKENDS`` (2.11 to 2.15),
``_BACKEND_TAGS`` (from 2.14.1), and the attribute ``_tags`` of functions (before).
``tools/torch_versions.py`` runs the registry's tests on each torch.
"""

import functools
import importlib
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, Final, cast

from backbay.errors import BackendLoadError, BackendNotFound, warn_of_experimental
from backbay.registry.spec import BackendSpec, CompilerFn, Origin

if TYPE_CHECKING:
    from importlib.abc import Loader

TORCH_REGISTRY = "torch._dynamo.backends.registry"
_REFUSING = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
_PACKAGE = TORCH_REGISTRY.rpartition(".")[0]
CONTRACT = ("reset", "get_compiler_config", "backend_ctx_ctor", "_dynamo_backend_init")
"""What Dynamo looks for on a backend, up to 2.15."""

_GIVEN = "_backbay_given"
"""The attribute of a stand-in that holds what it stands for."""

Action = Callable[[Any], None]
"""What is done with torch's registry module."""

_waiting: dict[str, Action] = {}
_lock = threading.RLock()


def after_fork() -> None:
    """Make anew, in a child process, a lock that a thread of its parent's may hold."""
    global _lock  # noqa: PLW0603 (it is this module's)
    _lock = threading.RLock()


def load_from_torch(name: str) -> CompilerFn:
    """Return the compiler function that torch's registry has under a name, as it gives it."""
    registry = importlib.import_module(TORCH_REGISTRY)
    return cast("CompilerFn", registry.lookup_backend(name))


def load_by_import(module: str, name: str) -> CompilerFn:
    """Import a module that registers a backend with torch, and return what it registered.

    Raises:
        BackendLoadError: it registered no backend of this name. What the module raises passes.
    """
    importlib.import_module(TORCH_REGISTRY)
    importlib.import_module(module)
    found = held_by_torch(name)
    if found is None:
        raise BackendLoadError(
            f"{module} was imported and registered no backend {name!r} with torch: "
            "its version may be another than the catalogue knows"
        )
    return found


def registered_in_torch() -> Iterator[BackendSpec]:
    """Yield what this process registered with torch; nothing where its registry is not loaded."""
    by_name = getattr(_loaded(), "_BACKEND_TAGS", None)
    for name, compiler_fn in _table().items():
        origin = Origin(kind="process", location=location_of(compiler_fn))
        held = by_name.get(name, ()) if by_name is not None else getattr(compiler_fn, "_tags", ())
        tags = tuple(tag for tag in held if isinstance(tag, str))
        yield BackendSpec(name=name, origin=origin, loading="torch", tags=tags)


def held_by_torch(name: str) -> CompilerFn | None:
    """Return what torch's registry holds under a name, if it is loaded."""
    return _table().get(name)


def names_in_torch() -> list[str]:
    """Return the names in torch's registry, if it is loaded."""
    return list(_table())


def take_back(name: str, compiler_fn: CompilerFn) -> bool:
    """Take out of torch's registry what is there under a name, if it is this; nothing else."""
    module = _loaded()
    if held_by_torch(name) is not compiler_fn:
        return False
    del module._COMPILER_FNS[name]
    if getattr(module, "_BACKENDS", {}).get(name, module) is None:  # else it is an entry point's
        del module._BACKENDS[name]
    getattr(module, "_BACKEND_TAGS", {}).pop(name, None)
    return True


def take_back_of_failed(before: frozenset[str]) -> None:
    """Take out of torch's registry what came since, from modules that failed to be imported.

    Their code will run again, and torch refuses a name that it has.
    """
    for name, compiler_fn in _table().items():
        module = module_of(unwrapped(compiler_fn))
        if name not in before and module is not None and module not in sys.modules:
            take_back(name, compiler_fn)


def not_found(message: str) -> BackendNotFound:
    """Return the error for an unknown name; with torch loaded, one of its ``InvalidBackend`` too.

    Code that was written for torch's registry catches that, and may be the first to name it, when
    the error has been raised already: it is imported here.
    """
    if "torch" not in sys.modules:
        return BackendNotFound(message)
    try:
        invalid = importlib.import_module("torch._dynamo.exc").InvalidBackend
    except Exception:  # noqa: BLE001 (torch is being imported, or broken: the typo is the error)
        return BackendNotFound(message)
    both = type("InvalidBackend", (BackendNotFound, invalid), {"__init__": Exception.__init__})
    return cast("BackendNotFound", both(message))


def location_of(compiler_fn: object) -> str | None:
    """Return ``file:line`` of a function's definition, or its module where it has no code."""
    compiler_fn = unwrapped(compiler_fn)
    code = getattr(compiler_fn, "__code__", None)
    if isinstance(code, types.CodeType):
        return f"{code.co_filename}:{code.co_firstlineno}"
    module = getattr(compiler_fn, "__module__", None)
    return module if isinstance(module, str) else type(compiler_fn).__module__


def unwrapped(compiler_fn: Any) -> Any:
    """Return what partials of it, stand-ins and other wrappers call in the end."""
    while True:
        if isinstance(compiler_fn, functools.partial):
            compiler_fn = compiler_fn.func
        elif isinstance(compiler_fn, types.FunctionType) and hasattr(compiler_fn, "__wrapped__"):
            compiler_fn = compiler_fn.__wrapped__
        else:
            return compiler_fn


def given(compiler_fn: CompilerFn) -> CompilerFn:
    """Return what a stand-in stands for; anything else as it is."""
    found: CompilerFn = getattr(compiler_fn, "__dict__", {}).get(_GIVEN, compiler_fn)
    return found


def module_of(compiler_fn: object) -> str | None:
    """Return the name of the module that defines a compiler function."""
    module = getattr(compiler_fn, "__module__", None)
    return module if isinstance(module, str) else None


def _loaded() -> Any:
    return sys.modules.get(TORCH_REGISTRY)


def _table() -> dict[str, CompilerFn]:
    found = list(getattr(_loaded(), "_COMPILER_FNS", {}).items())  # another thread may register
    return {name: compiler_fn for name, compiler_fn in found if isinstance(name, str)}


def stand_in(compiler_fn: CompilerFn, spec: BackendSpec) -> CompilerFn:
    """Return a new function that calls a compiler function, and that torch can register.

    What it compiles checks that its first call returns a tuple. Of an experimental backend it
    warns: torch, which may have looked it up, tells nobody.
    """
    name = spec.name

    def standing(*arguments: Any, **given: Any) -> Any:
        from backbay.registry.returned import checked  # noqa: PLC0415 (a graph is being compiled)

        if spec.experimental:
            warn_of_experimental(name, str(spec.origin))
        return checked(compiler_fn(*arguments, **given), name)

    standing.__name__ = standing.__qualname__ = name
    standing.__module__ = module_of(unwrapped(compiler_fn)) or standing.__module__
    standing.__wrapped__ = compiler_fn  # type: ignore[attr-defined] # its signature is this one's
    setattr(standing, _GIVEN, compiler_fn)
    for attribute in CONTRACT:
        if hasattr(compiler_fn, attribute):
            setattr(standing, attribute, getattr(compiler_fn, attribute))
    return standing


def shareable(compiler_fn: CompilerFn, spec: BackendSpec) -> CompilerFn:
    """Return what torch can register: the function itself, or a stand-in that calls it.

    Up to 2.13 torch sets an attribute on what it registers, and Dynamo shows its ``__name__``: a
    bound method, a frozen dataclass or an object with slots refuses the one or lacks the other.
    """
    refuses = (
        isinstance(compiler_fn, _REFUSING)
        or not hasattr(compiler_fn, "__dict__")
        or isinstance(type(compiler_fn).__setattr__, types.FunctionType)
        or not type(compiler_fn).__weakrefoffset__
    )
    return stand_in(compiler_fn, spec) if refuses else compiler_fn


def share(name: str, compiler_fn: CompilerFn, tags: Sequence[str]) -> None:
    """Register with torch: now if its registry is loaded, else as soon as it is."""

    def register(registry: Any) -> None:
        held = held_by_torch(name)
        if held is compiler_fn or held is given(compiler_fn):
            return
        if held is not None:
            text = f"torch has another backend {name!r}: torch.compile does not see this one"
            warnings.warn(text, stacklevel=2)
            return
        published = getattr(registry, "_BACKENDS", {}).get(name)
        registry.register_backend(compiler_fn, name=name, tags=tuple(tags))
        if published is not None:  # up to 2.14.0 torch forgets whose entry point has the name
            registry._BACKENDS[name] = published

    _act(f"backend {name}", register)


def withdraw(name: str, compiler_fn: CompilerFn) -> None:
    """Take back what ``share`` gave to torch, or was about to give."""
    with _lock:  # not between the moment when torch's registry is loaded and what is done then
        _waiting.pop(f"backend {name}", None)
        take_back(name, compiler_fn)


def share_default(backend: str | CompilerFn | None) -> None:
    """Make a backend torch.compile's default, where torch has one to set (2.13 and later)."""

    def set_default(registry: Any) -> None:
        if hasattr(registry, "set_default_backend"):
            registry.set_default_backend(backend)

    _act("default", set_default)


def _act(key: str, action: Action) -> None:
    if TORCH_REGISTRY not in sys.modules:
        with _lock:
            _waiting[key] = action
            if _finder not in sys.meta_path:
                sys.meta_path.insert(0, _finder)
        if _PACKAGE not in sys.modules:
            return
        with _lock:  # its import is under way: the finder may have come too late
            _waiting.pop(key, None)
    # Not sys.modules: another thread may be in the middle of importing it.
    registry = importlib.import_module(TORCH_REGISTRY)
    with _lock:
        action(registry)


def _act_on(registry: Any) -> None:
    with _lock:
        for key in list(_waiting):
            try:
                _waiting.pop(key)(registry)
            except Exception as error:  # noqa: BLE001 (whoever imports torch must not pay for it)
                text = f"torch could not be told of {key}: {type(error).__name__}: {error}"
                warnings.warn(text, stacklevel=2)


class WaitingFinder:
    """Waits for a module to be imported, acts on it once, and is gone.

    No ``importlib.abc.MetaPathFinder``: its import is a good part of what a registration costs.
    """

    def __init__(self, name: str, act: Callable[[types.ModuleType], None]) -> None:
        """Wait, once it is on ``sys.meta_path``.

        Args:
            name: of the module.
            act: called with the module, after it has been run.
        """
        self._name = name
        self.act = act

    def find_spec(
        self, fullname: str, path: Any = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as anyone would, and put a loader around its own."""
        if fullname != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _ActingLoader(self, spec, spec.loader))
        return spec


class _ActingLoader:
    """Runs the module with its own loader, then does what has waited for it."""

    def __init__(self, finder: WaitingFinder, spec: ModuleSpec, loader: "Loader") -> None:
        self._finder = finder
        self._spec = spec
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._finder.act(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # whoever looks for the module's source asks the loader


_finder: Final = WaitingFinder(TORCH_REGISTRY, _act_on)
