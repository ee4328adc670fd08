"""Does a backend run here, and if not, why and what to do: decided without importing it."""

import re
from dataclasses import dataclass
from typing import Literal

from backbay.registry.environment import Environment
from backbay.registry.spec import BackendSpec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

State = Literal["ready", "not_installed", "wrong_version", "no_device", "blocked", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether a backend runs here."""

    state: State

    reason: str
    """Why it is in that state; one line, never empty."""

    remedy: str = ""
    """What to do about it; empty only where it is ready."""

    @property
    def ready(self) -> bool:
        """Whether it can be used."""
        return self.state == "ready"


def check(spec: BackendSpec, environment: Environment, device: str | None = None) -> Availability:
    """Check a backend's stated requirements against an environment.

    Args:
        spec: the backend.
        environment: what the machine offers.
        device: the device type to compile for. Without it the backend is ready where it can be used
            with any device that is here.
    """
    return (
        _distributions(spec, environment)
        or _device(spec, environment, device)
        or _tools(spec, environment, device)
        or Availability(state="ready", reason=_why_ready(spec))
    )


def _distributions(spec: BackendSpec, environment: Environment) -> Availability | None:
    checked = (_distribution(spec, environment, line) for line in spec.requires.distributions)
    return next((found for found in checked if found is not None), None)


def _distribution(
    spec: BackendSpec, environment: Environment, requirement: str
) -> Availability | None:
    remedy = spec.install or f"pip install '{requirement}'"
    name = _NAME.match(requirement)
    if name is None:
        return _broken(spec, requirement, "it names no distribution")
    found = environment.installed.find(name[0])
    if found is None:
        reason = f"{name[0]} is not installed"
        return Availability(state="not_installed", reason=reason, remedy=remedy)
    try:
        if _fits(found.version, requirement):
            return None
    except ValueError as error:
        return _broken(spec, requirement, str(error).splitlines()[0])
    reason = f"{found.name} {found.version} is installed, {requirement} is needed"
    return Availability(state="wrong_version", reason=reason, remedy=remedy)


def _broken(spec: BackendSpec, requirement: str, why: str) -> Availability:
    return Availability(
        state="broken",
        reason=f"its requirement {requirement!r} cannot be read: {why}",
        remedy=f"report it to {spec.origin}",
    )


def _fits(version: str, requirement: str) -> bool:
    # Imported here: it is a large part of what a listing would cost, and most names are absent.
    from packaging.requirements import Requirement  # noqa: PLC0415

    return Requirement(requirement).specifier.contains(version, prereleases=True)


def _device(spec: BackendSpec, environment: Environment, device: str | None) -> Availability | None:
    wanted = [device] if device else list(spec.requires.devices)
    if not spec.requires.devices or not wanted:
        return None
    if device and device not in spec.requires.devices:
        return Availability(
            state="no_device",
            reason=f"it compiles for {_either(spec.requires.devices)}, not for {device}",
            remedy=f"use it with --device {spec.requires.devices[0]}",
        )
    reasons = {name: environment.devices.get(name, f"no {name} device") for name in wanted}
    if not all(reasons.values()):
        return None
    name, reason = next(iter(reasons.items()))
    return Availability(
        state="no_device",
        reason=f"it needs {_either(tuple(wanted))}: {reason}",
        remedy=f"run it on a machine with a {name} device and a PyTorch built for it",
    )


def _tools(spec: BackendSpec, environment: Environment, device: str | None) -> Availability | None:
    target = device or environment.default_device
    for where, tool in spec.requires.tools:
        missing = environment.missing_tool(tool) if where == target else None
        if missing is not None:
            return Availability(state="not_installed", reason=missing[0], remedy=missing[1])
    return None


def _why_ready(spec: BackendSpec) -> str:
    if spec.requires == type(spec.requires)():
        return "nothing is stated that it would need; it was not loaded"
    return "its stated requirements hold; it was not loaded"


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(names)
