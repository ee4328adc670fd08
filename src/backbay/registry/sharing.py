"""Makes what is registered here visible to torch, through torch's own ``register_backend``.

``import torch`` does not load torch's registry, and neither may a registration here. Where the
module is not loaded yet, a finder waits for it on ``sys.meta_path``, takes itself away when it is
looked for, and registers when it has been run. Nothing of torch is patched.
"""

import functools
import importlib
import sys
import threading
import types
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from backbay.registry.spec import CompilerFn

TORCH_REGISTRY = "torch._dynamo.backends.registry"

_REFUSING = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
_CONTRACT = ("reset", "get_compiler_config", "backend_ctx_ctor")
"""What Dynamo looks for on a backend."""

_waiting: dict[str, tuple[CompilerFn, tuple[str, ...]]] = {}
_lock = threading.Lock()


def shareable(compiler_fn: CompilerFn, name: str) -> CompilerFn:
    """Give what torch can register: the function itself, or a stand-in that calls it.

    Up to 2.13 torch sets an attribute on what it registers, and Dynamo shows its ``__name__``: a
    bound method or an object with slots refuses the one or lacks the other.
    """
    if hasattr(compiler_fn, "__dict__") and not isinstance(compiler_fn, _REFUSING):
        return compiler_fn
    stand_in = functools.partial(compiler_fn)
    stand_in.__name__ = name  # type: ignore[attr-defined] # a partial takes any attribute
    for attribute in _CONTRACT:
        if hasattr(compiler_fn, attribute):
            setattr(stand_in, attribute, getattr(compiler_fn, attribute))
    return stand_in


def share(name: str, compiler_fn: CompilerFn, tags: Sequence[str]) -> None:
    """Register with torch: now if its registry is loaded, else as soon as it is."""
    with _lock:
        _waiting[name] = (compiler_fn, tuple(tags))
        loaded = TORCH_REGISTRY in sys.modules
        if not loaded and not any(isinstance(f, _WaitingFinder) for f in sys.meta_path):
            sys.meta_path.insert(0, _WaitingFinder())
    if loaded:
        # Not sys.modules: another thread may be in the middle of importing it.
        _hand_over(importlib.import_module(TORCH_REGISTRY))


def _hand_over(registry: Any) -> None:
    with _lock:
        handed = dict(_waiting)
        _waiting.clear()
    for name, (compiler_fn, tags) in handed.items():
        held = registry._COMPILER_FNS.get(name)  # noqa: SLF001 (torch offers no question)
        if held is compiler_fn:
            continue
        if held is not None:
            text = f"torch has another backend {name!r}: torch.compile does not see this one"
            warnings.warn(text, stacklevel=2)
            continue
        registry.register_backend(compiler_fn, name=name, tags=tags)


class _WaitingFinder(MetaPathFinder):
    """Waits for torch's registry to be imported, once."""

    def find_spec(
        self, fullname: str, path: Any = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TORCH_REGISTRY:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _HandingLoader(spec, spec.loader)
        return spec


class _HandingLoader(Loader):
    """Runs the module with its own loader, then registers what has waited."""

    def __init__(self, spec: ModuleSpec, loader: Loader) -> None:
        self._spec = spec
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _hand_over(module)
