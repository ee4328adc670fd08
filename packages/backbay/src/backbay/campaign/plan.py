"""What a campaign is to race: a TOML file, and the single races that it stands for."""

import hashlib
import itertools
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backbay.causes import of_file
from backbay.decisions import parse_arm
from backbay.errors import InputError
from backbay.race import Limits, Objective
from backbay.race.objective import Kind, parse_size
from backbay.ranges import check_seconds, check_seed
from backbay.registry import Registry, target
from backbay.workloads.reference import check
from backbay.workloads.setup import Mode, check_device, check_dtype, sizes


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One race: one workload, in one way."""

    workload: str
    """A reference."""
    size: str | None = None
    mode: Mode = "infer"
    dtype: str = "float32"
    device: str
    batch: int | tuple[int, ...] | None = None
    """Rows of its inputs, where they are others than its own; several are called in turn."""
    arms: tuple[str, ...]
    scopes: tuple[str, ...] = ("whole",)
    dynamic: bool | None = None
    fullgraph: bool = False
    objective: Objective = Objective()
    quick: bool = False
    seed: int = 0
    limits: Limits = Limits()

    @property
    def digest(self) -> str:
        """Of all that a race depends on and that this file says, own source files included."""
        named = [self.workload, *(parse_arm(x).backend for x in self.arms)]
        sources = [_content(x) for x in named]
        whole = msgspec.json.encode([self, sources])
        return hashlib.sha256(whole).hexdigest()[:12]


class _Table(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What may stand at the top, for all workloads, and in each of them, for it alone."""

    arms: list[str] | str | None = None
    size: list[str] | str | None = None
    mode: list[Mode] | Mode | None = None
    dtype: list[str] | str | None = None
    device: list[str] | str | None = None
    batch: list[int | tuple[int, ...]] | int | None = None
    scopes: list[str] | str | None = None
    dynamic: bool | None = None
    fullgraph: bool | None = None
    objective: Kind | None = None
    calls: int | None = None
    warm: bool | None = None
    memory_limit: str | None = None
    quick: bool | None = None
    jobs: int | None = None
    seed: int | None = None
    seconds: float | None = None
    timeout: float | None = None
    timing_limit: float | None = None


class _Workload(_Table, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    name: str


class _Document(_Table, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    workload: list[_Workload]


KEYS = _Workload.__struct_fields__
"""What may stand in a campaign's file."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign's races, in order."""

    name: str
    units: tuple[Unit, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm of any of them, in the order asked for."""
        return tuple(dict.fromkeys(arm for unit in self.units for arm in unit.arms))


def read(path: Path, registry: Registry) -> Plan:
    """Read a campaign, and check all of it before the first minute is spent.

    Raises:
        InputError: it can't be read, or names what does not exist; the message says where.
    """
    try:
        document = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _Document)
    except (OSError, ValueError) as error:  # TOML's and msgspec's own errors are ValueErrors
        raise InputError(f"{path} is no campaign: {of_file(path, error)}") from error
    if not document.workload:
        raise InputError(f"{path} names no workload: add [[workload]] with a name")
    units: list[Unit] = []
    for number, entry in enumerate(document.workload, 1):
        try:
            units += _units(document, entry, registry)
        except InputError as error:
            raise type(error)(f"{path}, workload {number} ({entry.name}): {error}") from error
    return Plan(name=path.stem, units=tuple(dict.fromkeys(units)))


def _units(document: _Document, entry: _Workload, registry: Registry) -> Iterator[Unit]:
    def given(name: str, default: Any) -> Any:
        values = (getattr(x, name) for x in (entry, document))
        value = next((x for x in values if x is not None), default)
        if value == []:
            raise InputError(f"{name} is an empty list: name one, or leave it out")
        return value

    limits = _limits(given)
    arms = tuple(str(parse_arm(x)) for x in _listed(given("arms", ())))
    if not arms:
        raise InputError("it has no arms: say arms = [...], here or at the top")
    check_seed(seed := given("seed", 0))
    ways = itertools.product(
        _listed(given("size", None)),
        _listed(given("mode", "infer")),
        _listed(given("dtype", "float32")),
        _listed(given("device", registry.environment.default_device)),
        _listed(given("batch", None)),
    )
    for size, mode, dtype, device, batch in ways:
        check(entry.name, size)
        check_dtype(dtype)
        check_device(device, registry)
        batch = sizes(batch)  # noqa: PLW2901 (as a setup has it)
        yield Unit(
            workload=entry.name,
            size=size,
            mode=mode,
            dtype=dtype,
            device=device,
            batch=batch,
            arms=arms,
            scopes=tuple(_listed(given("scopes", "whole"))),
            dynamic=given("dynamic", None),
            fullgraph=bool(given("fullgraph", None)),
            objective=_objective(given),
            quick=bool(given("quick", None)),
            seed=seed,
            limits=limits,
        )


def _objective(given: Callable[[str, Any], Any]) -> Objective:
    limit = given("memory_limit", None)
    return Objective(
        kind=given("objective", Objective().kind),
        calls=given("calls", None),
        warm=bool(given("warm", None)),
        memory_limit=None if limit is None else parse_size(limit),
    )


def _limits(given: Callable[[str, Any], Any]) -> Limits:
    usual = Limits()
    limits = Limits(
        backend_s=given("timeout", usual.backend_s),
        timing_s=given("seconds", usual.timing_s),
        whole_s=given("timing_limit", usual.whole_s),
        at_once=given("jobs", None),
    )
    for name, seconds in (
        ("timeout", limits.backend_s),
        ("seconds", limits.timing_s),
        ("timing_limit", limits.whole_s),
    ):
        check_seconds(name, seconds)
    if limits.at_once is not None and limits.at_once < 1:
        raise InputError(f"jobs is {limits.at_once}: at least one arm is compiled at a time")
    return limits


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _content(reference: str) -> str:
    """Return a digest of the file that a reference names; of an installed module there is none."""
    named = target.parse(reference)
    if named is None or not named.is_file:
        return ""
    try:
        return hashlib.sha256(Path(named.source).read_bytes()).hexdigest()
    except OSError:
        return "absent"
