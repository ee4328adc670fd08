"""Read a manifest: backends described as data, by the catalogue or by a distribution of its own.

The reader is one table of fields, from which the published JSON schema is made too. It takes
untrusted input: whatever it is given, it gives specs and problems, and never raises.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from backbay.registry.spec import (
    BACKEND_NAME_PATTERN,
    LONGEST_NAME,
    MOST_BACKENDS,
    NAME_PATTERN,
    OPTION_TYPES,
    TEXT_PATTERN,
    BackendSpec,
    KnownFault,
    Option,
    Origin,
    Requirements,
    Traits,
    name_problem,
)

VERSION = 1
LARGEST = 128 << 10
"""Bytes; the catalogue, with all that is known, has half of that."""
_LONGEST_TEXT = 2_000  # characters
_MOST_ITEMS = 256  # of one list
_MOST_PROBLEMS = 100  # that are told of one manifest
_DEEPEST = 8  # lists and tables within each other, as an option's default
_INTEGERS = range(-(1 << 63), 1 << 63)  # TOML's; Python's parser lets longer ones through

_PLATFORMS = ("linux", "darwin", "win32")


@dataclass(slots=True)
class Manifest:
    """What a manifest says."""

    specs: list[BackendSpec] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What could not be understood, with its place; what is left of the entry still counts."""

    names: set[str] = field(default_factory=set)
    """Those of the specs."""

    @property
    def full(self) -> bool:
        """Whether so many problems are known that no more are told."""
        return len(self.problems) >= _MOST_PROBLEMS

    def add_problem(self, what: str) -> None:
        """Add a problem; of very many, the first are enough."""
        if len(self.problems) == _MOST_PROBLEMS - 1:
            what = f"{what}; whatever else is wrong is not told"
        if not self.full:
            self.problems.append(what)


class _WrongError(ValueError):
    """A value is not what its field takes; the message says what is expected."""


@dataclass(frozen=True, slots=True)
class _Field:
    """One key: how its value is read, and how JSON schema says the same."""

    read: Callable[[Any], Any]
    schema: Mapping[str, Any]


def _string(pattern: str, wanted: str, longest: int = _LONGEST_TEXT) -> _Field:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= longest:
            raise _WrongError(f"must be {wanted} of 1 to {longest} characters")
        if re.search(pattern, value) is None or not _is_unicode(value):
            raise _WrongError(f"must be {wanted}")
        return value.strip()

    return _Field(read, {"type": "string", "maxLength": longest, "pattern": pattern})


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # halves of surrogate pairs, which no file of UTF-8 can hold
        return False
    return True


def _backend(value: Any) -> str:
    problem = name_problem(value) if isinstance(value, str) else "must be a name"
    if problem is not None:
        raise _WrongError(problem)
    return str(value)


def _list(item: _Field, wanted: str) -> _Field:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > _MOST_ITEMS:
            raise _WrongError(f"must be a list of at most {_MOST_ITEMS} {wanted}")
        return tuple(map(item.read, value))

    return _Field(read, {"type": "array", "maxItems": _MOST_ITEMS, "items": item.schema})


def _one_of(*choices: str) -> _Field:
    def read(value: Any) -> str:
        if value not in choices:
            raise _WrongError(f"must be one of {', '.join(choices)}")
        return str(value)

    return _Field(read, {"enum": list(choices)})


def _mapping_of(key: _Field, value: _Field) -> _Field:
    def read(given: Any) -> tuple[tuple[Any, Any], ...]:
        if not isinstance(given, dict):
            raise _WrongError("must be a table")
        return tuple((key.read(x), value.read(y)) for x, y in given.items())

    return _Field(read, _mapping(key, value.schema))


def _mapping(key: _Field, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "propertyNames": key.schema, "additionalProperties": values}


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongError("must be true or false")
    return value


def _scalar(value: Any) -> Any:
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT and _is_unicode(value):
        return value
    if isinstance(value, float) or (isinstance(value, int) and value in _INTEGERS):
        return value
    raise _WrongError("must be a plain value")


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise _WrongError(f"must not be deeper than {_DEEPEST} tables and lists")
    if isinstance(value, list):
        return [_plain(x, depth + 1) for x in value]
    if isinstance(value, dict):
        return {_scalar(key): _plain(x, depth + 1) for key, x in value.items()}
    return _scalar(value)


_SCALAR_TYPES = ["boolean", "number", "string"]
_PART = r" *(~=|===?|!=|<=?|>=?) *[0-9A-Za-z][0-9A-Za-z.!+_-]*(\.\*)? *"  # of a PEP 440 specifier
_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
_END = r"(?![\s\S])"  # "$" would let a line feed follow, in Python

_SCALAR = _Field(_scalar, {"type": _SCALAR_TYPES, "maxLength": _LONGEST_TEXT})
_FLAG = _Field(_flag, {"type": "boolean"})
_TEXT = _string(TEXT_PATTERN, "one line of text")
_NAME = _string(NAME_PATTERN, "a name without spaces", LONGEST_NAME)
_BACKEND = _Field(
    _backend, {"type": "string", "maxLength": LONGEST_NAME, "pattern": BACKEND_NAME_PATTERN}
)
_MODULE = _string(f"^{_DOTTED}{_END}", "a module's name")
_TARGET = _string(f"^{_DOTTED}:{_DOTTED}{_END}", "of the form module:attribute")
_PLATFORM = _string(
    f"^(linux|darwin|win32)(-[A-Za-z0-9_]+)?{_END}",
    "linux, darwin or win32, with -MACHINE or not,",
)
_SPECIFIER = _string(f"^{_PART}(,{_PART})*{_END}", "a PEP 440 specifier such as '>=2.11,<2.16'")
_NAMES = _list(_NAME, "names")

_TRAITS: Mapping[str, _Field] = {
    "devices": _NAMES,
    "dtypes": _NAMES,
    **dict.fromkeys(
        ("training", "dynamic_shapes", "mutation", "boxed", "mode", "options", "name"), _FLAG
    ),
    **dict.fromkeys(("run_to_run", "batch_invariant"), _FLAG),
}
_REQUIRES: Mapping[str, _Field] = {
    "distributions": _list(_TEXT, "PEP 508 requirements"),
    "torch": _SPECIFIER,
    "python": _SPECIFIER,
    "platforms": _list(_PLATFORM, "platforms"),
    "devices": _NAMES,
    "modules": _list(_MODULE, "modules"),
    "environment": _NAMES,
    "tools": _mapping_of(_NAME, _one_of("c++", "cc", "triton")),
}
_FAULT: Mapping[str, _Field] = {
    "torch": _SPECIFIER,
    "version": _SPECIFIER,
    "reason": _TEXT,
    "remedy": _TEXT,
    "errors": _list(_TEXT, "texts"),
}
_OPTION: Mapping[str, _Field] = {
    "type": _one_of(*OPTION_TYPES),
    "default": _Field(_plain, {"$ref": "#/$defs/plain"}),
    "choices": _list(_SCALAR, "plain values"),
    "help": _TEXT,
}


_ENTRY: Mapping[str, _Field] = {
    "name": _BACKEND,
    "summary": _TEXT,
    "registers": _one_of("torch", "entry_point", "import", "callable", "removed"),
    "distribution": _NAME,
    "module": _MODULE,
    "target": _TARGET,
    "factory": _FLAG,
    "aliases": _list(_BACKEND, "names"),
    "tags": _NAMES,
    "experimental": _FLAG,
    "homepage": _TEXT,
    "install": _TEXT,
    "further_options": _one_of("inductor"),
    "reserved_launch_param_names": _NAMES,
}
_TABLES = ("traits", "requires", "broken", "limits", "options")


def read(data: Any, origin_of: Callable[[str | None], Origin], *, declared_by: str) -> Manifest:
    """Read a manifest's data.

    Args:
        data: what its TOML holds: ``schema = 1`` and ``[[backend]]`` tables.
        origin_of: gives the origin of an entry, from the distribution that the entry names.
        declared_by: where the data is from, for the specs and the problems.
    """
    manifest = Manifest()
    if not isinstance(data, dict):
        manifest.add_problem(f"{declared_by}: not a table")
        return manifest
    if data.get("schema") != VERSION or isinstance(data.get("schema"), bool):
        manifest.add_problem(
            f"{declared_by}: schema = {_shown(data.get('schema'))} is not understood, "
            f"only schema = {VERSION}"
        )
        return manifest
    for key in data:
        if key not in {"schema", "backend"}:
            manifest.add_problem(f"{declared_by}: unknown key {_shown(key)}")
    entries = data.get("backend")
    if not isinstance(entries, list) or len(entries) > MOST_BACKENDS:
        wanted = f"must be a list of at most {MOST_BACKENDS} tables"
        manifest.add_problem(f"{declared_by}: backend {wanted}")
        return manifest
    for number, entry in enumerate(entries):
        reading = _Reading(f"{declared_by}: backend[{number}]", manifest)
        reading.add(entry, origin_of, declared_by)
    return manifest


@dataclass(slots=True)
class _Reading:
    """One entry being read."""

    place: str
    manifest: Manifest

    def add(self, entry: Any, origin_of: Callable[[str | None], Origin], declared_by: str) -> None:
        if not isinstance(entry, dict):
            self.problem("must be a table")
            return
        name = self._fields({key: entry[key] for key in ("name",) if key in entry}, _ENTRY, "")
        if not name:
            self.problem("has no usable name, and is left out")
            return
        self.place += f" ({name['name']})"
        known = self._fields(entry, _ENTRY, "", also=_TABLES)
        spec = self._spec(entry, known, origin_of(known.get("distribution")), declared_by)
        for name in (spec.name, *known.get("aliases", ())):
            self._add(spec if name is spec.name else replace(spec, name=name, alias_of=spec.name))

    def problem(self, what: str) -> None:
        self.manifest.add_problem(f"{self.place} {what}")

    def _add(self, spec: BackendSpec) -> None:
        name = spec.name
        if name in self.manifest.names:
            self.problem(f"gives the name {name} a second time; the first counts")
        elif len(self.manifest.specs) >= MOST_BACKENDS:
            self.problem(f"is one too many: at most {MOST_BACKENDS} names, aliases included")
        else:
            self.manifest.names.add(name)
            self.manifest.specs.append(spec)

    def _spec(
        self, entry: dict[str, Any], known: dict[str, Any], origin: Origin, declared_by: str
    ) -> BackendSpec:
        tags = known.get("tags", ())
        if known.get("experimental") and "experimental" not in tags:
            tags = (*tags, "experimental")
        same = ("summary", "further_options", "reserved_launch_param_names", "install", "homepage")
        return BackendSpec(
            name=known["name"],
            origin=origin,
            loading=known.get("registers", "entry_point"),
            target=known.get("target") or known.get("module"),
            factory=known.get("factory", False),
            tags=tags,
            traits=Traits(**self._table(entry, "traits", _TRAITS)),
            requires=Requirements(**self._table(entry, "requires", _REQUIRES)),
            broken=tuple(self._faults(entry, "broken")),
            limits=tuple(self._faults(entry, "limits")),
            options=self._options(entry),
            declared_by=declared_by,
            **{key: known[key] for key in same if key in known},
        )

    def _fields(
        self,
        table: dict[str, Any],
        fields: Mapping[str, _Field],
        at: str,
        also: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        known = {}
        for key, value in table.items():
            if key in also:
                continue
            if key not in fields:
                near = "" if self.manifest.full else _near(key, [*fields, *also])
                self.problem(f"has an unknown key {at}{_shown(key)}{near}")
                continue
            try:
                known[key] = fields[key].read(value)
            except _WrongError as error:
                self.problem(f"has {at}{key} = {_shown(value)}, which {error}")
        return known

    def _table(
        self, entry: dict[str, Any], key: str, fields: Mapping[str, _Field]
    ) -> dict[str, Any]:
        table = entry.get(key, {})
        if not isinstance(table, dict):
            self.problem(f"has {key} = {_shown(table)}, which must be a table")
            return {}
        return self._fields(table, fields, f"{key}.")

    def _faults(self, entry: dict[str, Any], key: str) -> Iterator[KnownFault]:
        faults = entry.get(key, [])
        if not isinstance(faults, list) or len(faults) > _MOST_ITEMS:
            self.problem(f"has {key}, which must be a list of at most {_MOST_ITEMS} tables")
            return
        for fault in faults:
            if not isinstance(fault, dict):
                self.problem(f"has {_shown(fault)} in {key}, which must be a table")
                continue
            known = self._fields(fault, _FAULT, f"{key}.")
            if "reason" not in known:
                self.problem(f"has a table of {key} without a reason")
            elif known.keys() >= fault.keys():
                # One with a specifier that was not understood would match too much.
                yield KnownFault(**known)

    def _options(self, entry: dict[str, Any]) -> Any:
        if "options" not in entry:
            return None
        options = entry["options"]
        if options == "inductor":
            return options
        if not isinstance(options, dict):
            self.problem(f"has options = {_shown(options)}, which must be a table, or 'inductor'")
            return None
        return tuple(self._named_options(options))

    def _named_options(self, options: dict[str, Any]) -> Iterator[Option]:
        for given, table in options.items():
            try:
                name = _NAME.read(given)
            except _WrongError as error:
                self.problem(f"has an option {_shown(given)}, which {error}")
                continue
            if not isinstance(table, dict):
                self.problem(f"has options.{name} = {_shown(table)}, which must be a table")
                table = {}  # noqa: PLW2901 (its name is understood)
            yield Option(name=name, **self._fields(table, _OPTION, f"options.{name}."))


def _shown(value: Any) -> str:
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # an integer of too many digits, tables too deep
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 (fits a line)


def _near(key: Any, known: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 (only a mistake needs it)

    close = get_close_matches(str(key)[:LONGEST_NAME], known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def json_schema() -> dict[str, Any]:
    """Return the manifest's JSON schema (draft 2020-12), for editors and other tools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Backbay backend manifest",
        "type": "object",
        "required": ["schema", "backend"],
        "additionalProperties": False,
        "properties": {
            "schema": {"const": VERSION},
            "backend": {"type": "array", "maxItems": MOST_BACKENDS, "items": _entry_schema()},
        },
        "$defs": {"plain": _plain_schema()},
    }


def _plain_schema() -> dict[str, Any]:
    itself = {"$ref": "#/$defs/plain"}
    return {
        "type": [*_SCALAR_TYPES, "array", "object"],
        "maxLength": _LONGEST_TEXT,
        "items": itself,
        "propertyNames": {"maxLength": _LONGEST_TEXT},
        "additionalProperties": itself,
    }


def _entry_schema() -> dict[str, Any]:
    fault = _object(_FAULT, required=["reason"])
    options = {"anyOf": [{"const": "inductor"}, _mapping(_NAME, _object(_OPTION))]}
    tables = {
        "traits": _object(_TRAITS),
        "requires": _object(_REQUIRES),
        "broken": {"type": "array", "maxItems": _MOST_ITEMS, "items": fault},
        "limits": {"type": "array", "maxItems": _MOST_ITEMS, "items": fault},
        "options": options,
    }
    entry = _object(_ENTRY, required=["name"])
    entry["properties"] |= tables
    return entry


def _object(fields: Mapping[str, _Field], required: list[str] | None = None) -> dict[str, Any]:
    properties = {name: dict(x.schema) for name, x in fields.items()}
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | ({"required": required} if required else {})
