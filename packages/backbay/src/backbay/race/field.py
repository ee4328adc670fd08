"""Which backends take part, decided before anything is run."""

from collections.abc import Sequence
from dataclasses import dataclass

from backbay.errors import BackendLoadError, InputError
from backbay.race.decide import EAGER, INDUCTOR
from backbay.registry import HIDDEN_TAGS, Availability, BackendSpec, Registry
from backbay.registry.target import parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """One backend of the race."""

    name: str
    spec: BackendSpec | None = None
    """``None`` for eager, and for a function named by where it is."""
    unavailable: Availability | None = None
    """Why it is a row without a run; chosen backends never have this."""


def chosen(
    registry: Registry, names: Sequence[str], device: str, *, same_process: bool
) -> list[Entrant]:
    """Return the backends that the user named; eager is added, as what the others are measured by.

    Args:
        registry: where names are looked up.
        names: what the user gave.
        device: the device type that they compile for.
        same_process: whether the race runs where the registry is; a child process has another.

    Raises:
        InputError: a backend is registered in this process only, and the race is in others.
        BackendNotFound: a name is not known.
        BackendUnavailable: a name is known and does not run here: a choice fails loudly.
        BackendLoadError: a ``file.py:attribute`` names no file.
    """
    distinct = [name for name in dict.fromkeys(names) if name != EAGER]
    entrants = [_named(registry, name, device) for name in distinct]
    for entrant in entrants:
        if not same_process and _only_here(entrant.spec):
            raise InputError(
                f"backend {entrant.name!r} is registered in this process, and the race runs in "
                "others: name it FILE.py:FUNCTION, or race a Workload object"
            )
    return [Entrant(name=EAGER), *entrants]


def by_default(registry: Registry, device: str, *, same_process: bool) -> list[Entrant]:
    """Return eager and every backend that is ready and not tagged debug or experimental.

    Inductor is always a row: without a compiler a user must see why torch.compile would fail. What
    only stands for another backend is not raced beside it.
    """
    entrants = [Entrant(name=EAGER)]
    for name, resolution in registry.resolutions().items():
        spec, here = resolution.spec, resolution.standing == "wins"
        stands_for_another = spec.alias_of is not None or "alias" in spec.tags
        hidden = stands_for_another or set(HIDDEN_TAGS).intersection(spec.tags)
        if not here or hidden or (_only_here(spec) and not same_process):
            continue
        availability = registry.availability(name, device)
        if availability.ready:
            entrants.append(Entrant(name=name, spec=spec))
        elif name == INDUCTOR:
            entrants.append(Entrant(name=name, spec=spec, unavailable=availability))
    return entrants


def _only_here(spec: BackendSpec | None) -> bool:
    return spec is not None and spec.origin.kind == "process"


def _named(registry: Registry, name: str, device: str) -> Entrant:
    target = parse(name)
    if target is None:
        return Entrant(name=name, spec=registry.require(name, device))
    try:
        target.check()
    except LookupError as error:
        raise BackendLoadError(f"backend {name!r}: {error}") from error
    return Entrant(name=name)
