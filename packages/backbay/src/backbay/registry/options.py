"""Check ``mode`` and ``options`` against what a backend takes, before anything is compiled.

Torch checks late, and each backend in its own way: Inductor answers one wrong key with the list of
all 622, others warn, ignore it, or fail at the first call.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from backbay.registry.spec import FOR_TESTS, OPTION_TYPES, BackendSpec, CompilerFn, Option


def configuration_problems(
    spec: BackendSpec,
    compiler_fn: str | CompilerFn,
    mode: str | None,
    options: Mapping[str, Any] | None,
    name: str | None = None,
) -> Iterator[str]:
    """Yield why a backend can't be compiled with as is asked; nothing where it can, or may.

    Args:
        spec: the backend.
        compiler_fn: its function; a name where torch's own look-up finds it.
        mode: as in torch.compile.
        options: likewise.
        name: likewise.
    """
    malformed = list(form_problems(mode, options))
    yield from malformed
    if not malformed:
        yield from mode_problems(spec, mode)
        yield from option_problems(spec, options)
    if isinstance(compiler_fn, str):
        return
    traits = spec.traits
    given = {"mode": mode, "options": options, "name": name}
    stated = {"mode": traits.mode, "options": traits.options, "name": traits.name}
    unknown = {key: value for key, value in given.items() if stated[key] is None}
    yield from signature_problems(spec, compiler_fn, unknown)


def form_problems(mode: object, options: object) -> Iterator[str]:
    """Yield how ``mode`` and ``options`` are not of the types that torch takes."""
    if mode is not None and not isinstance(mode, str):
        yield f"a mode is a name, not {type(mode).__name__}"
    if options is not None and not isinstance(options, Mapping):
        yield f"options are a dict, not {type(options).__name__}"
    elif options is not None:
        strange = [key for key in options if not isinstance(key, str)]
        yield from (f"an option's name is text, not {key!r}" for key in strange)


def mode_problems(spec: BackendSpec, mode: str | None) -> Iterator[str]:
    """Yield why a backend cannot take a mode; nothing where it can, or where nobody knows."""
    if mode is None or mode == "default":
        return
    if "inductor" in {spec.options, spec.further_options}:
        from torch._inductor import list_mode_options  # noqa: PLC0415 (torch is there to compile)

        known = tuple(list_mode_options())
        if mode not in known:
            yield f"there is no mode {mode!r}{_near(mode, known)}; modes: {', '.join(known)}"
    elif spec.traits.mode is False:
        yield f"{spec.name} takes no mode, and {mode!r} was given"


def option_problems(spec: BackendSpec, options: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield why a backend cannot take some options; nothing where it can, or where nobody knows."""
    if not options:
        return
    if spec.options == "inductor":
        yield from _inductor_problems("inductor", options, ())
        return
    if spec.traits.options is False or (spec.options == () and spec.further_options is None):
        given = ", ".join(map(repr, options))
        yield f"{spec.name} takes no options, and {given} were given"
        return
    if spec.options is None:
        return
    known = {option.name: option for option in spec.options}
    handed_on = dict[str, Any]()
    for name, value in options.items():
        if name in known or spec.further_options is None:
            yield from _problems(spec.name, name, value, known)
        else:
            handed_on[name] = value
    if handed_on:
        yield from _inductor_problems(spec.name, handed_on, tuple(known))


def signature_problems(
    spec: BackendSpec, compiler_fn: CompilerFn, given: Mapping[str, Any]
) -> Iterator[str]:
    """Yield which of the keywords that torch would pass a compiler function does not take.

    Torch hands ``mode``, ``options`` and ``name`` to a backend as keywords, each where it was
    given; a function of two parameters then fails at the first call.
    """
    try:
        parameters = inspect.signature(compiler_fn).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return
    if any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters.values()):
        return
    for keyword, value in given.items():
        if value is not None and keyword not in parameters:
            yield f"{spec.name} takes no {keyword}: its function has no parameter of this name"


def _problems(backend: str, name: str, value: Any, known: Mapping[str, Option]) -> Iterator[str]:
    option = known.get(name)
    if option is None:
        yield f"{backend} has no option {name!r}{_near(name, known)}"
        return
    allowed = OPTION_TYPES[option.type]
    mistaken = isinstance(value, bool) and bool not in allowed and object not in allowed
    if not isinstance(value, allowed) or mistaken:
        yield f"option {name!r} of {backend} is {option.type}, not {type(value).__name__}"
    elif option.choices and value not in option.choices:
        choices = ", ".join(map(repr, option.choices))
        yield f"option {name!r} of {backend} is one of {choices}, not {value!r}"


def default_problems(option: Option) -> Iterator[str]:
    """Yield how an option's own default and choices contradict its type."""
    plain = Option(name=option.name, type=option.type)
    for choice in option.choices:
        yield from (
            f"a choice: {x}" for x in _problems("it", option.name, choice, {option.name: plain})
        )
    if option.default is not None:
        found = _problems("it", option.name, option.default, {option.name: option})
        yield from (f"the default: {x}" for x in found)


def _inductor_problems(
    backend: str, options: Mapping[str, Any], own: tuple[str, ...]
) -> Iterator[str]:
    from torch._inductor import config  # noqa: PLC0415 (torch is imported for a compilation)

    known: dict[str, Any] = config.get_config_copy()
    kind: Callable[[str], Any] = config.get_type  # type: ignore[attr-defined] # made at run time
    for name, value in options.items():
        attribute = name.replace("-", "_")
        if attribute not in known:
            yield f"{backend} has no option {name!r}{_near(attribute, (*own, *known))}"
            continue
        wanted = kind(attribute)
        plain = isinstance(wanted, type) and getattr(wanted, "__origin__", None) is None
        if plain and not isinstance(value, wanted):
            yield f"option {name!r} of inductor is {wanted.__name__}, not {type(value).__name__}"


def _near(name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    close = get_close_matches(name, [x for x in known if FOR_TESTS not in x], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
