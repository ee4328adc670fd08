"""Makes what is registered here visible to torch, through torch's own functions.

``import torch`` does not load torch's registry, and neither may a registration here. Where the
module is not loaded yet, a finder waits for it on ``sys.meta_path``, takes itself away when it is
looked for, and acts when it has been run. Nothing of torch is patched.
"""

import functools
import importlib
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, cast

from backbay.registry import bridge
from backbay.registry.bridge import TORCH_REGISTRY
from backbay.registry.spec import CompilerFn

if TYPE_CHECKING:
    from importlib.abc import Loader

_REFUSING = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
_PACKAGE = TORCH_REGISTRY.rpartition(".")[0]
CONTRACT = ("reset", "get_compiler_config", "backend_ctx_ctor", "_dynamo_backend_init")
"""What Dynamo looks for on a backend, up to 2.15."""

Action = Callable[[Any], None]
"""What is done with torch's registry module."""

_waiting: dict[str, Action] = {}
_lock = threading.RLock()


def stand_in(compiler_fn: CompilerFn, name: str) -> CompilerFn:
    """Return a new object that calls a compiler function, and that torch can register."""
    standing = functools.partial(compiler_fn)
    standing.__name__ = name  # type: ignore[attr-defined] # a partial takes any attribute
    for attribute in CONTRACT:
        if hasattr(compiler_fn, attribute):
            setattr(standing, attribute, getattr(compiler_fn, attribute))
    return standing


def shareable(compiler_fn: CompilerFn, name: str) -> CompilerFn:
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
    return stand_in(compiler_fn, name) if refuses else compiler_fn


def share(name: str, compiler_fn: CompilerFn, tags: Sequence[str]) -> None:
    """Register with torch: now if its registry is loaded, else as soon as it is."""

    def register(_: Any) -> None:
        held = bridge.held_by_torch(name)
        if held is compiler_fn:
            return
        if held is not None:
            text = f"torch has another backend {name!r}: torch.compile does not see this one"
            warnings.warn(text, stacklevel=2)
            return
        bridge.give(name, compiler_fn, tags)

    _act(f"backend {name}", register)


def withdraw(name: str, compiler_fn: CompilerFn) -> None:
    """Take back what ``share`` gave to torch, or was about to give."""
    with _lock:  # not between the moment when torch's registry is loaded and what is done then
        _waiting.pop(f"backend {name}", None)
        bridge.take_back(name, compiler_fn)


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
            if not any(isinstance(finder, _WaitingFinder) for finder in sys.meta_path):
                sys.meta_path.insert(0, _WaitingFinder(TORCH_REGISTRY, _act_on))
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


class _WaitingFinder:
    """Waits for a module to be imported, acts on it once, and is gone.

    No ``importlib.abc.MetaPathFinder``: its import is a good part of what a registration costs.
    """

    def __init__(self, module: str, action: Callable[[Any], None]) -> None:
        self._module = module
        self._action = action

    def find_spec(
        self, fullname: str, path: Any = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as anyone would, and put a loader around its own."""
        if fullname != self._module:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _ActingLoader(spec, spec.loader, self._act))
        return spec

    def _act(self, module: types.ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._action(module)


class _ActingLoader:
    """Runs the module with its own loader, then the action."""

    def __init__(self, spec: ModuleSpec, loader: "Loader", action: Callable[[Any], None]) -> None:
        self._spec = spec
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # whoever looks for the module's source asks the loader
