"""What an interpreter says of itself: another one runs this file's text, and prints it as JSON.

It is started with ``-I -S``: nothing of its environment is imported, only the standard library, and
so it is here that its site folders are found, as its own ``site`` module would. It may be older
than any Python that Backbay runs on.
"""

import importlib.machinery
import json
import os
import platform
import site
import sys
from pathlib import Path
from typing import Any


def facts() -> "dict[str, Any]":
    """Return what `backbay.registry.other_interpreter` reads."""
    folders = site_folders(Path(sys.executable).absolute().parent)
    import sysconfig  # noqa: PLC0415 (what it answers is decided when it is imported)

    base = {"base": sys.prefix, "platbase": sys.prefix}
    return {
        "version": ".".join(str(x) for x in sys.version_info[:3]),
        "system": sys.platform,
        "machine": platform.machine(),
        "path": sys.path,
        "site_folders": folders,
        "packages": sysconfig.get_path("purelib", vars=base),
        "suffixes": importlib.machinery.all_suffixes(),
        "built_in": sys.builtin_module_names,
        "markers": markers(),
    }


def markers() -> "dict[str, str]":
    """Return what the environment markers of requirements are about (PEP 508)."""
    implementation = sys.implementation.version
    full = ".".join(str(x) for x in implementation[:3])
    if implementation.releaselevel != "final":
        full += implementation.releaselevel[0] + str(implementation.serial)
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": full,
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


def site_folders(beside: Path) -> "list[str]":
    """Return the folders in which packages are installed, in the order of ``sys.path``.

    In a virtual environment ``sys.prefix`` is that from now on.

    Args:
        beside: the interpreter's folder; a virtual environment is above it.
    """
    configured = (x / "pyvenv.cfg" for x in (beside, beside.parent))
    configuration = next((x for x in configured if x.is_file()), None)
    if configuration is None:
        return user_folders() + site.getsitepackages()
    prefixes = [str(beside.parent), sys.base_prefix, sys.base_exec_prefix]
    sys.prefix = sys.exec_prefix = prefixes[0]  # some distributions' `site` looks at it
    own = site.getsitepackages(prefixes[:1])
    if not shares_packages(configuration):
        return own
    return own + user_folders() + site.getsitepackages(prefixes)


def shares_packages(configuration: Path) -> bool:
    """Whether a virtual environment has the packages of the Python that it was made from, too."""
    with configuration.open(encoding="utf-8") as file:
        pairs = [line.partition("=") for line in file]
    said = {key.strip().lower(): value.strip().lower() for key, _, value in pairs}
    return said.get("include-system-site-packages", "true") == "true"


def user_folders() -> "list[str]":
    """Return where ``pip install --user`` puts packages, unless the user turned that off."""
    return [] if os.environ.get("PYTHONNOUSERSITE") else [site.getusersitepackages()]


if __name__ == "__main__":
    print(json.dumps(facts()))  # noqa: T201 (it is what is asked for)
