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
from backbay.registry.requested import Requested
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
    arm, requested = setup.arm, _requested(setup, given, registry)
    if requested.backend == EAGER:
        return Compiler(backend=None)
    keywords = requested.keywords()
    return Compiler(
        backend=keywords.pop("backend"),
        keywords={"dynamic": setup.dynamic, "fullgraph": setup.fullgraph, **keywords},
        scope=arm.scope,
    )


def problems(
    setup: ArmSetup, given: Mapping[str, str | CompilerFn], registry: Registry
) -> tuple[str, ...]:
    """Return why an arm can't be compiled with its mode and options.

    Raises:
        InputError: its backend can't be loaded.
    """
    return _requested(setup, given, registry).problems()


def _requested(
    setup: ArmSetup, given: Mapping[str, str | CompilerFn], registry: Registry
) -> Requested:
    arm = setup.arm
    return Requested(
        backend=setup.reference or given.get(arm.backend, arm.backend),
        name=arm.backend,
        mode=arm.mode,
        options=arm.options,
        registry=registry,
    )
