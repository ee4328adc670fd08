"""Does a backend run here, and if not, why and what to do: decided without importing it."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from backbay.registry.distributions import required_name
from backbay.registry.environment import Environment
from backbay.registry.resolution import Resolution
from backbay.registry.spec import BackendSpec, KnownFault, Requirements, names_an_attribute

_UNREADABLE = (ValueError, RecursionError)
"""What packaging raises for what it cannot read; the latter for markers in very many brackets."""

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


def of_resolution(
    resolution: Resolution, environment: Environment, device: str | None = None
) -> Availability:
    """Whether what a name resolves to runs here."""
    first = resolution.candidates[0]
    if resolution.conflict is not None:
        conflict = resolution.conflict
        return Availability(state="blocked", reason=conflict.reason, remedy=conflict.remedy)
    if resolution.standing == "blocked":
        remedy = "allow it there, or use another backend"
        return Availability(state="blocked", reason=first.why, remedy=remedy)
    return check(first.spec, environment, device)


def check(spec: BackendSpec, environment: Environment, device: str | None = None) -> Availability:
    """Check a backend's stated requirements against an environment.

    Args:
        spec: the backend.
        environment: what the machine offers.
        device: the device type to compile for. Without it the backend is ready where it can be used
            with any device that is here.
    """
    asked = _Asked(spec, environment, device)
    checks: tuple[Callable[[], Availability | None], ...] = (
        asked.removed,
        asked.provider,
        asked.entry_point,
        asked.distributions,
        asked.versions,
        asked.torch,
        asked.faults,
        asked.platform,
        asked.devices,
        asked.modules,
        asked.variables,
        asked.tools,
    )
    found = (test() for test in checks)
    problem = next((x for x in found if x is not None), None)
    if problem is not None:
        return problem
    if spec.requires == Requirements():
        ready = "nothing is stated that it would need; it was not loaded"
    else:
        ready = "its stated requirements hold; it was not loaded"
    return Availability(state="ready", reason=ready)


def is_absent(spec: BackendSpec, environment: Environment) -> bool:
    """Whether there is nothing to load: what provides it, or what it needs, is not installed.

    What is there and would not run (no device, no compiler, known to be broken) can be loaded.
    """
    asked = _Asked(spec, environment, None)
    found = (asked.removed(), asked.provider(), asked.distributions(), asked.modules())
    return any(x is not None and x.state == "not_installed" for x in found)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question: does this backend run in this environment, for this device."""

    spec: BackendSpec
    environment: Environment
    device: str | None

    def removed(self) -> Availability | None:
        if self.spec.loading != "removed":
            return None
        fault = next(iter(self.spec.broken), None)
        reason = fault.reason if fault else "PyTorch no longer has it"
        remedy = (fault.remedy if fault else "") or "use another backend: see `backbay list`"
        return Availability(state="not_installed", reason=reason, remedy=remedy)

    def provider(self) -> Availability | None:
        """Check that whoever provides it is installed, and that it publishes the name."""
        origin = self.spec.origin
        if origin.kind == "torch" and origin.version is None:
            return _not_installed("PyTorch", "pip install torch")
        if origin.kind != "catalogue" or origin.distribution is None:
            return None
        remedy = self.spec.install or f"pip install {origin.distribution}"
        found = self.environment.installed.find(origin.distribution)
        if found is None:
            return _not_installed(origin.distribution, remedy)
        reason = f"{found.name} {found.version} is installed and publishes no backend of this name"
        return Availability(state="wrong_version", reason=reason, remedy=f"{remedy} --upgrade")

    def torch(self) -> Availability | None:
        """Check that PyTorch is installed, which every backend needs."""
        if self.environment.torch_build.get("__version__") is not None:
            return None
        return _not_installed("PyTorch", "pip install torch")

    def entry_point(self) -> Availability | None:
        published = self.spec.origin.entry_point
        if published is None or names_an_attribute(published):
            return None
        return Availability(
            state="broken",
            reason=f"its entry point {published!r} is not of the form module:attribute",
            remedy=f"report it to {self.spec.origin}",
        )

    def distributions(self) -> Availability | None:
        checked = (self._distribution(line) for line in self.spec.requires.distributions)
        return next((found for found in checked if found is not None), None)

    def _distribution(self, line: str) -> Availability | None:
        name = required_name(line)
        if not name:
            return self._unreadable(line, ValueError("it names no distribution"))
        remedy = self.spec.install or f"pip install '{line}'"
        found = self.environment.installed.find(name)
        absent = None if found is not None else _not_installed(name, remedy)
        if name == line.strip() or (absent is not None and ";" not in line):
            return absent
        # Imported here: it is a large part of what a listing would cost, and most names are absent.
        from packaging.requirements import Requirement  # noqa: PLC0415

        try:
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate():
                return None
            fits = found is not None and requirement.specifier.contains(
                found.version, prereleases=True
            )
        except _UNREADABLE as error:
            return self._unreadable(line, error)
        if found is None or fits:
            return absent
        return _wrong(found.name, found.version, line, remedy)

    def versions(self) -> Availability | None:
        torch = self.environment.torch_build.get("__version__")
        python = ".".join(map(str, sys.version_info[:3]))
        wanted = (
            ("torch", torch, self.spec.requires.torch),
            ("Python", python, self.spec.requires.python),
        )
        for what, version, specifier in wanted:
            if specifier is None or version is None:
                continue
            try:
                fits = _fits(version, specifier)
            except _UNREADABLE as error:
                return self._unreadable(specifier, error)
            if not fits:
                remedy = f"use it with {what}{specifier}"
                return _wrong(what, version, f"{what}{specifier}", remedy)
        return None

    def faults(self) -> Availability | None:
        fault = next(matching(self.spec.broken, self.spec, self.environment), None)
        if fault is None:
            return None
        remedy = fault.remedy or "use another backend: see `backbay list`"
        return Availability(state="broken", reason=fault.reason, remedy=remedy)

    def platform(self) -> Availability | None:
        wanted = self.spec.requires.platforms
        if not wanted:
            return None
        here = f"{sys.platform}-{_machine()}"
        if any(here == x or here.startswith(f"{x}-") for x in wanted):
            return None
        remedy = f"run it on {_either(wanted)}"
        return Availability(
            state="no_device",
            reason=f"it runs on {_either(wanted)}, and this is {here}",
            remedy=remedy,
        )

    def devices(self) -> Availability | None:
        needed = self.spec.requires.devices or self.spec.traits.devices or ()
        if not needed:
            return None
        if self.device and self.device not in needed:
            reason = f"it compiles for {_either(needed)}, not for {self.device}"
            return Availability(
                state="no_device", reason=reason, remedy=f"use it with --device {needed[0]}"
            )
        wanted = (self.device,) if self.device else needed
        reasons = {x: self.environment.devices.get(x, f"no {x} device") for x in wanted}
        if not all(reasons.values()):
            return None
        name, reason = next(iter(reasons.items()))
        return Availability(
            state="no_device",
            reason=f"it needs {_either(wanted)}: {reason}",
            remedy=f"run it on a machine with a {name} device and a PyTorch built for it",
        )

    def modules(self) -> Availability | None:
        from backbay.registry.target import module_exists  # noqa: PLC0415 (few backends ask)

        missing = [x for x in self.spec.requires.modules if not module_exists(x)]
        if not missing:
            return None
        remedy = self.spec.install or f"install what provides {missing[0]}"
        return _not_installed(f"the module {missing[0]}", remedy)

    def variables(self) -> Availability | None:
        missing = [x for x in self.spec.requires.environment if not os.environ.get(x)]
        if not missing:
            return None
        return Availability(
            state="broken",
            reason=f"the environment variable {missing[0]} is not set",
            remedy=f"set {missing[0]}"
            + (f": see {self.spec.homepage}" if self.spec.homepage else ""),
        )

    def tools(self) -> Availability | None:
        target = self.device or self.environment.default_device
        for where, tool in self.spec.requires.tools:
            missing = self.environment.missing_tool(tool) if where == target else None
            if missing is not None:
                return Availability(state="not_installed", reason=missing[0], remedy=missing[1])
        return None

    def _unreadable(self, requirement: str, error: Exception) -> Availability:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        return Availability(
            state="broken",
            reason=f"its requirement {requirement!r} cannot be read: {why}",
            remedy=f"report it to {self.spec.origin}",
        )


def matching(
    faults: tuple[KnownFault, ...], spec: BackendSpec, environment: Environment
) -> Iterator[KnownFault]:
    """Yield the known faults that concern the versions installed here."""
    torch = environment.torch_build.get("__version__")
    for fault in faults:
        version = _provider_version(spec, environment)
        try:
            if _concerns(torch, fault.torch) and _concerns(version, fault.version):
                yield fault
        except _UNREADABLE:  # what cannot be read concerns nobody; check-manifest says so
            continue


def _provider_version(spec: BackendSpec, environment: Environment) -> str | None:
    if spec.origin.kind == "distribution":
        return spec.origin.version
    # Of torch's own bridges to others (tvm, openxla), the version is the other's.
    lines = [*spec.requires.distributions, spec.origin.distribution or ""]
    found = (environment.installed.find(required_name(line)) for line in lines)
    return next((x.version for x in found if x is not None and x.name != "torch"), None)


def _concerns(version: str | None, specifier: str | None) -> bool:
    if specifier is None:
        return True
    return version is not None and _fits(version, specifier)


def _fits(version: str, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 (as above)

    return SpecifierSet(specifier).contains(version, prereleases=True)


def _not_installed(what: str, remedy: str) -> Availability:
    return Availability(state="not_installed", reason=f"{what} is not installed", remedy=remedy)


def _wrong(name: str, version: str, requirement: str, remedy: str) -> Availability:
    reason = f"{name} {version} is installed, {requirement} is needed"
    return Availability(state="wrong_version", reason=reason, remedy=remedy)


def _machine() -> str:
    machine = (
        os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "")
    )
    return {"AMD64": "x86_64", "amd64": "x86_64"}.get(machine, machine)


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(names)
