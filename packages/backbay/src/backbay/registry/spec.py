"""What is known of a backend without importing it. What nobody has said is ``None``: unknown."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from backbay.errors import hidden

_HIDDEN = (  # control characters, those of no width, those that turn the text around
    r"\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\uffff"
    "\U000e0000-\U000e0fff"
)
_FILLERS = r"\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
TEXT_PATTERN = rf"^(?![\s\S]*[{_HIDDEN}])[\s\S]*\S"
"""One line that a terminal can be trusted to show; in JavaScript's and Python's dialect alike."""
NAME_PATTERN = rf"^(?![\s\S]*[\s{_HIDDEN}{_FILLERS}])[\s\S]"
"""The same without spaces."""
BACKEND_NAME_PATTERN = rf"^(?!-)(?![\s\S]*[\s:,{_HIDDEN}{_FILLERS}])[\s\S]"
"""The same without colons, commas and a leading hyphen; see `name_problem`."""
LONGEST_NAME = 100
MOST_BACKENDS = 1_000
"""Names that one distribution may publish, each way: more are taken for a mistake, or an attack."""

_SPECIAL = {
    ":": "must not have a colon, as module:attribute has",
    ",": "must not have a comma, which separates names",
}
_WRITTEN_TOGETHER = (
    {"LATIN", "CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"},
    {"LATIN", "CJK", "BOPOMOFO"},
    {"LATIN", "CJK", "HANGUL"},
)
"""Scripts of one text: Unicode TS 39, "highly restrictive"."""

FOR_TESTS = "TESTING_ONLY"
"""In names of torch's that are of no use to anybody else: they are suggested to nobody."""

OPTION_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "list": (list,),
    "dict": (dict,),
    "any": (object,),
}
"""What an option's type is called, and what its values may be."""

CompilerFn = Callable[..., Callable[..., Any]]
"""``(GraphModule, list[Tensor]) -> Callable``: what torch.compile calls a backend."""

OriginKind = Literal["torch", "process", "distribution", "catalogue"]

Loading = Literal["torch", "entry_point", "import", "callable", "removed", "object"]
"""How a backend comes into being: torch's registry has it; an entry point names it; importing a
module registers it with torch; it is a callable that was never given a name; torch once had it; or
it is an object that this process registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who provides a backend's name."""

    kind: OriginKind

    distribution: str | None = None
    """Name of the distribution, its words joined by hyphens."""

    version: str | None = None
    """Version of that distribution."""

    entry_point: str | None = None
    """``module:attribute``, as the distribution publishes it."""

    location: str | None = None
    """``file:line`` of an in-process registration."""

    folder: str | None = None
    """The distribution's metadata folder."""

    def __str__(self) -> str:
        """Return it in a few words, for tables and errors."""
        provider = " ".join(part for part in (self.distribution, self.version) if part)
        if self.kind == "torch":
            return provider or "torch"
        if self.kind == "distribution":
            return f"{provider} ({self.entry_point})" if self.entry_point else provider
        if self.kind == "process":
            return f"this process ({self.location})" if self.location else "this process"
        return f"catalogue ({provider})" if provider else "catalogue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What must hold for a backend to run, as far as it can be checked without importing it."""

    distributions: tuple[str, ...] = ()
    """PEP 508 requirements that must be installed, for example ``torch-xla>=2.9``."""

    torch: str | None = None
    """Versions of torch that it works with, as a PEP 440 specifier."""

    python: str | None = None
    """Versions of Python, likewise."""

    platforms: tuple[str, ...] = ()
    """``linux``, ``darwin``, ``win32``, or one with its machine, ``linux-x86_64``; any of them."""

    devices: tuple[str, ...] = ()
    """Device types of which one must be here; empty where nobody said."""

    modules: tuple[str, ...] = ()
    """Modules that must be findable, where no distribution of a known name provides them."""

    environment: tuple[str, ...] = ()
    """Environment variables that must be set."""

    tools: tuple[tuple[str, str], ...] = ()
    """``(device type, tool)``: the tool is needed to compile for that device. The tools known are
    ``c++`` (a C++ compiler), ``cc`` (a C compiler) and ``triton`` (the Python package)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a backend can take, as its author or the catalogue declares it; ``None`` is unknown."""

    devices: tuple[str, ...] | None = None
    """Device types that it compiles for."""
    dtypes: tuple[str, ...] | None = None
    """Names of torch dtypes, for example ``bfloat16``."""
    training: bool | None = None
    """Whether both forward and backward go through it."""
    dynamic_shapes: bool | None = None
    """Whether it takes graphs whose sizes are symbols."""
    mutation: bool | None = None
    """Whether inputs that the graph changes in place are handled."""
    boxed: bool | None = None
    """Whether what it returns takes its arguments as one list, and empties it."""
    mode: bool | None = None
    """Whether it honours ``torch.compile(mode=...)``."""
    options: bool | None = None
    """Whether it honours ``torch.compile(options=...)``."""
    name: bool | None = None
    """Whether it takes the keyword ``name`` that torch passes from 2.15 on."""
    run_to_run: bool | None = None
    """Whether what it compiles gives the same bits for the same inputs every time."""
    batch_invariant: bool | None = None
    """Whether a row's results are the same bits whatever else is in its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFault:
    """A combination of versions that is known not to work; specifiers not given match anything."""

    reason: str
    remedy: str = ""
    torch: str | None = None
    """PEP 440 specifier of torch's versions."""
    version: str | None = None
    """PEP 440 specifier of the providing distribution's versions."""
    errors: tuple[str, ...] = ()
    """What its error says, word for word: an error that holds one of these is this fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One key of ``torch.compile(options=...)``."""

    name: str
    type: str = "any"
    """``bool``, ``int``, ``float``, ``str``, ``list``, ``dict`` or ``any``."""
    default: Any = field(default=None, hash=False)
    choices: tuple[Any, ...] = ()
    """The values that it may take; any of its type where empty."""
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """One backend, as one origin describes it."""

    name: str
    """What is passed to ``torch.compile(backend=...)``."""

    origin: Origin
    """Who provides the name."""

    loading: Loading = "torch"
    """How the compiler function comes into being."""

    target: str | None = None
    """What is loaded: ``module:attribute``, or the module whose import registers it."""

    factory: bool = False
    """Whether the target is called, without arguments, to give the compiler function."""

    alias_of: str | None = None
    """The name of which this is another; both load the same compiler function."""

    summary: str = ""
    """One line on what it does; empty where nobody said."""

    tags: tuple[str, ...] = ()
    """``debug`` and ``experimental`` are hidden by default, as in torch's registry."""

    traits: Traits = field(default_factory=Traits)
    """What it can take."""

    requires: Requirements = field(default_factory=Requirements)
    """What must hold for it to run here."""

    broken: tuple[KnownFault, ...] = ()
    """Combinations in which it does not run at all."""

    limits: tuple[KnownFault, ...] = ()
    """Combinations in which it runs, and what it does not do there."""

    options: tuple[Option, ...] | Literal["inductor"] | None = None
    """Its option schema; ``()`` takes none, ``inductor`` has those of ``torch._inductor.config``,
    and ``None`` is unknown."""

    further_options: Literal["inductor"] | None = None
    """Whose options it takes beside its own, because it hands them on; ``mode`` likewise."""

    reserved_launch_param_names: tuple[str, ...] | None = None
    """Names that a kernel for it must not use as parameters, as Helion's backends declare them."""

    install: str | None = None
    """The command that installs what it requires; see `install_beside`."""

    homepage: str | None = None

    declared_by: str | None = None
    """Where its metadata is from: the path of a manifest, or ``catalogue``; none where nobody gave
    any."""

    @property
    def experimental(self) -> bool:
        """Whether its own author calls it experimental."""
        return "experimental" in self.tags

    @property
    def debug(self) -> bool:
        """Whether it is there for finding faults, not for speed."""
        return "debug" in self.tags

    def install_beside(self, torch: str | None) -> str | None:
        """Return the command that installs what it requires beside a version of torch.

        ``{torch}`` in it stands for the first two numbers of that: an engine whose releases each go
        with one torch is ``pip install 'engine=={torch}.*'``.
        """
        if self.install is None or "{torch}" not in self.install:
            return self.install
        if torch is None:
            return self.install.replace("=={torch}.*", "")
        return self.install.replace("{torch}", ".".join(torch.split(".")[:2]))

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the device types that it is known to compile for; empty where unknown."""
        return self.traits.devices or self.requires.devices


def names_an_attribute(target: str) -> bool:
    """Whether a text is of the form ``module:attribute``, either of them dotted or not."""
    dotted = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
    return re.fullmatch(f"{dotted}:{dotted}", target) is not None


def as_data(value: Any) -> Any:
    """Return a spec, or a part of one, as plain data for JSON; what is unknown is left out."""
    if isinstance(value, (tuple, list)):
        return [as_data(x) for x in value]
    if isinstance(value, Mapping):
        return {key: as_data(x) for key, x in value.items()}
    slots = getattr(type(value), "__slots__", None)
    if slots is None:
        return value
    parts = {name: getattr(value, name) for name in slots}
    return {name: as_data(x) for name, x in parts.items() if x is not None}


def name_problem(name: str) -> str | None:
    """Return why nobody could type a name, or be sure of what they read; nothing where they can."""
    if not 0 < len(name) <= LONGEST_NAME:
        return f"must have 1 to {LONGEST_NAME} characters"
    if name.startswith("-"):
        return "must not begin with a hyphen, as options do"
    special = next((why for x, why in _SPECIAL.items() if x in name), None)
    if special is not None:
        return special
    if any(x.isspace() for x in name):
        return "must not have a space"
    if any(map(hidden, name)):
        return "must not have a character that can't be seen"
    return None if name.isascii() else _script_problem(name)


def _script_problem(name: str) -> str | None:
    import unicodedata  # noqa: PLC0415 (few names need it)

    normal = unicodedata.normalize("NFKC", name)
    if normal != name:
        return f"must not look like another, {normal!a}"
    letters = (unicodedata.name(x, "UNKNOWN") for x in name if x.isalpha())
    scripts = {x.partition(" ")[0] for x in letters}
    if len(scripts) > 1 and not any(scripts <= together for together in _WRITTEN_TOGETHER):
        return f"must not mix scripts: {', '.join(sorted(x.title() for x in scripts))}"
    return None
