"""How an arm compiles a model, in the process that runs it."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from backbay.decisions.arm import WHOLE
from backbay.proof.sequence import InARow, each
from backbay.race.record import EAGER
from backbay.race.requests import ArmSetup
from backbay.race.scopes import InPlace, parts_of
from backbay.registry import CompilerFn, Registry
from backbay.registry.options import configuration_problems
from backbay.registry.registration import described
from backbay.registry.target import parse
from backbay.timing.device import synchronize


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A backend, and what torch.compile is asked for beside it."""

    backend: str | CompilerFn | None
    """``None`` is eager."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """As torch.compile takes them: mode or options, dynamic, fullgraph."""
    scope: str = WHOLE
    """What of a model is compiled."""

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function as the backend compiles it."""
        if self.backend is None:
            return function
        call: Callable[..., Any] = torch.compile(function, backend=self.backend, **self.keywords)
        return call

    def warm_up(self, device: torch.device, *, train: bool) -> float:
        """Compile a trivial function: what a toolchain does once is not charged to a model.

        Returns:
            Seconds that it took. A failure says nothing of the model, and is not reported.
        """
        start = time.perf_counter()
        with contextlib.suppress(Exception):
            function = self.compiled(lambda x: x + 1)
            result = function(torch.ones(8, device=device, requires_grad=train))
            if train:
                result.sum().backward()
        synchronize(device)
        return time.perf_counter() - start

    def applied(self, model: torch.nn.Module) -> Callable[..., Any]:
        """Return a model as the arm runs it; others may share it.

        Raises:
            InputError: it has no such parts.
        """
        if isinstance(model, InARow):  # it calls the model, which is what is compiled
            return each(self.applied(model.model))
        if self.scope == WHOLE:
            return self.compiled(model)
        return InPlace(model, parts_of(model, self.scope), self.compiled)


def compiler_of(
    setup: ArmSetup, given: Mapping[str, str | CompilerFn], registry: Registry
) -> Compiler:
    """Return how an arm compiles.

    Args:
        setup: the arm.
        given: backends that were given with their names.
        registry: where other names are looked up.

    Raises:
        InputError: its backend can't be loaded.
    """
    arm, backend = setup.arm, _backend(setup, given)
    if backend == EAGER:
        return Compiler(backend=None)
    keywords = {"dynamic": setup.dynamic, "fullgraph": setup.fullgraph}
    if arm.mode is None or not arm.options:
        loaded = registry.resolve(backend) if isinstance(backend, str) else backend
        configuration = {"mode": arm.mode, "options": arm.options or None}
        return Compiler(backend=loaded, keywords={**keywords, **configuration}, scope=arm.scope)
    if isinstance(backend, str):  # torch.compile takes a mode or options
        both = registry.get_backend(backend, mode=arm.mode, options=arm.options)
    else:
        spec = described(backend, arm.backend, (), {})
        both = registry.configured(spec, backend, arm.mode, arm.options)
    return Compiler(backend=both, keywords=keywords, scope=arm.scope)


def problems(
    setup: ArmSetup, given: Mapping[str, str | CompilerFn], registry: Registry
) -> tuple[str, ...]:
    """Return why an arm can't be compiled with its mode and options.

    Raises:
        InputError: its backend can't be loaded.
    """
    arm, backend = setup.arm, _backend(setup, given)
    loaded = registry.resolve(backend) if isinstance(backend, str) else backend
    if isinstance(backend, str) and parse(backend) is None:
        spec = registry.spec(backend)
    else:
        spec = described(loaded, arm.backend, (), {})
    return tuple(configuration_problems(spec, loaded, arm.mode, arm.options or None))


def _backend(setup: ArmSetup, given: Mapping[str, str | CompilerFn]) -> str | CompilerFn:
    return setup.reference or given.get(setup.arm.backend, setup.arm.backend)
