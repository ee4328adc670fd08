"""The name of a new backend: who else has it, and what its package is called."""

import importlib.util
import keyword
import re
import sys

from backbay.errors import NameInvalid, NameTaken
from backbay.registry import BackendSpec, Registry
from backbay.registry.distributions import normalise

LONGEST = 40
"""Characters: the lines that hold the name stay within what the package's linter allows."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_.][A-Za-z0-9]+)*")
_FOLDERS = frozenset({"build", "dist", "docs", "examples", "src", "tests"})
_OPERATORS = frozenset({"aten", "higher_order", "prim", "prims"})


def package_of(name: str, registry: Registry) -> str:
    """Return the Python package of a backend that is to be called so, if nothing else is.

    The name is what ``torch.compile(backend=...)`` is given and what pip installs; the package is
    what Python imports.

    Raises:
        NameInvalid: it can't be all of these.
        NameTaken: a backend, a distribution or a module has it.
    """
    if len(name) > LONGEST or not _NAME.fullmatch(name):
        raise NameInvalid(
            f"{name!a} cannot name a backend and its package: take at most {LONGEST} letters and "
            "digits, a letter first, with single dashes, dots or underscores between them, as in "
            "'acme-fast'"
        )
    package = re.sub("[-.]", "_", name).lower()
    why = _why_no_package(package)
    if why is not None:
        raise NameInvalid(f"{name!r} cannot name a package: {package} {why}. {_another(name)}")
    holder = _backend(name, registry) or _distribution(name, registry) or _module(package)
    if holder is not None:
        raise NameTaken(f"the name {name!r} is taken: {holder}. {_another(name)}")
    return package


def _another(name: str) -> str:
    return f"Choose one that says whose it is, as in 'acme-{name}'."


def _why_no_package(package: str) -> str | None:
    if keyword.iskeyword(package):
        return "is a word of Python's own"
    if package in sys.stdlib_module_names:
        return "is a module of Python's own"
    if package in _FOLDERS:
        return "is the name of a folder that is not the package's"
    if package in _OPERATORS:
        return "is a namespace of torch's own operators"
    return None


def _backend(name: str, registry: Registry) -> str | None:
    """Return which backend has a name, or one that differs from it in case and separators only."""
    for known, resolution in registry.resolutions().items():
        if normalise(known) == normalise(name):
            return _holder(resolution.spec)
    return None


def _holder(spec: BackendSpec) -> str:
    if spec.origin.kind == "torch":
        return f"{spec.name} is torch's own"
    if spec.origin.kind == "catalogue":
        return f"it is known as the backend {spec.name} of {spec.origin.distribution or 'others'}"
    return f"{spec.origin} has the backend {spec.name}"


def _distribution(name: str, registry: Registry) -> str | None:
    installed = registry.environment.installed.find(name)
    if installed is not None:
        return f"{installed.name} {installed.version} is installed, and pip would replace it"
    known = {x.origin.distribution for x in registry.specs().values() if x.origin.distribution}
    same = next((x for x in sorted(known) if normalise(x) == normalise(name)), None)
    return None if same is None else f"it is known as the distribution {same}"


def _module(package: str) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # a folder that happens to be here is no module
        return None
    return f"Python imports {package} from {spec.origin}"
