"""Whether what was decided can be applied here."""

import contextlib
from collections.abc import Iterator

from backbay.decisions.arm import parse_arm
from backbay.decisions.decision import Decision
from backbay.errors import InputError
from backbay.registry import BackendSpec, Registry
from backbay.registry.distributions import required_name

_OF_ALL = frozenset({"torch", "triton"})
"""A place has these by itself."""


def providers(spec: BackendSpec, registry: Registry) -> dict[str, str]:
    """Return the versions of what provides a backend, and of the engines that it requires."""
    found = {}
    if spec.origin.distribution is not None and spec.origin.version is not None:
        found[spec.origin.distribution] = spec.origin.version
    for name in map(required_name, spec.requires.distributions):
        installed = registry.environment.installed.find(name) if name else None
        if installed is not None and installed.name not in _OF_ALL:
            found[installed.name] = installed.version
    return found


def why_not(decision: Decision, device: str, registry: Registry) -> str | None:
    """Return why what was decided can't be used on a device; nothing where it can."""
    try:
        specs = [registry.require(decision.arm.backend, device)]
    except InputError as error:
        return str(error)
    if decision.abstained:  # another version of any arm may be told from eager
        specs += _raced(decision, registry)
    for spec in specs:
        for name, version in providers(spec, registry).items():
            then = decision.place.versions.get(name)
            if then is not None and then != version:
                return f"that was with {name} {then}, and here is {version}"
    return None


def _raced(decision: Decision, registry: Registry) -> Iterator[BackendSpec]:
    """Yield all the arms that took part; a function in a file has no version."""
    for raced in decision.raced:
        with contextlib.suppress(InputError):  # a function's name may read as no arm
            yield registry.resolution(parse_arm(raced).backend).spec
