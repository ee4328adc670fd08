"""Chain backends: the passes of each, in order, and the code generator of the last."""

from typing import Any

from backbay.errors import InputError
from backbay.kit.backend import Backend
from backbay.registry import Option, default_registry


def compose(*backends: str | Backend, name: str | None = None) -> Backend:
    """Make one backend of several.

    ::

        compose("backbay_fold", "backbay_gelu", "inductor")
        compose("backbay_print", MyBackend())

    Passes run in the order of the backends, each at its level. All but the last must be passes and
    nothing more: their own code generators are left out. The last may be any backend.

    Args:
        backends: names, or backends of the kit; register another compiler function first.
        name: how it calls itself; default: the names, joined by ``+``.

    Returns:
        A backend, to register or to hand to torch.compile. It takes the options of all.

    Raises:
        InputError: there are fewer than two; one before the last generates code itself; two of
            them have different options of one name; nobody knows a name.
    """
    if len(backends) < 2:  # noqa: PLR2004 (one is itself)
        raise InputError(f"compose takes two backends or more, and got {len(backends)}")
    *first, last = (_Link(x) for x in backends)
    for link in first:
        link.check_passes_only()
    links = [*first, last]
    body = {
        "name": name or "+".join(x.name for x in links),
        "passes": tuple(one for x in links if x.kit is not None for one in x.kit.passes),
        "options": tuple(_options(links)),
        "__doc__": f"Chains {', '.join(x.name for x in links)}.",
        **_ending(last),
    }
    made: Backend = type("Composed", (Backend,), body)()
    return made


class _Link:
    """One of the backends to chain."""

    def __init__(self, given: str | Backend) -> None:
        if not isinstance(given, (str, Backend)):
            raise InputError(
                f"compose takes names and backends of the kit, not {given!r}: "
                "register it first, backbay.register_backend(it, name)"
            )
        found = default_registry.lookup_backend(given) if isinstance(given, str) else given
        self.kit = found if isinstance(found, Backend) else None
        self.name = given if isinstance(given, str) else given.__name__

    def check_passes_only(self) -> None:
        if self.kit is None:
            raise InputError(
                f"{self.name} generates code and passes no graph on: name it last, or leave it out"
            )
        if self.kit.compile is not None:
            raise InputError(
                f"{self.name} has a compile method of its own, which ends the chain: name it last"
            )


def _options(links: list[_Link]) -> list[Option]:
    seen = dict[str, tuple[Option, str]]()
    for link in links:
        for option in link.kit.options if link.kit is not None else ():
            known, owner = seen.setdefault(option.name, (option, link.name))
            if known != option:
                raise InputError(f"{owner} and {link.name} have different options {option.name!r}")
    return [option for option, _ in seen.values()]


def _ending(last: _Link) -> dict[str, Any]:
    """Give what the last backend says of code generation."""
    kit = last.kit
    if kit is None:
        return {"codegen": last.name}
    methods: dict[str, Any] = {"compile": kit.compile, "supports": kit.supports}
    return {
        "level": kit.level,
        "codegen": kit.codegen,
        "decompositions": kit.decompositions,
        "partitioner": kit.partitioner,
        "fallback": kit.fallback,
        "minimum_region": kit.minimum_region,
        # They are bound to their own backend already.
        **{k: staticmethod(v) if callable(v) else v for k, v in methods.items()},
    }
