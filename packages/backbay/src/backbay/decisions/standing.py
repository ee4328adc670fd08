"""Whether what was decided can be applied here."""

import contextlib
from collections.abc import Iterator

from backbay.decisions.arm import parse_arm
from backbay.decisions.decision import Decision
from backbay.errors import InputError
from backbay.registry import Origin, Registry


def why_not(decision: Decision, device: str, registry: Registry) -> str | None:
    """Return why what was decided can't be used on a device; nothing where it can."""
    try:
        origins = [registry.require(decision.arm.backend, device).origin]
    except InputError as error:
        return str(error)
    if decision.abstained:  # another version of any arm may be told from eager
        origins += _origins(decision, registry)
    for origin in origins:
        then = decision.place.versions.get(origin.distribution or "")
        if then is not None and then != origin.version:
            return f"that was with {origin.distribution} {then}, and here is {origin.version}"
    return None


def _origins(decision: Decision, registry: Registry) -> Iterator[Origin]:
    """Yield where all the arms that took part come from; a function in a file has no version."""
    for raced in decision.raced:
        with contextlib.suppress(InputError):  # a function's name may read as no arm
            yield registry.resolution(parse_arm(raced).backend).spec.origin
