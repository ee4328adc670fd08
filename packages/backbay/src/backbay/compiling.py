"""``backbay.compile``: what can be known to be wrong is said at once; then it is torch.compile.

``torch.compile`` compiles nothing when it is called: a wrong option, a missing package or a backend
that can't train shows at the first call, in backward later still, one after the other.

Where torch.compile can't take things together (mode beside options, a guard filter beside mode),
one object of Backbay's carries them to the backend.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from backbay.dependencies import check_installed
from backbay.errors import BackendNotFound, InputError, InvalidPreflight
from backbay.guards.filters import GuardFilters, filter_problems, filters_of, keep_everything
from backbay.registry import BackendSpec, CompilerFn, Registry, default_registry
from backbay.registry.names import BackendName
from backbay.registry.options import configuration_problems
from backbay.registry.registration import described
from backbay.registry.target import parse

DEFAULT = "backbay.default"
GUARD_FILTER = "guard_filter_fn"
"""Torch's name for a guard filter among the options."""


def compile(  # noqa: A001 (torch's name for it)
    model: Any = None,
    *,
    backend: BackendName | CompilerFn | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    training: bool | None = None,
    dynamic: bool | None = None,
    name: str | None = None,
    guard_filter: GuardFilters | None = None,
    check_guards: bool | Literal["raise", "warn"] = False,
    registry: Registry | None = None,
    **torch_options: Any,
) -> Any:
    """Check what is asked of a backend, then do as ``torch.compile``.

    Args:
        model: a module or function; without one a decorator is returned.
        backend: a registered name, ``module:attribute``, ``file.py:attribute`` or a compiler
            function. Default: what `set_default_backend` set, else what the policy names for the
            model's device, else Inductor.
        mode: as in torch.compile; also beside options.
        options: as in torch.compile; checked against the backend's option schema, if it has one.
            The caller's dict is left as it is.
        training: whether backward will be called; ``None`` if that is not known.
        dynamic: as in torch.compile.
        name: as in torch.compile, from 2.13 on.
        guard_filter: which guards compiled code keeps: a function as torch's ``guard_filter_fn``,
            the name of one of ``torch.compiler``'s, or several, of which each must keep a guard.
            What it leaves out is not checked: code that was compiled for one value then runs for
            another.
        check_guards: for debugging: ask at each call whether what ``guard_filter`` leaves out would
            have held, and whether a module has a hook that it had not, which torch does not guard.
            Raise `SkippedGuardFailed` where not (``True`` or ``"raise"``), or warn.
        registry: where names are looked up; default: the process's.
        torch_options: passed on to torch.compile (``fullgraph``, ``disable``, ...).

    Returns:
        What torch.compile returns.

    Raises:
        InvalidPreflight: it cannot work. Its ``problems`` are all that is known to be in the way.
    """
    options, filters = _parted(options, guard_filter)
    request = _Request(
        model=model,
        backend=backend,
        mode=mode,
        options=options,
        filters=filters,
        check_guards=check_guards,
        training=training,
        dynamic=dynamic,
        name=name,
        registry=registry or default_registry,
        torch_options=torch_options,
    )
    if model is None:
        return lambda given: _compiled(replace(request, model=given))
    return _compiled(request)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What `compile` was given, and what the model says of itself."""

    model: Any
    backend: str | CompilerFn | None
    mode: str | None
    options: Mapping[str, Any] | None
    """Without torch's guard filter."""
    filters: GuardFilters | None
    check_guards: bool | Literal["raise", "warn"]
    training: bool | None
    dynamic: bool | None
    name: str | None
    registry: Registry
    torch_options: Mapping[str, Any]

    @functools.cached_property
    def state(self) -> list[Any]:
        """A module's parameters and floating-point buffers; of a function, nothing is known."""
        parameters: Callable[[], Any] | None = getattr(self.model, "parameters", None)
        buffers: Callable[[], Any] | None = getattr(self.model, "buffers", None)
        if parameters is None or buffers is None:
            return []
        return [*parameters(), *(x for x in buffers() if x.is_floating_point())]

    @property
    def devices(self) -> list[str]:
        """The device types that the model is on."""
        return list(dict.fromkeys(x.device.type for x in self.state))

    @property
    def dtypes(self) -> list[str]:
        """The dtypes that the model holds."""
        return list(dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in self.state))

    @property
    def device(self) -> str | None:
        """The device type to compile for; nothing where the model has no state."""
        return next((x for x in self.devices if x != "cpu"), next(iter(self.devices), None))

    @property
    def action(self) -> Literal["raise", "warn"] | None:
        """What is done when a guard that a filter leaves out fails; nothing where none is asked."""
        if self.check_guards is False:
            return None
        return "raise" if self.check_guards is True else self.check_guards


def _compiled(request: _Request) -> Any:
    if "torch" not in sys.modules:
        check_installed("backbay.compile", "torch")
    spec, compiler_fn = _preflight(request)

    import torch  # noqa: PLC0415 (only a compilation needs it)

    handed = _handed(spec, compiler_fn, request)
    return torch.compile(request.model, dynamic=request.dynamic, **handed, **request.torch_options)


def _handed(spec: BackendSpec, compiler_fn: str | CompilerFn, request: _Request) -> dict[str, Any]:
    """Return backend, mode, options and name as torch.compile takes them together."""
    named = {} if request.name is None else {"name": request.name}
    filters = request.filters
    if request.action is not None and filters is None:
        filters = keep_everything
    if filters is None and not (request.mode and request.options):
        options = dict(request.options) if request.options is not None else None
        if not isinstance(compiler_fn, str) and not hasattr(compiler_fn, "__backbay_details__"):
            # What a function made is checked; backends of the kit do that themselves.
            compiler_fn = request.registry.configured(spec, compiler_fn, None, {})
        return {"backend": compiler_fn, "mode": request.mode, "options": options, **named}
    configured = _configured(spec, compiler_fn, request)
    if compiler_fn == "inductor":  # its object has the name, and does not take it when called
        named = {}
    if filters is None:
        return {"backend": configured, **named}
    from backbay.guards.filtered import Filtered  # noqa: PLC0415 (few compilations have filters)

    filtered = Filtered(configured, filters_of(filters), request.action)
    return {"backend": filtered, "options": {"guard_filter_fn": filtered.keep}, **named}


def _configured(spec: BackendSpec, compiler_fn: str | CompilerFn, request: _Request) -> CompilerFn:
    """Return a backend with its mode and options as one object, equal for an equal request."""
    mode = None if request.mode == "default" else request.mode
    options = dict(request.options or {})
    if compiler_fn == "inductor":
        from backbay.registry.configured import inductor  # noqa: PLC0415 (imports hashlib)

        return inductor(mode, options, dynamic=request.dynamic, name=request.name)
    found = request.registry.lookup_backend(compiler_fn)  # torch's own stay names until here
    return request.registry.configured(spec, found, mode, options) if mode or options else found


def _parted(
    options: Mapping[str, Any] | None, guard_filter: GuardFilters | None
) -> tuple[Mapping[str, Any] | None, GuardFilters | None]:
    """Take torch's ``guard_filter_fn`` out of a copy of the options, as torch does of the original.

    It comes before those of ``guard_filter``.
    """
    if not isinstance(options, Mapping) or GUARD_FILTER not in options:
        return options, guard_filter
    rest = {key: value for key, value in options.items() if key != GUARD_FILTER}
    if options[GUARD_FILTER] is None or guard_filter is None:
        return rest or None, options[GUARD_FILTER] or guard_filter
    others = guard_filter if isinstance(guard_filter, (list, tuple)) else [guard_filter]
    return rest or None, [options[GUARD_FILTER], *others]


def _preflight(request: _Request) -> tuple[BackendSpec, str | CompilerFn]:
    """Return what a backend is known as, and what to hand to torch.compile for it.

    Raises:
        InvalidPreflight: what is asked of the backend cannot work.
    """
    backend = request.backend if request.backend is not None else _default(request)
    what = f"backend {backend!r}" if isinstance(backend, str) else "this backend"
    try:
        spec, compiler_fn = _found(backend, request)
    except (InvalidPreflight, BackendNotFound):
        raise
    except InputError as error:
        raise InvalidPreflight(what, [str(error)]) from error
    problems = list(_problems(spec, compiler_fn, request))
    if problems:
        raise InvalidPreflight(what, problems)
    return spec, compiler_fn


def _default(request: _Request) -> str | CompilerFn:
    """Return what is compiled with where nobody names a backend."""
    chosen, device = request.registry.get_default_backend(), request.device
    if chosen != "inductor" or device is None:
        return chosen
    return DEFAULT if request.registry.policy.default_for(device) is not None else chosen


def _found(backend: str | CompilerFn, request: _Request) -> tuple[BackendSpec, str | CompilerFn]:
    registry = request.registry
    if not isinstance(backend, str):
        return _spec_of(backend, registry), registry.lookup_backend(backend)
    if parse(backend) is not None:
        compiler_fn = registry.lookup_backend(backend)
        return described(compiler_fn, backend, (), {}), compiler_fn
    spec = registry.spec(backend)
    availability = registry.availability(backend, request.device)
    if not availability.ready:
        # Nothing is loaded that does not run here; whatever else is wrong is said all the same.
        why = f"{availability.state}: {availability.reason}. What to do: {availability.remedy}"
        raise InvalidPreflight(f"backend {backend!r}", [why, *_problems(spec, backend, request)])
    return spec, registry.resolve(backend)


def _spec_of(compiler_fn: CompilerFn, registry: Registry) -> BackendSpec:
    known = (
        x for x in registry.registered_specs() if registry.lookup_backend(x.name) is compiler_fn
    )
    return next(known, None) or described(
        compiler_fn, getattr(compiler_fn, "__name__", type(compiler_fn).__name__), (), {}
    )


def _problems(spec: BackendSpec, compiler_fn: str | CompilerFn, request: _Request) -> Iterator[str]:
    yield from configuration_problems(
        spec, compiler_fn, request.mode, request.options, request.name
    )
    yield from _trait_problems(spec, request)
    yield from _guard_problems(request)
    if request.name is not None and spec.traits.name is not False:
        yield from _name_problems()


def _guard_problems(request: _Request) -> Iterator[str]:
    if request.filters is not None:
        yield from filter_problems(request.filters)
    if request.check_guards not in (False, True, "raise", "warn"):  # a list is in no set
        yield f"check_guards is True, False, 'raise' or 'warn', not {request.check_guards!r}"


def _name_problems() -> Iterator[str]:
    import torch  # noqa: PLC0415 (as above)

    if "name" not in inspect.signature(torch.compile).parameters:
        yield f"torch {torch.__version__} takes no name: leave it out, or use torch 2.13 or newer"


def _trait_problems(spec: BackendSpec, request: _Request) -> Iterator[str]:
    traits = spec.traits
    if request.training and traits.training is False:
        yield f"{spec.name} does not train: use it under torch.no_grad(), or another backend"
    if request.dynamic and traits.dynamic_shapes is False:
        yield f"{spec.name} takes no dynamic shapes: leave dynamic=True out, or pass dynamic=False"
    if request.name is not None and traits.name is False:
        yield f"{spec.name} takes no name, and {request.name!r} was given"
    for device in request.devices:
        if spec.devices and device not in spec.devices:
            takes = ", ".join(spec.devices)
            yield f"{spec.name} compiles for {takes}, and the model is on {device}"
    for dtype in request.dtypes:
        if traits.dtypes and dtype not in traits.dtypes:
            yield f"{spec.name} takes {', '.join(traits.dtypes)}, and the model holds {dtype}"
