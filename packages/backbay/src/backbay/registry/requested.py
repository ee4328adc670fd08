"""A backend with a mode and options: what torch.compile is handed for it, and what is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backbay.registry.options import configuration_problems
from backbay.registry.registration import described
from backbay.registry.registry import Registry
from backbay.registry.spec import BackendSpec, CompilerFn
from backbay.registry.target import parse


@dataclass(frozen=True, kw_only=True)
class Requested:
    """A backend, and the mode and options that it is asked to compile with."""

    backend: str | CompilerFn
    """A registered name, ``module:attribute``, ``file.py:attribute`` or a compiler function."""
    name: str
    """What it is called, also where it is a function."""
    mode: str | None = None
    """As torch.compile takes it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Likewise."""
    registry: Registry
    """Where it is looked up."""

    def keywords(self) -> dict[str, Any]:
        """Return backend, mode and options as torch.compile takes them; of the last two, not both.

        Raises:
            InputError: it can't be loaded.
        """
        if self.mode is None or not self.options:
            options = dict(self.options) or None
            return {"backend": self._loaded(), "mode": self.mode, "options": options}
        if isinstance(self.backend, str):
            both = self.registry.get_backend(self.backend, mode=self.mode, options=self.options)
        else:
            spec = described(self.backend, self.name, (), {})
            both = self.registry.configured(spec, self.backend, self.mode, self.options)
        return {"backend": both}

    def problems(self) -> tuple[str, ...]:
        """Return why it can't compile with its mode and options.

        Raises:
            InputError: it can't be loaded.
        """
        loaded = self._loaded()
        found = configuration_problems(
            self._spec(loaded), loaded, self.mode, dict(self.options) or None
        )
        return tuple(found)

    def _loaded(self) -> str | CompilerFn:
        if isinstance(self.backend, str):
            return self.registry.resolve(self.backend)
        return self.backend

    def _spec(self, loaded: str | CompilerFn) -> BackendSpec:
        if isinstance(self.backend, str) and parse(self.backend) is None:
            return self.registry.spec(self.backend)
        return described(loaded, self.name, (), {})
