"""Whether what was decided can be applied here."""

from backbay.decisions.decision import Decision
from backbay.errors import InputError
from backbay.registry import Registry


def why_not(decision: Decision, device: str, registry: Registry) -> str | None:
    """Return why what was decided can't be used on a device; nothing where it can."""
    try:
        origin = registry.require(decision.arm.backend, device).origin
    except InputError as error:
        return str(error)
    then = decision.place.versions.get(origin.distribution or "")
    if then is not None and then != origin.version:
        return f"that was with {origin.distribution} {then}, and here is {origin.version}"
    return None
