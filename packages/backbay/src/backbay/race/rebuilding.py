"""Whether a model object can be rebuilt in another process, and what it is known by there."""

import functools
import hashlib
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backbay.errors import InputError
from backbay.proof import Workload, digest
from backbay.race.record import EAGER
from backbay.registry import Registry
from backbay.registry.bridge import given as given_of
from backbay.registry.target import reference_of
from backbay.workloads.function_model import FunctionModel
from backbay.workloads.reference import check

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class NotRebuilt(Exception):  # noqa: N818 (what can't be done, not a failure)
    """It can't be rebuilt by reference; the message says why, to follow a colon."""


def check_named(workload: Workload) -> None:
    """Check that a workload's name says what it is built from.

    Raises:
        NotRebuilt: it does not.
    """
    if not workload.name:
        raise NotRebuilt("it has no name that says what it is built from")
    try:
        check(workload.name)
    except InputError as error:
        raise NotRebuilt(f"its name is no reference: {error}") from error


def references(
    registry: Registry, names: Sequence[str], given: Mapping[str, Any]
) -> dict[str, str]:
    """Return what each backend is known by in another process, where that is not its name.

    Args:
        registry: where names are looked up.
        names: of the backends.
        given: backends that were given with their names.

    Raises:
        NotRebuilt: another process can't import one.
    """
    found, only_here = {}, {spec.name for spec in registry.registered_specs()}
    for name in names:
        backend = given.get(name, name)
        if name == EAGER:
            continue
        if callable(backend) or backend in only_here:
            function = registry.lookup_backend(backend)
            found[name] = _importable(name, given_of(function))
        elif name in given:
            found[name] = backend
    return found


def likeness(workload: Workload) -> str:
    """Hash what a workload computes from, and what code it computes with."""
    whole = hashlib.sha256(digest(workload).encode())
    for name, module in workload.model.named_modules():
        hooks = [len(getattr(module, x)) for x in _HOOKS]
        whole.update(f"{name} {_class(module)} {module.training} {hooks} ".encode())
        called = module.function if isinstance(module, FunctionModel) else module.forward
        whole.update(_code(called))
    whole.update(b"no loss" if workload.loss is None else _code(workload.loss))
    if workload.optimizer is not None:
        made_by: Any = workload.optimizer
        whole.update(getattr(made_by, "__qualname__", type(made_by).__qualname__).encode())
        whole.update(_code(made_by))
    return whole.hexdigest()


def _importable(name: str, function: Callable[..., Any]) -> str:
    reference = reference_of(function)
    if reference is None:
        raise NotRebuilt(f"backend {name!r} can't be imported by another process")
    module, _, path = reference.partition(":")
    try:
        same = operator.attrgetter(path)(sys.modules[module]) is function
    except (KeyError, AttributeError):
        same = False
    if not same:
        raise NotRebuilt(f"backend {name!r} is not what {reference} is")
    return reference


def _class(value: object) -> str:
    return f"{type(value).__module__.rpartition('.')[2]}.{type(value).__qualname__}"


def _code(function: Any) -> bytes:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return b"" if code is None else code.co_code + repr(code.co_names).encode()
