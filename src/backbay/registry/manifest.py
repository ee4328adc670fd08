"""Read a manifest: backends described as data, by the catalogue or by a distribution of its own.

The reader is one table of fields, from which the published JSON schema is made too. It takes
untrusted input: whatever it is given, it gives specs and problems, and never raises.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from backbay.registry.spec import (
    BackendSpec,
    KnownFault,
    Option,
    Origin,
    Requirements,
    Traits,
)

VERSION = 1
LARGEST = 1 << 20
"""Bytes; the catalogue, with all that is known, has a tenth."""
_LONGEST_NAME, _LONGEST_TEXT = 100, 2_000
_MOST_BACKENDS = 1_000

OPTION_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "list": (list,),
    "dict": (dict,),
    "any": (object,),
}
_PLATFORMS = ("linux", "darwin", "win32")


@dataclass(slots=True)
class Manifest:
    """What a manifest says."""

    specs: list[BackendSpec] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What could not be understood, with its place; what is left of the entry still counts."""


class _WrongError(ValueError):
    """A value is not what its field takes; the message says what is expected."""


Reader = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Field:
    """One key: how its value is read, and how JSON schema says the same."""

    read: Reader
    schema: Mapping[str, Any]
    help: str = ""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST_TEXT:
        raise _WrongError(f"must be a text of 1 to {_LONGEST_TEXT} characters")
    if not value.isprintable():
        raise _WrongError("must be one printable line")
    return value.strip()


def _name(value: Any) -> str:
    text = _text(value)
    if len(text) > _LONGEST_NAME or any(character.isspace() for character in text):
        raise _WrongError(f"must be a name of at most {_LONGEST_NAME} characters, without spaces")
    return text


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongError("must be true or false")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _WrongError("must be a list of names")
    return tuple(dict.fromkeys(_name(x) for x in value))


def _requirements(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _WrongError("must be a list of PEP 508 requirements")
    return tuple(_text(x) for x in value)


def _platforms(value: Any) -> tuple[str, ...]:
    names = _names(value)
    strange = [x for x in names if x.partition("-")[0] not in _PLATFORMS]
    if strange:
        raise _WrongError(
            f"{strange[0]!r} is none of {', '.join(_PLATFORMS)}, with -MACHINE or not"
        )
    return names


def _specifier(value: Any) -> str:
    text = _text(value)
    operators = ("<", ">", "=", "!", "~")
    if not all(part.strip().startswith(operators) for part in text.split(",")):
        raise _WrongError("must be a PEP 440 specifier such as '>=2.11,<2.16'")
    return text


def _tools(value: Any) -> tuple[tuple[str, str], ...]:
    known = ("c++", "cc", "triton")
    if not isinstance(value, dict) or any(x not in known for x in value.values()):
        raise _WrongError(f"must map device types to one of {', '.join(known)}")
    return tuple((_name(device), tool) for device, tool in value.items())


def _choices(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or any(isinstance(x, (dict, list)) for x in value):
        raise _WrongError("must be a list of plain values")
    return tuple(value)


def _one_of(*choices: str) -> _Field:
    def read(value: Any) -> str:
        if value not in choices:
            raise _WrongError(f"must be one of {', '.join(choices)}")
        return str(value)

    return _Field(read, {"enum": list(choices)})


_TEXT_SCHEMA = {"type": "string", "minLength": 1, "maxLength": _LONGEST_TEXT}
_LIST_SCHEMA = {"type": "array", "items": {"type": "string"}}
_TEXT, _NAME = _Field(_text, _TEXT_SCHEMA), _Field(_name, _TEXT_SCHEMA | {"pattern": r"^\S+$"})
_FLAG = _Field(_flag, {"type": "boolean"})
_NAMES = _Field(_names, _LIST_SCHEMA)
_SPECIFIER = _Field(_specifier, {"type": "string", "pattern": "^[<>=!~]"})

_TRAITS: Mapping[str, _Field] = {
    "devices": _NAMES,
    "dtypes": _NAMES,
    **dict.fromkeys(
        ("training", "dynamic_shapes", "mutation", "boxed", "mode", "options", "name"), _FLAG
    ),
}
_REQUIRES: Mapping[str, _Field] = {
    "distributions": _Field(_requirements, _LIST_SCHEMA),
    "torch": _SPECIFIER,
    "python": _SPECIFIER,
    "platforms": _Field(_platforms, _LIST_SCHEMA),
    "devices": _NAMES,
    "modules": _NAMES,
    "environment": _NAMES,
    "tools": _Field(
        _tools,
        {"type": "object", "additionalProperties": {"enum": ["c++", "cc", "triton"]}},
    ),
}
_FAULT: Mapping[str, _Field] = {
    "torch": _SPECIFIER,
    "version": _SPECIFIER,
    "reason": _TEXT,
    "remedy": _TEXT,
}
_OPTION: Mapping[str, _Field] = {
    "type": _one_of(*OPTION_TYPES),
    "default": _Field(lambda value: value, {}),
    "choices": _Field(_choices, {"type": "array"}),
    "help": _TEXT,
}


_SCALARS: Mapping[str, _Field] = {
    "name": _NAME,
    "summary": _TEXT,
    "registers": _one_of("torch", "entry_point", "import", "callable", "removed"),
    "distribution": _NAME,
    "module": _NAME,
    "target": _NAME,
    "factory": _FLAG,
    "aliases": _NAMES,
    "tags": _NAMES,
    "experimental": _FLAG,
    "homepage": _TEXT,
    "install": _TEXT,
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
        manifest.problems.append(f"{declared_by}: not a table")
        return manifest
    if data.get("schema") != VERSION or isinstance(data.get("schema"), bool):
        manifest.problems.append(
            f"{declared_by}: schema = {_shown(data.get('schema'))} is not understood, "
            f"only schema = {VERSION}"
        )
        return manifest
    entries = data.get("backend", [])
    strange = [key for key in data if key not in {"schema", "backend"}]
    manifest.problems += [f"{declared_by}: unknown key {_shown(key)}" for key in strange]
    if not isinstance(entries, list) or len(entries) > _MOST_BACKENDS:
        wanted = f"must be a list of at most {_MOST_BACKENDS} tables"
        manifest.problems.append(f"{declared_by}: backend {wanted}")
        return manifest
    for number, entry in enumerate(entries):
        reading = _Reading(place=f"{declared_by}: backend[{number}]", problems=manifest.problems)
        manifest.specs += reading.specs(entry, origin_of, declared_by)
    return manifest


@dataclass(slots=True)
class _Reading:
    """One entry being read."""

    place: str
    problems: list[str]

    def specs(
        self, entry: Any, origin_of: Callable[[str | None], Origin], declared_by: str
    ) -> list[BackendSpec]:
        if not isinstance(entry, dict):
            self.problems.append(f"{self.place} must be a table")
            return []
        known = self._fields(entry, _SCALARS, "", also=_TABLES)
        if "name" not in known:
            self.problems.append(f"{self.place} has no usable name, and is left out")
            return []
        self.place += f" ({known['name']})"
        spec = self._spec(entry, known, origin_of(known.get("distribution")), declared_by)
        others = [_alias(spec, name) for name in known.get("aliases", ()) if name != spec.name]
        return [spec, *others]

    def _spec(
        self, entry: dict[str, Any], known: dict[str, Any], origin: Origin, declared_by: str
    ) -> BackendSpec:
        tags = known.get("tags", ())
        if known.get("experimental") and "experimental" not in tags:
            tags = (*tags, "experimental")
        return BackendSpec(
            name=known["name"],
            origin=origin,
            loading=known.get("registers", "entry_point"),
            target=known.get("target") or known.get("module"),
            factory=known.get("factory", False),
            summary=known.get("summary", ""),
            tags=tags,
            traits=Traits(**self._table(entry, "traits", _TRAITS)),
            requires=Requirements(**self._table(entry, "requires", _REQUIRES)),
            broken=tuple(self._faults(entry, "broken")),
            limits=tuple(self._faults(entry, "limits")),
            options=self._options(entry),
            reserved_launch_param_names=known.get("reserved_launch_param_names"),
            install=known.get("install"),
            homepage=known.get("homepage"),
            declared_by=declared_by,
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
                self.problems.append(
                    f"{self.place}: unknown key {_shown(at + key)}{_near(key, [*fields, *also])}"
                )
                continue
            try:
                known[key] = fields[key].read(value)
            except _WrongError as error:
                self.problems.append(f"{self.place}: {at}{key} = {_shown(value)} {error}")
        return known

    def _table(
        self, entry: dict[str, Any], key: str, fields: Mapping[str, _Field]
    ) -> dict[str, Any]:
        table = entry.get(key, {})
        if not isinstance(table, dict):
            self.problems.append(f"{self.place}: {key} must be a table")
            return {}
        return self._fields(table, fields, f"{key}.")

    def _faults(self, entry: dict[str, Any], key: str) -> Iterator[KnownFault]:
        faults = entry.get(key, [])
        if not isinstance(faults, list) or not all(isinstance(x, dict) for x in faults):
            self.problems.append(f"{self.place}: {key} must be a list of tables")
            return
        for fault in faults:
            known = self._fields(fault, _FAULT, f"{key}.")
            if "reason" not in known:
                self.problems.append(f"{self.place}: a table of {key} has no reason")
            elif (
                known.keys() >= fault.keys()
            ):  # a specifier that was not understood matches nothing
                yield KnownFault(**known)

    def _options(self, entry: dict[str, Any]) -> Any:
        options = entry.get("options")
        if options is None or options == "inductor":
            return options
        if not isinstance(options, dict):
            self.problems.append(f"{self.place}: options must be a table, or 'inductor'")
            return None
        return tuple(self._option(name, table) for name, table in options.items())

    def _option(self, name: str, table: Any) -> Option:
        if not isinstance(table, dict):
            self.problems.append(f"{self.place}: options.{_shown(name)} must be a table")
            return Option(name=name)
        return Option(name=name, **self._fields(table, _OPTION, f"options.{name}."))


def _alias(spec: BackendSpec, name: str) -> BackendSpec:
    from dataclasses import replace  # noqa: PLC0415 (few manifests have aliases)

    return replace(spec, name=name, alias_of=spec.name)


def _shown(value: Any) -> str:
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # an integer of too many digits, tables too deep
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 (fits a line)


def _near(key: str, known: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 (only a mistake needs it)

    close = get_close_matches(key[:_LONGEST_NAME], known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def json_schema() -> dict[str, Any]:
    """Give the manifest's JSON schema (draft 2020-12), for editors and other tools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Backbay backend manifest",
        "type": "object",
        "required": ["schema", "backend"],
        "additionalProperties": False,
        "properties": {
            "schema": {"const": VERSION},
            "backend": {"type": "array", "maxItems": _MOST_BACKENDS, "items": _entry_schema()},
        },
    }


def _entry_schema() -> dict[str, Any]:
    fault = _object(_FAULT, required=["reason"])
    options = {"anyOf": [{"const": "inductor"}, _mapping(_object(_OPTION))]}
    tables = {
        "traits": _object(_TRAITS),
        "requires": _object(_REQUIRES),
        "broken": {"type": "array", "items": fault},
        "limits": {"type": "array", "items": fault},
        "options": options,
    }
    entry = _object(_SCALARS, required=["name"])
    entry["properties"] |= tables
    return entry


def _object(fields: Mapping[str, _Field], required: list[str] | None = None) -> dict[str, Any]:
    properties = {name: dict(x.schema) for name, x in fields.items()}
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | ({"required": required} if required else {})


def _mapping(values: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}
