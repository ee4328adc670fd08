"""Acts when a module has been imported, by whoever imports it; until then it costs nothing.

A finder waits for the module on ``sys.meta_path``, takes itself away when it is looked for, and
acts when it has been run.
"""

import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader


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
