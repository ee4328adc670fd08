"""Chain backends: the passes of each, in order, and the code generator of the last."""

import copy
from typing import Any

from backbay.errors import InputError
from backbay.kit.backend import Backend
from backbay.kit.codegen import registry_in_use
from backbay.registry import Option, Registry


def compose(
    *backends: str | Backend, name: str | None = None, registry: Registry | None = None
) -> Backend:
    """Make one backend of several.

    ::

        compose("backbay_fold", "backbay_gelu", "inductor")
        compose("backbay_print", MyBackend())

    Passes run in the order of the backends, each at its level. All but the last must be passes and
    nothing more: their own code generators are left out. The last may be any backend. Parameters
    are frozen where one of them freezes. One of them may have a ``__call__`` of its own, such as
    ``backbay``, which tunes: it then has the passes and the code generator of the whole chain.

    Args:
        backends: names, or backends of the kit; register another compiler function first.
        name: how it calls itself; default: the names, joined by ``+``.
        registry: where names are looked up, and the code generator later. Default: the default
            one.

    Returns:
        A backend, to register or to hand to torch.compile. It takes the options of all.

    Raises:
        InputError: there are fewer than two; one before the last generates code itself; two of
            them have different options of one name, or a ``__call__`` each; nobody knows a name.
    """
    if len(backends) < 2:  # noqa: PLR2004 (one is itself)
        raise InputError(f"compose takes two backends or more, and got {len(backends)}")
    links = [_Link(x, registry or registry_in_use()) for x in backends]
    for link in links[:-1]:
        link.check_passes_only()
    kits = [x.kit for x in links if x.kit is not None]
    calling = [x for x in kits if type(x).__call__ is not Backend.__call__]
    if len({type(x).__call__ for x in calling}) > 1:
        names = " and ".join(x.__name__ for x in calling)
        raise InputError(f"{names} each have a __call__ of their own: compose one of them")
    base = calling[0] if calling else Backend()
    title = name or "+".join(x.name for x in links)
    body = {
        "name": title,
        "passes": tuple(one for x in kits for one in x.passes),
        "options": tuple(_options(links)),
        "freeze": any(x.freeze for x in kits),
        "__doc__": f"Chains {', '.join(x.name for x in links)}.",
        **_ending(links[-1]),
    }
    made = copy.copy(base)  # with the state of what its __call__ may ask for
    made.__class__ = type("Composed", (type(base),), body)
    made.__name__, made.registry = title, registry or links[-1].registry
    return made


class _Link:
    """One of the backends to chain."""

    def __init__(self, given: str | Backend, registry: Registry) -> None:
        if not isinstance(given, (str, Backend)):
            raise InputError(
                f"compose takes names and backends of the kit, not {given!r}: "
                "register it first, backbay.register_backend(it, name)"
            )
        found = registry.lookup_backend(given) if isinstance(given, str) else given
        self.kit = found if isinstance(found, Backend) else None
        self.name = given if isinstance(given, str) else given.__name__
        self.registry = self.kit.registry if self.kit is not None else None

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
    """Return what the last backend says of code generation."""
    kit = last.kit
    if kit is None:
        return {"codegen": last.name, "level": "torch", "compile": None, "supports": None}
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
