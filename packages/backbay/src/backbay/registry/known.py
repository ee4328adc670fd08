"""Every known backend name: who claims it, who gets it, whether it runs here. Loads nothing."""

import functools
from collections.abc import Iterable, Sequence
from typing import Literal

from backbay.errors import BackendNotFound, BackendUnavailable, InputError
from backbay.registry import bridge, discovery
from backbay.registry.availability import Availability, of_resolution
from backbay.registry.environment import Environment
from backbay.registry.policy import Policy, active, standing_policy
from backbay.registry.resolution import Resolution, resolve
from backbay.registry.spec import FOR_TESTS, BackendSpec, Origin

HIDDEN_TAGS = ("debug", "experimental")

Collected = Literal["devices", "dtypes", "options", "reserved_launch_param_names", "tags"]


class KnownBackends:
    """What torch, the catalogue and the installed distributions know by name.

    It is all that is to be known of another interpreter's environment; a `Registry` has what its
    process registered, too.
    """

    def __init__(
        self, environment: Environment | None = None, *, standing: Policy | None = None
    ) -> None:
        self._given_environment = environment
        self._given_standing = standing
        self._completed: dict[tuple[str, Origin], BackendSpec] = {}

    @functools.cached_property
    def environment(self) -> Environment:
        """What backends are checked against; looked at once, and again after ``refresh``."""
        return self._given_environment or Environment.current()

    @functools.cached_property
    def _standing(self) -> Policy:
        return self._given_standing or standing_policy()

    @functools.cached_property
    def _standing_discovered(self) -> discovery.Discovered:
        return discovery.discover(self.environment, self._standing.why_blocked)

    @property
    def _discovered(self) -> discovery.Discovered:
        if not active.get():
            return self._standing_discovered
        # A context may block, or allow, whose manifest is read; what it says ends with it.
        return discovery.discover(self.environment, self.policy.why_blocked)

    @property
    def policy(self) -> Policy:
        """What is blocked, pinned and required here, context managers included."""
        return self._standing.with_layers(active.get())

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read of distributions and manifests; one line each, who is named."""
        return tuple(self._discovered.problems)

    def resolutions(self) -> dict[str, Resolution]:
        """Return what became of every known name, sorted by name.

        It is what a listing needs: of Backbay's own backends the options may be missing, which
        `resolution`, `spec` and `specs` have.
        """
        by_name: dict[str, list[BackendSpec]] = {}
        for spec in self._claimants():
            by_name.setdefault(spec.name, []).append(spec)
        here = self.policy
        return {name: resolve(name, by_name[name], here) for name in sorted(by_name)}

    def resolution(self, name: str) -> Resolution:
        """Return what became of one name: every claimant, and which won by which rule.

        Raises:
            BackendNotFound: nobody knows the name; the message gives the nearest one.
        """
        claimants = [self._with_options(spec) for spec in self._claimants() if spec.name == name]
        if not claimants:
            raise self._not_found(name)
        return resolve(name, claimants, self.policy)

    def candidates(self, name: str) -> tuple[BackendSpec, ...]:
        """Return everything that claims a name, winner first; nothing where nobody does."""
        try:
            return tuple(x.spec for x in self.resolution(name).candidates)
        except BackendNotFound:
            return ()

    def specs(self) -> dict[str, BackendSpec]:
        """Return the spec of each known name, the absent included, sorted by name."""
        return {name: self._with_options(x.spec) for name, x in self.resolutions().items()}

    def spec(self, name: str) -> BackendSpec:
        """Return the spec of what a name resolves to, runnable here or not.

        Raises:
            BackendNotFound: nobody knows the name; the message gives the nearest one.
            BackendConflict: several claim it, and no rule decides.
        """
        return self.resolution(name).winner

    def list_backends(
        self,
        exclude_tags: Sequence[str] | None = HIDDEN_TAGS,
        *,
        tags: Sequence[str] | None = None,
        available: bool = False,
    ) -> list[str]:
        """List names that ``torch.compile(backend=...)`` takes, without importing torch.

        Args:
            exclude_tags: backends that carry one of these tags are left out. Default: ``debug`` and
                ``experimental``, but where ``tags`` are given nothing.
            tags: only backends that carry one of these are listed; default: all.
            available: whether to leave out what does not run here, as far as that is known. Torch's
                list, and this one by default, has some names whose packages are not installed.

        Raises:
            InputError: no backend carries one of ``tags``; the message gives the nearest tag.
        """
        if tags is not None:
            self.check_tags(tags)
            exclude_tags = () if exclude_tags is HIDDEN_TAGS else exclude_tags
        hidden = set(exclude_tags or ())
        return [
            name
            for name, x in self.resolutions().items()
            if x.standing not in {"absent", "blocked"}
            and x.spec.loading != "callable"  # torch has no name for it
            and not hidden.intersection(x.spec.tags)
            and (tags is None or set(tags).intersection(x.spec.tags))
            and (not available or of_resolution(x, self.environment).ready)
        ]

    def tags(self) -> set[str]:
        """Return the tags that known backends carry, the absent included."""
        return {tag for x in self.resolutions().values() for tag in x.spec.tags}

    def check_tags(self, tags: Iterable[str]) -> None:
        """Check that each tag is one that some known backend carries.

        Raises:
            InputError: nobody carries one of them; the message gives the nearest.
        """
        known = sorted(self.tags())
        for tag in (x for x in tags if x not in known):
            close = _close(tag, known)
            hint = "" if close is None else f", did you mean: {close!r}?"
            raise InputError(
                f"no backend carries the tag {tag!r}{hint or '.'} There are {', '.join(known)}."
            )

    def availability(self, name: str, device: str | None = None) -> Availability:
        """Return whether a backend runs here, and if not, why and what to do.

        Args:
            name: the backend.
            device: the device type that it would compile for; default: any that is here.

        Raises:
            BackendNotFound: nobody knows the name.
        """
        return of_resolution(self.resolution(name), self.environment, device)

    def collect(self, what: Collected) -> frozenset[str]:
        """Return the union of one piece of metadata over all known backends, without loading any.

        Args:
            what: ``reserved_launch_param_names`` (which a kernel that is to be portable must not
                use), ``devices``, ``dtypes``, ``tags``, or ``options`` (their names).
        """
        return frozenset(value for spec in self.specs().values() for value in _pieces(spec, what))

    def require(self, name: str, device: str | None = None) -> BackendSpec:
        """Return a backend's spec, if it runs here.

        Raises:
            BackendNotFound: nobody knows the name.
            BackendConflict: several claim it, and no rule decides.
            BackendUnavailable: it is known and does not run here; the message says what to do.
        """
        resolution = self.resolution(name)
        spec = resolution.winner
        availability = of_resolution(resolution, self.environment, device)
        if availability.ready:
            return spec
        raise BackendUnavailable(
            f"backend {name!r} does not run here ({availability.state}): "
            f"{availability.reason}. What to do: {availability.remedy}."
        )

    def _with_options(self, spec: BackendSpec) -> BackendSpec:
        """Return a spec with the options that a listing leaves out."""
        origin = spec.origin
        if not discovery.has_options_apart(spec):
            return spec
        if self.policy.why_blocked(origin.distribution or "") is not None:
            return spec  # its manifest is not even read
        key = (spec.name, origin)
        if key not in self._completed:
            self._completed[key] = discovery.with_options(spec, self.environment)
        return self._completed[key]

    def _claimants(self) -> Iterable[BackendSpec]:
        installed = self._discovered.specs
        registered, in_torch = self._of_this_process()
        yield from (spec for spec in installed if spec.origin.kind == "torch")
        yield from registered
        yield from (spec for spec in installed if spec.origin.kind != "torch")
        # What others registered with torch, unless it is what is known here by other ways.
        known = {x.name for x in installed if x.origin.kind != "catalogue"}
        known |= {spec.name for spec in registered}
        yield from (spec for spec in in_torch if spec.name not in known)

    def _of_this_process(self) -> tuple[list[BackendSpec], list[BackendSpec]]:
        """Return what this process registered: here, and with torch by other ways."""
        return [], []

    def nearest(self, name: str) -> str | None:
        """Return the known name that is most like another one; nothing where none is like it."""
        return _close(name, [x for x in self.resolutions() if FOR_TESTS not in x])

    def _not_found(self, name: str) -> Exception:
        close = self.nearest(name)
        hint = "." if close is None else f", did you mean: {close!r}?"  # torch's words, from 2.15
        count = len(self.resolutions())
        return bridge.not_found(
            f"no backend named {name!r}{hint} {count} are known: see `backbay list --all`."
        )


def _close(word: str, known: Sequence[str]) -> str | None:
    from difflib import get_close_matches  # noqa: PLC0415 (only a mistake needs it)

    return next(iter(get_close_matches(word.lower(), known, n=1)), None)


def _pieces(spec: BackendSpec, what: Collected) -> Iterable[str]:
    if what == "devices":
        return spec.devices
    if what == "dtypes":
        return spec.traits.dtypes or ()
    if what == "options":
        return [x.name for x in spec.options] if isinstance(spec.options, tuple) else ()
    return getattr(spec, what) or ()
