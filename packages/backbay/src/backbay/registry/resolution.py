"""Which of several claimants gets a name, and by which rule. Pure: it looks nothing up."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from backbay.errors import BackendConflict
from backbay.registry.distributions import normalise, required_name
from backbay.registry.policy import PROCESS, Policy
from backbay.registry.spec import BackendSpec, Origin

Standing = Literal["wins", "shadowed", "blocked", "contends", "absent"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a name resolves to nothing, and what to do about it."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        """Return both on one line."""
        return f"{self.reason}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One claimant of a name."""

    spec: BackendSpec
    standing: Standing
    why: str
    """The rule, or the setting, that put it there; one line."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of a name."""

    name: str
    candidates: tuple[Candidate, ...]
    """Every claimant; the one that wins first."""

    conflict: Conflict | None = None
    """Where claimants contend."""

    @property
    def standing(self) -> Standing:
        """Whether the name resolves to something: how the first claimant stands."""
        return self.candidates[0].standing

    @property
    def winner(self) -> BackendSpec:
        """What the name resolves to, runnable or not.

        Raises:
            BackendConflict: several claim it, and no rule decides.
        """
        if self.standing == "contends":
            raise BackendConflict(str(self.conflict))
        return self.spec

    @property
    def spec(self) -> BackendSpec:
        """The winner; where there is none, the first claimant, to have something to show."""
        return self.candidates[0].spec


def resolve(name: str, claimants: Iterable[BackendSpec], policy: Policy) -> Resolution:
    """Decide who gets a name.

    A blocked claimant never wins. Of the others: a name of torch's own is torch's, and nobody's if
    it only leads to a distribution that is blocked; then a pin decides; then what this process
    registered; then the one distribution that publishes it. Two distributions contend, until a pin
    decides. What is only known to the catalogue is absent.

    Args:
        name: the name.
        claimants: at least one, in the order in which they were found.
        policy: what is blocked and pinned.
    """
    blocked, absent, free = [], [], []
    for spec in claimants:
        why = None
        # torch's own, and what this process registered, are there already: no code to keep out.
        if spec.origin.kind == "distribution" and spec.origin.distribution is not None:
            why = policy.why_blocked(spec.origin.distribution)
        if why is not None:
            blocked.append(Candidate(spec, "blocked", why))
        elif spec.origin.kind == "catalogue":
            absent.append(Candidate(spec, "absent", "only known from the catalogue: not installed"))
        else:
            free.append(spec)
    others = (*blocked, *absent)
    decided = _decided(name, free, policy)
    if not isinstance(decided, Conflict):
        return Resolution(name, (*decided, *others))
    contending = free or [x.spec for x in others]
    candidates = tuple(Candidate(spec, "contends", str(decided)) for spec in contending)
    return Resolution(name, (*candidates, *others) if free else candidates, decided)


def _decided(
    name: str, free: list[BackendSpec], policy: Policy
) -> tuple[Candidate, ...] | Conflict:
    """Return those that are not blocked, the winner first, or why none wins."""
    pin = policy.pinned(name)
    torch = next((spec for spec in free if spec.origin.kind == "torch"), None)
    if torch is not None:
        return _reserved(name, torch, free, policy)
    if pin is not None:
        return _pinned(name, *pin, free)
    if not free:
        return ()
    process = next((spec for spec in free if spec.origin.kind == "process"), None)
    if process is not None:
        return _won(process, free, "what this process registers comes before what is installed")
    providers = {normalise(spec.origin.distribution or ""): spec.origin for spec in free}
    if len(providers) == 1:
        return _won(free[0], free, "nothing else provides the name")
    first = free[0].origin.distribution
    both = " and ".join(str(origin) for origin in providers.values())
    return Conflict(
        f"{both} all provide {name!r}",
        f'choose one in backbay.toml, [pin] {name} = "{first}", or with BACKBAY_PIN={name}={first}',
    )


def _reserved(
    name: str, torch: BackendSpec, free: list[BackendSpec], policy: Policy
) -> tuple[Candidate, ...] | Conflict:
    pin = policy.pinned(name)
    if pin is not None and not _is_from(torch.origin, pin[0]):
        return Conflict(
            f"{pin[1]} pins {name!r} to {pin[0]}, but the name is torch's own, which nobody can "
            "take",
            "remove the pin, and publish that backend under another name",
        )
    winner, *lost = _won(torch, free, "the names of torch's own backends are reserved")
    # Torch's bridges (tvm, openxla) have no code of their own to speak of: they run another's.
    led_to = map(required_name, torch.requires.distributions)
    reasons = (policy.why_blocked(distribution) for distribution in led_to)
    why = next((why for why in reasons if why is not None), None)
    return (winner if why is None else Candidate(torch, "blocked", why), *lost)


def _pinned(
    name: str, where: str, source: str, free: list[BackendSpec]
) -> tuple[Candidate, ...] | Conflict:
    chosen = next((spec for spec in free if _is_from(spec.origin, where)), None)
    if chosen is not None:
        return _won(chosen, free, f"{source} pins it to {where}")
    return Conflict(
        f"{source} pins {name!r} to {where}, which does not provide it here",
        f"install {where}, allow it, or change the pin",
    )


def _is_from(origin: Origin, where: str) -> bool:
    if origin.kind == "process":
        return where == PROCESS
    return normalise(origin.distribution or "") == normalise(where)


def _won(winner: BackendSpec, free: list[BackendSpec], rule: str) -> tuple[Candidate, ...]:
    others = (spec for spec in free if spec is not winner)
    lost = (Candidate(x, "shadowed", f"{winner.origin} wins: {rule}") for x in others)
    return (Candidate(winner, "wins", rule), *lost)
