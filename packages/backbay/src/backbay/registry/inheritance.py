"""Hand the registry's state to child processes: the policy in force, and what was registered.

A spawned process starts with neither: it re-imports modules, but not what a notebook, a test or a
launcher did at run time. What is handed down is data in one environment variable; a child's
policy and registry take it up.
"""

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from backbay.errors import PolicyError
from backbay.registry.materialise import load_target
from backbay.registry.target import reference_of

if TYPE_CHECKING:
    from backbay.registry.registry import Registry

VARIABLE = "BACKBAY_STATE"
_VERSION = 1


@contextlib.contextmanager
def exported(registry: "Registry") -> Iterator[None]:
    """Let processes that are started in this block have this registry's state.

    The policy of context managers counts too. A backend is handed down as ``module:name``: one that
    another process can't import (a lambda, a function of ``__main__``) is left out, with a warning.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = json.dumps(_state(registry))
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def read(text: str) -> dict[str, Any]:
    """Return what a parent process handed down: ``layers`` of policy, and ``backends``.

    A backend's name leads to its reference and tags.

    Raises:
        PolicyError: the variable holds something else.
    """
    try:
        state = json.loads(text)
        version = state["version"]
        understood = version == _VERSION and _is_understood(state)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PolicyError(f"{VARIABLE} cannot be read: {error!r}") from error
    if not understood:
        raise PolicyError(f"{VARIABLE} is of version {version}, and this Backbay reads {_VERSION}")
    return dict(state)


class Inherited:
    """A backend that a parent process registered; imported when it is first called."""

    def __init__(self, name: str, reference: str) -> None:
        self.__name__ = name
        self.reference = reference

    def __call__(self, graph_module: Any, example_inputs: Any, **given: Any) -> Any:
        """Import it, and compile with it."""
        what = f"backend {self.__name__!r}, registered by the parent process"
        return load_target(self.reference, what)(graph_module, example_inputs, **given)


def _state(registry: "Registry") -> dict[str, Any]:
    layers = [
        {
            "source": x.source,
            "block": sorted(x.block),
            "allow": None if x.allow is None else sorted(x.allow),
            "pin": dict(x.pin),
            "default": dict(x.default),
            "require": list(x.require),
        }
        for x in registry.policy.layers
    ]
    backends = {}
    for spec in registry.registered_specs():
        compiler_fn = registry.lookup_backend(spec.name)
        given = getattr(compiler_fn, "func", compiler_fn)  # a stand-in is a partial
        reference = getattr(compiler_fn, "reference", None) or reference_of(given)
        if reference is None:
            text = f"backend {spec.name!r} of {spec.origin} can't be imported by another process"
            warnings.warn(text, stacklevel=4)
            continue
        backends[spec.name] = (reference, spec.tags)
    return {"version": _VERSION, "layers": layers, "backends": backends}


def _is_understood(state: dict[str, Any]) -> bool:
    """Touch everything that will be read, so that what is missing shows here."""
    keys = ("source", "block", "allow", "pin", "default", "require")
    layers = [[layer[key] for key in keys] for layer in state["layers"]]
    backends = [(name, *entry) for name, entry in state["backends"].items()]
    return all(len(x) == len(keys) for x in layers) and all(len(x) == 3 for x in backends)  # noqa: PLR2004 (name, reference, tags)
