"""What is known of a backend without importing it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

CompilerFn = Callable[..., Any]
"""``(GraphModule, list[Tensor]) -> Callable``: what torch.compile calls a backend."""

OriginKind = Literal["torch", "distribution", "catalogue", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who provides a backend's name."""

    kind: OriginKind

    distribution: str | None = None
    """Name of the distribution, as it spells it."""

    version: str | None = None
    """Version of that distribution."""

    entry_point: str | None = None
    """``module:attribute``, as the distribution publishes it."""

    location: str | None = None
    """``file:line`` of an in-process registration."""

    def __str__(self) -> str:
        """Say it in a few words, for tables and errors."""
        provider = " ".join(part for part in (self.distribution, self.version) if part)
        if self.kind == "torch":
            return provider or "torch"
        if self.kind == "distribution":
            return f"{provider} ({self.entry_point})"
        if self.kind == "process":
            return f"this process ({self.location})" if self.location else "this process"
        return "catalogue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What must hold for a backend to run, as far as it can be checked without importing it."""

    distributions: tuple[str, ...] = ()
    """PEP 508 requirements that must be installed, for example ``torch-xla>=2.9``."""

    devices: tuple[str, ...] = ()
    """Device types that the backend compiles for; empty where nobody said."""

    tools: tuple[tuple[str, str], ...] = ()
    """``(device type, tool)``: the tool is needed to compile for that device. The tools known are
    ``c++`` (a C++ compiler), ``cc`` (a C compiler) and ``triton`` (the Python package)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """One backend, as one origin describes it."""

    name: str
    """What is passed to ``torch.compile(backend=...)``."""

    origin: Origin
    """Who provides the name."""

    summary: str = ""
    """One line on what it does; empty where nobody said."""

    tags: tuple[str, ...] = ()
    """``debug`` and ``experimental`` are hidden by default, as in torch's registry."""

    requires: Requirements = field(default_factory=Requirements)
    """What must hold for it to run here."""

    install: str | None = None
    """The command that installs what it requires."""

    @property
    def experimental(self) -> bool:
        """Whether its own author calls it experimental."""
        return "experimental" in self.tags
