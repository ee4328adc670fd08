"""How workloads are named. No torch here: the command line checks every name before it starts."""

import difflib
import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

from backbay.errors import WorkloadInvalid, WorkloadNotFound
from backbay.registry import target
from backbay.registry.target import Target, TargetNotFound
from backbay.workloads.libraries import require_installed

DEFAULT = "decoder"
SIZES = ("tiny", "small", "base")

PACKAGES: Mapping[str, Sequence[str]] = {
    "hf": ("transformers",),
    "diffusers": ("diffusers",),
    "timm": ("timm", "torchvision"),
}
"""By prefix, the library that builds such models, and others that results depend on."""
_TABLES = ("hf", "diffusers")
"""Prefixes whose models are listed here; timm's are all that it has."""

Kind = Literal["decoder", "hf", "diffusers", "timm", "own"]


@dataclass(frozen=True)
class Reference:
    """A workload's name, taken apart."""

    kind: Kind
    name: str
    """The model's name without prefix and size; of the user's own, the reference as given."""

    size: str | None = None
    """One of ``SIZES``; ``None``: the device decides. The user's own have none."""

    target: Target | None = None
    """Where the user's function is; ``None`` for what is built in."""

    def size_on(self, device_type: str) -> str:
        """Return the size to build: the one asked for, else tiny on a CPU and base elsewhere."""
        return self.size or ("tiny" if device_type == "cpu" else "base")

    def canonical(self, device_type: str) -> str:
        """Return the name that reports use, with its size, for example ``hf:llama@tiny``."""
        if self.kind == "own":
            return self.name
        prefix = "" if self.kind == "decoder" else f"{self.kind}:"
        return f"{prefix}{self.name}@{self.size_on(device_type)}"


def known() -> list[str]:
    """Return the built-in workloads, without sizes; of timm's, none (they are hundreds)."""
    return [DEFAULT, *(f"{prefix}:{name}" for prefix in _TABLES for name in table(prefix))]


def parse(reference: str, size: str | None = None) -> Reference:
    """Take a workload's name apart; a size written in it wins over ``size``.

    Raises:
        WorkloadNotFound: it is none of the forms, or what is built in has no such name or size.
        WorkloadInvalid: ``size`` is given for the user's own workload, which has no sizes.
    """
    name, _, written = reference.partition("@")
    prefix, _, rest = name.partition(":")
    if name == DEFAULT:
        return Reference("decoder", name, _known_size(reference, written or size))
    if prefix in PACKAGES and rest and (prefix not in _TABLES or rest in table(prefix)):
        return Reference(cast("Kind", prefix), rest, _known_size(reference, written or size))
    own = None if prefix in PACKAGES else target.parse(reference)
    if own is None:
        raise WorkloadNotFound(_nothing_known(reference, name))
    if size is not None:
        raise WorkloadInvalid(
            f"{reference} decides itself how large it is: give the size to what is built in, "
            f"as in {DEFAULT}@{size}"
        )
    return Reference("own", reference, target=own)


def check(reference: str, size: str | None = None) -> None:
    """Check a workload's name as far as that goes without importing torch or the user's code.

    Raises:
        InputError: a package that the workload needs is not installed.
        WorkloadNotFound: as for ``parse``, or there is no such file or module.
        WorkloadInvalid: as for ``parse``.
    """
    parsed = parse(reference, size)
    if parsed.kind in PACKAGES:
        require_installed(PACKAGES[parsed.kind][0], reference)
    if parsed.target is None:
        return
    try:
        parsed.target.check()
    except TargetNotFound as error:
        raise WorkloadNotFound(f"workload {reference}: {error}") from error


@functools.cache
def table(prefix: str) -> dict[str, dict[str, Any]]:
    """Return ``hf_models.toml``, or ``diffusers_models.toml``.

    It has by name what to build, the task or the class, and by size the inputs and the config.
    """
    file = resources.files("backbay.workloads").joinpath(f"{prefix}_models.toml")
    return tomllib.loads(file.read_text("utf-8"))


def _known_size(reference: str, size: str | None) -> str | None:
    if size is None or size in SIZES:
        return size
    hint = _did_you_mean(size, {name: name for name in SIZES})
    raise WorkloadNotFound(f"{reference}: no size {size!r}.{hint} Sizes: {', '.join(SIZES)}.")


def _nothing_known(reference: str, name: str) -> str:
    if name.endswith(".py") and Path(name).is_file():
        functions = target.functions_in(name)
        defined = f"; it defines {', '.join(functions)}" if functions else ""
        return f"{name} is a file: name the function in it, {name}:FUNCTION{defined}."
    spellings = {word: full for full in known() for word in (full, full.rpartition(":")[2])}
    hint = _did_you_mean(name, spellings)
    return (
        f"no workload named {reference!r}.{hint} Built in: {', '.join(known())}, and timm:NAME for "
        "any timm model; your own: FILE.py:FUNCTION or MODULE:FUNCTION."
    )


def _did_you_mean(word: str, spellings: dict[str, str]) -> str:
    near = difflib.get_close_matches(word, spellings, n=1)
    return f" Did you mean {spellings[near[0]]!r}?" if near else ""
