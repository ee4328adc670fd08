"""Which of several claimants gets a name, and by which rule. Pure: it looks nothing up."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

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
        """Say both on one line."""
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
    def winner(self) -> BackendSpec | None:
        """Return what the name resolves to, runnable or not; nothing where claimants contend."""
        first = self.candidates[0]
        return None if first.standing == "contends" else first.spec

    @property
    def blocked(self) -> bool:
        """Whether every provider of the name is blocked."""
        return self.candidates[0].standing == "blocked"

    @property
    def spec(self) -> BackendSpec:
        """Return the winner; where there is none, the first claimant, to have something to show."""
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
        why = _why_blocked(spec, policy)
        if why is not None:
            blocked.append(Candidate(spec, "blocked", why))
        elif spec.origin.kind == "catalogue":
            absent.append(Candidate(spec, "absent", "only known from the catalogue: not installed"))
        else:
            free.append(spec)
    decided, conflict = _decide(name, free, policy)
    if not free and policy.pinned(name) is not None:
        conflict = _unmet_pin(name, policy)
    ordered = (*decided, *blocked, *absent)
    if conflict is not None and not decided:
        ordered = tuple(Candidate(x.spec, "contends", str(conflict)) for x in ordered)
    return Resolution(name, ordered, conflict)


def _why_blocked(spec: BackendSpec, policy: Policy) -> str | None:
    # torch's own and what this process registered are there already: there is no code to keep out.
    if spec.origin.kind != "distribution" or spec.origin.distribution is None:
        return None
    return policy.why_blocked(spec.origin.distribution)


def _decide(
    name: str, free: list[BackendSpec], policy: Policy
) -> tuple[tuple[Candidate, ...], Conflict | None]:
    if not free:
        return (), None
    torch = next((spec for spec in free if spec.origin.kind == "torch"), None)
    if torch is not None:
        return _reserved(name, torch, free, policy)
    if policy.pinned(name) is not None:
        return _pinned(name, free, policy)
    process = next((spec for spec in free if spec.origin.kind == "process"), None)
    if process is not None:
        rule = "what this process registers comes before what is installed"
        return _won(process, free, rule), None
    providers = {normalise(spec.origin.distribution or ""): spec.origin for spec in free}
    if len(providers) > 1:
        conflict = _contention(name, list(providers.values()))
        return _contending(free, conflict), conflict
    return _won(free[0], free, "nothing else provides the name"), None


def _reserved(
    name: str, torch: BackendSpec, free: list[BackendSpec], policy: Policy
) -> tuple[tuple[Candidate, ...], Conflict | None]:
    pin = policy.pinned(name)
    if pin is None or _is_from(torch.origin, pin[0]):
        won = _won(torch, free, "the names of torch's own backends are reserved")
        why = _why_led_to_is_blocked(torch, policy)
        return (won if why is None else (Candidate(torch, "blocked", why), *won[1:])), None
    conflict = Conflict(
        f"{pin[1]} pins {name!r} to {pin[0]}, but the name is torch's own, which nobody can take",
        "remove the pin, and publish that backend under another name",
    )
    return _contending(free, conflict), conflict


def _why_led_to_is_blocked(torch: BackendSpec, policy: Policy) -> str | None:
    # Torch's bridges (tvm, openxla) have no code of their own to speak of: they run another's.
    led_to = map(required_name, torch.requires.distributions)
    reasons = (policy.why_blocked(distribution) for distribution in led_to)
    return next((why for why in reasons if why is not None), None)


def _pinned(
    name: str, free: list[BackendSpec], policy: Policy
) -> tuple[tuple[Candidate, ...], Conflict | None]:
    pin = policy.pinned(name)
    assert pin is not None
    chosen = next((spec for spec in free if _is_from(spec.origin, pin[0])), None)
    if chosen is None:
        conflict = _unmet_pin(name, policy)
        return _contending(free, conflict), conflict
    return _won(chosen, free, f"{pin[1]} pins it to {pin[0]}"), None


def _unmet_pin(name: str, policy: Policy) -> Conflict:
    pin = policy.pinned(name)
    assert pin is not None
    return Conflict(
        f"{pin[1]} pins {name!r} to {pin[0]}, which does not provide it here",
        f"install {pin[0]}, allow it, or change the pin",
    )


def _is_from(origin: Origin, where: str) -> bool:
    if origin.kind == "process":
        return where == PROCESS
    return normalise(origin.distribution or "") == normalise(where)


def _won(winner: BackendSpec, free: list[BackendSpec], rule: str) -> tuple[Candidate, ...]:
    others = (spec for spec in free if spec is not winner)
    lost = (Candidate(x, "shadowed", f"{winner.origin} wins: {rule}") for x in others)
    return (Candidate(winner, "wins", rule), *lost)


def _contending(free: list[BackendSpec], why: Conflict) -> tuple[Candidate, ...]:
    return tuple(Candidate(spec, "contends", str(why)) for spec in free)


def _contention(name: str, origins: list[Origin]) -> Conflict:
    first = origins[0].distribution
    both = " and ".join(str(origin) for origin in origins)
    return Conflict(
        f"{both} all provide {name!r}",
        f'choose one in backbay.toml, [pin] {name} = "{first}", or with BACKBAY_PIN={name}={first}',
    )


def group(
    specs: Iterable[BackendSpec], key: Callable[[BackendSpec], str] = lambda spec: spec.name
) -> dict[str, list[BackendSpec]]:
    """Put claimants together by the name that they claim, in the order found."""
    by_name: dict[str, list[BackendSpec]] = {}
    for spec in specs:
        by_name.setdefault(key(spec), []).append(spec)
    return by_name
