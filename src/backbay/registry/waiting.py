"""A finder that waits for one module to be imported, acts on it once, and is gone."""

import sys
import types
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any


class WaitingFinder(MetaPathFinder):
    """Waits for a module to be imported, once."""

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
            spec.loader = _ActingLoader(spec, spec.loader, self._act)
        return spec

    def _act(self, module: types.ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._action(module)


class _ActingLoader(Loader):
    """Runs the module with its own loader, then the action."""

    def __init__(self, spec: ModuleSpec, loader: Loader, action: Callable[[Any], None]) -> None:
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
