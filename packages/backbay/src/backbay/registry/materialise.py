"""Get a backend's compiler function by running its code; what that code raises is put in words."""

from collections.abc import Callable

from backbay.errors import BackendLoadError
from backbay.registry import bridge
from backbay.registry.spec import BackendSpec, CompilerFn
from backbay.registry.target import Target, TargetNotFound, parse

_LONGEST_TEXT = 1_000  # characters of an error's text


def materialise(spec: BackendSpec) -> CompilerFn:
    """Load a backend.

    Raises:
        BackendLoadError: its code raised or exits, or it gives nothing that can be called. The
            message names the backend and its distribution.
    """
    what = f"backend {spec.name!r} of {spec.origin}"
    if spec.loading == "torch":
        return bridge.load_from_torch(spec.name)
    if spec.target is None:
        raise BackendLoadError(f"{what}: nothing says how it is loaded")
    if spec.loading == "import":
        return _by_import(spec, spec.target, what)
    loaded = _loaded(spec.target, what, Target.load_installed)
    return _called(loaded, what) if spec.factory else loaded


def load_target(reference: str, what: str) -> CompilerFn:
    """Load ``module:attribute`` or ``file.py:attribute``.

    Raises:
        BackendLoadError: there is no such thing, its code raised, or it cannot be called.
    """
    return _loaded(reference, what, Target.load)


def _loaded(reference: str, what: str, load: Callable[[Target], object]) -> CompilerFn:
    target = parse(reference)
    if target is None:
        raise BackendLoadError(f"{what}: {reference!r} is not of the form module:attribute")
    try:
        loaded = load(target)
    except TargetNotFound as error:
        raise BackendLoadError(f"{what}: {error}") from error
    except (Exception, SystemExit) as error:
        raise _raised(what, error) from error
    if not callable(loaded):
        raise BackendLoadError(f"{what}: {type(loaded).__name__} cannot be called")
    return loaded


def _by_import(spec: BackendSpec, module: str, what: str) -> CompilerFn:
    try:
        return bridge.load_by_import(module, spec.alias_of or spec.name)
    except BackendLoadError:
        raise
    except (Exception, SystemExit) as error:
        raise _raised(what, error) from error


def _called(factory: CompilerFn, what: str) -> CompilerFn:
    try:
        made: CompilerFn = factory()
    except (Exception, SystemExit) as error:
        raise _raised(what, error) from error
    if not callable(made):
        raise BackendLoadError(f"{what}: its factory gave {type(made).__name__}, not a callable")
    return made


def _raised(what: str, error: BaseException) -> BackendLoadError:
    said = f"{type(error).__name__}: {_text_of(error)}".strip()
    verb = "ends the process" if isinstance(error, SystemExit) else "raised"
    return BackendLoadError(f"{what} {verb} while it is loaded: {said.splitlines()[0]}")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST_TEXT]
    except Exception as another:  # noqa: BLE001 (the text of a foreign error is foreign code)
        return f"({type(another).__name__} when asked for its text)"
