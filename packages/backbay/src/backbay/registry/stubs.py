"""Write stubs with the names of the plugins that are installed: `names.py` has only built-in ones.

They are a PEP 561 partial stub package: ``backbay-stubs`` holds a stub of `names.py` alone, and
everything else of Backbay is still typed by its own sources. Where a checker finds it, as tried
with mypy 2.4, pyright 1.1.414 and basedpyright 1.40, Backbay installed normally and as editable:

- beside the packages of the interpreter that it checks for (mypy ``--python-executable``, pyright
  ``--pythonpath``), or in a folder that a ``.pth`` file there names: all three;
- in pyright's ``stubPath`` (default: ``typings``) or the project's root: pyright and basedpyright.
  mypy reads no ``-stubs`` package from ``MYPYPATH`` or ``mypy_path``, nor from the project.

The stubs are what was installed when they were written; write them again when that changes. Remove
the folder to be rid of them: no installer knows of it.
"""

import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from backbay.errors import InputError
from backbay.registry.known import KnownBackends
from backbay.registry.names import BuiltinName

_PACKAGE = "backbay-stubs"

_STUB = """\
# Written by `backbay stubs`: the backends that were installed then.
from typing import Literal, NewType, TypeAlias

BuiltinName: TypeAlias = Literal[
{names}]
PluginName = NewType("PluginName", str)
BackendName: TypeAlias = BuiltinName | PluginName
"""


def names_here(registry: KnownBackends) -> list[str]:
    """Return the built-in names, and every name that resolves here to something installed, sorted.

    What is blocked, or claimed by several without a rule that decides, does not resolve.
    """
    resolved = (name for name, x in registry.resolutions().items() if x.standing == "wins")
    return sorted({*get_args(BuiltinName), *resolved})


def stub_text(names: Iterable[str]) -> str:
    """Return the stub of this module in which these names are built in."""
    # ascii: a distribution may publish any text as a name, and it must not end the string.
    return _STUB.format(names="".join(f"    {name!a},\n" for name in names))


def write_stubs(registry: KnownBackends, folder: Path | None = None) -> Path:
    """Write the stub package ``backbay-stubs``, over one that is there.

    Args:
        registry: whose names.
        folder: where; default: beside the packages of the registry's interpreter.

    Returns:
        The package's folder.

    Raises:
        InputError: it cannot be written there.
    """
    packages = registry.environment.interpreter.packages or sysconfig.get_path("purelib")
    package = (folder or Path(packages)).absolute() / _PACKAGE
    try:
        (package / "registry").mkdir(parents=True, exist_ok=True)
        (package / "py.typed").write_text("partial\n", "utf-8")
        (package / "registry" / "names.pyi").write_text(stub_text(names_here(registry)), "utf-8")
    except OSError as error:
        raise InputError(f"no stubs: {error}. Choose another folder: --out DIR") from error
    return package
