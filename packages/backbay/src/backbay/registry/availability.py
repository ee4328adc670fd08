"""Does a backend run here, and if not, why and what to do: decided without importing it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from backbay.registry.distributions import required_name
from backbay.registry.environment import Environment
from backbay.registry.resolution import Resolution
from backbay.registry.spec import BackendSpec, KnownFault, Requirements, names_an_attribute

if TYPE_CHECKING:
    from packaging.markers import Marker

_UNREADABLE = (ValueError, RecursionError)
"""What packaging raises for what it cannot read; the latter for markers in very many brackets."""

_ANOTHER = "use another backend: see `backbay list`"

State = Literal[
    "ready", "not_installed", "wrong_version", "no_device", "blocked", "broken", "unknown"
]


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
    problem = next(_Asked(spec, environment, device).problems(), None)
    if problem is not None:
        return problem
    declared = "it declares no requirements"
    if spec.requires != Requirements():
        declared = "its declared requirements hold"
    return Availability(state="ready", reason=f"ready as declared; not tried: {declared}")


def fits_machine(spec: BackendSpec, environment: Environment) -> bool:
    """Whether this is a platform, with a device, that a backend runs on, installed or not."""
    asked = _Asked(spec, environment, None)
    return not [*asked.platform(), *asked.devices()]


def is_absent(spec: BackendSpec, environment: Environment) -> bool:
    """Whether there is nothing to load: what provides it, or what it needs, is not installed.

    What is there and would not run (no device, no compiler, known to be broken) can be loaded.
    """
    asked = _Asked(spec, environment, None)
    checks = (asked.removed(), asked.provider(), asked.distributions(), asked.modules())
    found = (next(problems, None) for problems in checks)
    return any(x is not None and x.state == "not_installed" for x in found)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question: does this backend run in this environment, for this device."""

    spec: BackendSpec
    environment: Environment
    device: str | None

    def problems(self) -> Iterator[Availability]:
        """Yield what is in the way, in the order in which it has to be mended."""
        yield from self.removed()
        yield from self.provider()
        yield from self.entry_point()
        yield from self.distributions()
        if self.environment.torch_build.get("__version__") is None:
            yield _not_installed("PyTorch", "pip install torch")  # which every backend needs
        for fault in matching(self.spec.broken, self.spec, self.environment):
            remedy = fault.remedy or _ANOTHER
            yield Availability(state="broken", reason=fault.reason, remedy=remedy)
        yield from self.versions()
        yield from self.platform()
        yield from self.devices()
        yield from self.modules()
        yield from self.variables()
        yield from self.tools()
        yield from self.target()  # last: it looks through sys.path

    def removed(self) -> Iterator[Availability]:
        if self.spec.loading == "removed":
            fault = next(iter(self.spec.broken), None)
            reason = fault.reason if fault else "PyTorch no longer has it"
            remedy = (fault.remedy if fault else "") or _ANOTHER
            yield Availability(state="not_installed", reason=reason, remedy=remedy)

    def provider(self) -> Iterator[Availability]:
        """Check that whoever provides it is installed, and that it publishes the name."""
        origin = self.spec.origin
        if origin.kind == "torch" and origin.version is None:
            yield _not_installed("PyTorch", "pip install torch")
        if origin.kind != "catalogue" or origin.distribution is None:
            return
        remedy = self._install or f"pip install {origin.distribution}"
        found = self.environment.installed.find(origin.distribution)
        if found is None:
            yield self._absent(origin.distribution, remedy)
            return
        reason = f"{found.name} {found.version} is installed and publishes no backend of this name"
        yield Availability(state="wrong_version", reason=reason, remedy=f"{remedy} --upgrade")

    def entry_point(self) -> Iterator[Availability]:
        published = self.spec.origin.entry_point
        if published is not None and not names_an_attribute(published):
            yield Availability(
                state="broken",
                reason=f"its entry point {published!r} is not of the form module:attribute",
                remedy=f"report it to {self.spec.origin}",
            )

    def distributions(self) -> Iterator[Availability]:
        for line in self.spec.requires.distributions:
            problem = self._distribution(line)
            if problem is not None:
                yield problem

    def _distribution(self, line: str) -> Availability | None:
        name = required_name(line)
        if not name:
            return self._unreadable(line, ValueError("it names no distribution"))
        remedy = self._install or f"pip install '{line}'"
        found = self.environment.installed.find(name)
        absent = None if found is not None else self._absent(name, remedy)
        if name == line.strip() or (absent is not None and ";" not in line):
            return absent
        # Imported here: it is a large part of what a listing would cost, and most names are absent.
        from packaging.requirements import Requirement  # noqa: PLC0415

        try:
            requirement = Requirement(line)
            if requirement.marker is not None and not self._holds(requirement.marker):
                return None
            fits = found is not None and requirement.specifier.contains(
                found.version, prereleases=True
            )
        except _UNREADABLE as error:
            return self._unreadable(line, error)
        if found is None or fits:
            return absent
        return _wrong(found.name, found.version, line, remedy)

    def _holds(self, marker: "Marker") -> bool:
        said = self.environment.interpreter.markers
        return marker.evaluate(None if said is None else dict(said))

    @property
    def _install(self) -> str | None:
        return self.spec.install_beside(self.environment.torch_build.get("__version__"))

    def _absent(self, name: str, remedy: str) -> Availability:
        """Return that a distribution is not installed; nobody is sent to install what won't run."""
        torch = self.environment.torch_build.get("__version__")
        absent = _not_installed(name, remedy)
        if "{torch}" in (self.spec.install or ""):  # it installs the one that fits
            return absent
        for fault in self.spec.broken:
            if fault.torch is None or torch is None or not _concerns(torch, fault.torch):
                continue
            beside = f"what pip installs does not run beside torch {torch}: {fault.reason}"
            reason = f"{absent.reason}, and {beside}"
            return replace(absent, reason=reason, remedy=fault.remedy or _ANOTHER)
        return absent

    def versions(self) -> Iterator[Availability]:
        torch = self.environment.torch_build.get("__version__")
        wanted = (
            ("torch", torch, self.spec.requires.torch),
            ("Python", self.environment.interpreter.version, self.spec.requires.python),
        )
        for what, version, specifier in wanted:
            if specifier is None or version is None:
                continue
            try:
                fits = _fits(version, specifier)
            except _UNREADABLE as error:
                yield self._unreadable(specifier, error)
                continue
            if not fits:
                remedy = f"use it with {what}{specifier}"
                yield _wrong(what, version, f"{what}{specifier}", remedy)

    def platform(self) -> Iterator[Availability]:
        wanted = self.spec.requires.platforms
        if not wanted:
            return
        here = self.environment.interpreter.platform
        if not any(here == x or here.startswith(f"{x}-") for x in wanted):
            yield Availability(
                state="no_device",
                reason=f"it runs on {_either(wanted)}, and this is {here}",
                remedy=f"run it on {_either(wanted)}",
            )

    def devices(self) -> Iterator[Availability]:
        needed = self.spec.requires.devices or self.spec.traits.devices or ()
        if not needed:
            return
        if self.device and self.device not in needed:
            reason = f"it compiles for {_either(needed)}, not for {self.device}"
            remedy = f"move the model and its inputs to {needed[0]}, or {_ANOTHER}"
            yield Availability(state="no_device", reason=reason, remedy=remedy)
        wanted = (self.device,) if self.device else needed
        reasons = {x: self.environment.devices.get(x, f"no {x} device") for x in wanted}
        if "" in reasons.values():
            return
        if None in reasons.values():
            yield self._unknown(f"it needs {_either(wanted)}, and for what this PyTorch was built")
            return
        name, why = next(iter(reasons.items()))
        yield Availability(
            state="no_device",
            reason=f"it needs {_either(wanted)}: {why}",
            remedy=f"run it on a machine with a {name} device and a PyTorch built for it",
        )

    def modules(self) -> Iterator[Availability]:
        for module in self.spec.requires.modules:
            found = self.environment.has_module(module)
            if found is None:
                yield self._unknown(f"it needs the module {module}, and whether that is there")
            elif not found:
                remedy = self._install or f"install what provides {module}"
                yield _not_installed(f"the module {module}", remedy)

    def variables(self) -> Iterator[Availability]:
        see = f": see {self.spec.homepage}" if self.spec.homepage else ""
        for variable in self.spec.requires.environment:
            if not os.environ.get(variable):
                reason = f"the environment variable {variable} is not set"
                yield Availability(state="broken", reason=reason, remedy=f"set {variable}{see}")

    def tools(self) -> Iterator[Availability]:
        target = self.device or self.environment.default_device
        for where, tool in self.spec.requires.tools:
            missing = self.environment.missing_tool(tool) if where == target else None
            if missing is not None:
                yield Availability(state="not_installed", reason=missing[0], remedy=missing[1])

    def target(self) -> Iterator[Availability]:
        """Check that the module that is loaded is there, as far as that shows without an import.

        Of a submodule only its package is looked for: what that does to its own path, or to
        ``sys.modules``, only a probe can tell.
        """
        if self.spec.origin.kind != "distribution" or self.spec.target is None:
            return
        module = self.spec.target.partition(":")[0]
        package = module.partition(".")[0]
        found = self.environment.has_module(package)
        part = f"the module {package!r}" if package == module else f"the package {package!r}"
        loaded = f"it is loaded from {self.spec.target!r}, and"
        if found is None:
            yield self._unknown(f"{loaded} whether {part} is there")
        elif not found:
            yield Availability(
                state="broken",
                reason=f"{loaded} {part} is not there",
                remedy=f"install {self.spec.origin.distribution} again, or report it to them",
            )

    def _unknown(self, what: str) -> Availability:
        python = self.environment.interpreter.executable
        return Availability(
            state="unknown",
            reason=f"{what} only code of an editable installation tells, which is not run",
            remedy=f"install Backbay there too, and run {python} -m backbay doctor",
        )

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


def shown(error: str, spec: BackendSpec, environment: Environment) -> KnownFault | None:
    """Return the known fault that an error's text shows, if there is one with a remedy."""
    known = matching((*spec.broken, *spec.limits), spec, environment)
    return next((x for x in known if x.remedy and any(y in error for y in x.errors)), None)


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


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(names)
