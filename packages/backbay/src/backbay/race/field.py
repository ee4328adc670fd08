"""Which arms take part, decided before anything is run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

import msgspec

from backbay.decisions import Arm
from backbay.decisions.arm import WHOLE
from backbay.errors import BackendLoadError, BackendNotFound, InputError
from backbay.race.decide import EAGER, INDUCTOR
from backbay.registry import HIDDEN_TAGS, Availability, BackendSpec, Registry
from backbay.registry.target import parse

ALL: Literal["all"] = "all"
"""In place of a name: every backend that takes part where nobody names one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """One arm of the race."""

    arm: Arm
    spec: BackendSpec | None = None
    """``None`` for eager, for a function named by where it is, and for a name that nobody knows."""
    unavailable: Availability | None = None
    """Why it is a row without a run."""

    @property
    def name(self) -> str:
        """What its row is called."""
        return str(self.arm)

    @property
    def experimental(self) -> bool:
        """Whether it runs, and its author calls its backend experimental."""
        return self.unavailable is None and self.spec is not None and self.spec.experimental


def eager() -> Entrant:
    """Return what the others are measured by."""
    return Entrant(arm=Arm(backend=EAGER))


def chosen(
    registry: Registry,
    arms: Sequence[Arm],
    device: str,
    *,
    same_process: bool,
    require_all: bool = False,
) -> list[Entrant]:
    """Return the arms that the user named; eager is added, as what the others are measured by.

    One that does not run here takes part as a row with its reason. So does a name that nobody
    knows: on another machine the package that has it may be installed.

    Args:
        registry: where names are looked up.
        arms: what the user gave; ``all`` stands for what `by_default` returns.
        device: the device type that they compile for.
        same_process: whether the race runs where the registry is; a child process has another.
        require_all: whether each that is named must be ready.

    Raises:
        BackendLoadError: a ``file.py:attribute`` names no file.
        InputError: one does not run here, and all must; or none does, so that there is no race. It
            is a `BackendNotFound` or `BackendUnavailable` where it is about one. Or a backend is
            registered in this process only, and the race is in others. Or eager, or ``all``, is
            given a mode or options.
    """
    found = dict[str, Entrant]()
    for arm in arms:
        for entrant in _entrants(registry, arm, device, same_process=same_process):
            found.setdefault(entrant.name, entrant)
    entrants = [x for x in found.values() if x.name != EAGER]
    for entrant in entrants:
        if not same_process and _only_here(entrant.spec):
            raise InputError(
                f"backend {entrant.arm.backend!r} is registered in this process, and the race runs "
                "in others: name it FILE.py:FUNCTION, or race a Workload object"
            )
    absent = [x for x in entrants if x.unavailable is not None]
    if absent and (require_all or (absent == entrants and ALL not in map(str, arms))):
        _refuse(registry, absent, device)
    return [eager(), *entrants]


def scoped(entrants: Sequence[Entrant], scopes: Sequence[str]) -> list[Entrant]:
    """Return each entrant once a scope, if its arm names none; eager compiles nothing.

    One that does not run here stays one row.
    """
    found = dict[str, Entrant]()
    for entrant in entrants:
        once = entrant.arm.backend == EAGER or entrant.unavailable or entrant.arm.scope != WHOLE
        for scope in [entrant.arm.scope] if once else scopes:
            arm = msgspec.structs.replace(entrant.arm, scope=scope)
            found.setdefault(str(arm), replace(entrant, arm=arm))
    return list(found.values())


def by_default(registry: Registry, device: str, *, same_process: bool) -> list[Entrant]:
    """Return eager and every backend that is ready and not tagged debug or experimental.

    Inductor is always a row: without a compiler a user must see why torch.compile would fail. What
    only stands for another backend is not raced beside it.
    """
    entrants = [eager()]
    for name, resolution in registry.resolutions().items():
        spec, here = resolution.spec, resolution.standing == "wins"
        stands_for_another = spec.alias_of is not None or "alias" in spec.tags
        hidden = stands_for_another or set(HIDDEN_TAGS).intersection(spec.tags)
        if not here or hidden or (_only_here(spec) and not same_process):
            continue
        availability = registry.availability(name, device)
        if availability.ready:
            entrants.append(Entrant(arm=Arm(backend=name), spec=spec))
        elif name == INDUCTOR:
            entrants.append(Entrant(arm=Arm(backend=name), spec=spec, unavailable=availability))
    return entrants


def quick(registry: Registry, entrants: Sequence[Entrant]) -> list[Entrant]:
    """Return those who take part in a quick race: eager, Inductor, and what hands graphs to it."""

    def is_inductors(name: str) -> bool:
        spec = registry.spec(name)  # with its manifest, which is not read to list it
        return "inductor" in {spec.options, spec.further_options}

    return [x for x in entrants if x.arm.backend == EAGER or is_inductors(x.arm.backend)]


def _only_here(spec: BackendSpec | None) -> bool:
    return spec is not None and spec.origin.kind == "process"


def _entrants(
    registry: Registry, arm: Arm, device: str, *, same_process: bool
) -> Iterator[Entrant]:
    name = arm.backend
    if name in {EAGER, ALL} and not arm.plain:
        what = "eager compiles nothing" if name == EAGER else "all stands for many backends"
        raise InputError(f"arm {str(arm)!r}: {what}, and takes no mode, options or scope")
    if name == EAGER:
        return
    if name == ALL:
        yield from by_default(registry, device, same_process=same_process)
        return
    target = parse(name)
    if target is None:
        yield _registered(registry, arm, device)
        return
    try:
        target.check()
    except LookupError as error:
        raise BackendLoadError(f"backend {name!r}: {error}") from error
    yield Entrant(arm=arm)


def _registered(registry: Registry, arm: Arm, device: str) -> Entrant:
    try:
        spec = registry.resolution(arm.backend).spec
    except BackendNotFound:
        return Entrant(arm=arm, unavailable=_unknown(registry, arm.backend))
    here = registry.availability(arm.backend, device)
    return Entrant(arm=arm, spec=spec, unavailable=None if here.ready else here)


def _unknown(registry: Registry, name: str) -> Availability:
    near = registry.nearest(name)
    remedy = "install what provides it, or see `backbay list --all`"
    return Availability(
        state="not_installed",
        reason="no backend of this name is known",
        remedy=remedy if near is None else f"did you mean {near!r}? If not, {remedy}",
    )


def _refuse(registry: Registry, absent: Sequence[Entrant], device: str) -> NoReturn:
    """Raise what is wrong with each of those that don't run here."""
    errors = list[InputError]()
    for entrant in absent:
        try:
            registry.require(entrant.arm.backend, device)
        except InputError as error:
            errors.append(error)
    raise errors[0] if len(errors) == 1 else InputError(" ".join(map(str, errors)))
