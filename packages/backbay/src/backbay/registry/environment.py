"""What a machine and an installation offer a backend, found out without importing torch.

The installation is that of this process, or of another interpreter.
"""

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from typing import NamedTuple

from backbay.registry.distributions import Installed, scan

# `cuda: Optional[str] = None`, `__version__ = '2.13.0+cpu'`: as torch's build writes them.
_CONSTANT = re.compile(
    r"^(\w+)(?:\s*:[^=]+)?\s*=\s*(?:'([^']*)'|\"([^\"]*)\"|None)\s*$", re.MULTILINE
)
_TRITONS = ("triton", "pytorch-triton", "triton-windows", "pytorch-triton-rocm", "triton-rocm")
_NVML = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


FindSpec = Callable[[str, Sequence[str] | None], ModuleSpec | None]
"""Finds a module in these folders, or wherever its import would look, and runs none of it."""


class OnlyAnImportTells(LookupError):  # noqa: N818 (reads as the answer that it is)
    """Whether there is such a module is decided by code of that environment, which is not run."""


class Interpreter(NamedTuple):  # a dataclass would be felt in a listing
    """A Python interpreter, and where it looks for what is installed."""

    executable: str

    version: str
    """Of Python, as ``3.12.4``."""

    platform: str
    """Operating system and processor, as ``linux-x86_64``."""

    path: Sequence[str]
    """Its ``sys.path``."""

    find_spec: FindSpec
    """Raises `OnlyAnImportTells` where nothing that is read answers."""

    loaded: Container[str]
    """Modules that no file has to be found for."""

    markers: Mapping[str, str] | None = None
    """What requirements' environment markers are about; ``None``: about this process."""

    packages: str | None = None
    """The folder into which pip installs; ``None``: this process's, as ``sysconfig`` has it."""


def this_interpreter() -> Interpreter:
    """Return the interpreter of this process; what it imports from now on counts, too."""
    return Interpreter(
        executable=sys.executable or "",
        version=".".join(map(str, sys.version_info[:3])),
        platform=platform(sys.platform, _machine()),
        path=sys.path,
        find_spec=found_by_finders,
        loaded=sys.modules,
    )


def platform(system: str, machine: str) -> str:
    """Return an operating system and a processor as one name, as requirements have it."""
    return f"{system}-{'x86_64' if machine in {'AMD64', 'amd64'} else machine}"


def found_by_finders(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Find a module as this process's imports do."""
    # Not importlib.util.find_spec: its import is felt in a listing.
    found = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def module_exists(name: str, find_spec: FindSpec) -> bool:
    """Look for a module without importing its parents, which ``importlib.util.find_spec`` does."""
    parts = name.split(".")
    spec = find_spec(parts[0], None)
    for end in range(2, len(parts) + 1):
        if spec is None:
            return False
        try:
            spec = find_spec(".".join(parts[:end]), list(spec.submodule_search_locations or ()))
        except KeyError:
            return True  # a namespace package inside another: only importing it can tell
    return spec is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The facts that requirements are checked against."""

    installed: Installed
    """The distributions on the interpreter's path."""

    torch_build: Mapping[str, str | None] = field(default_factory=dict)
    """Constants of ``torch/version.py``: ``__version__``, ``cuda``, ``hip``, ``xpu``; empty without
    torch."""

    devices: Mapping[str, str | None] = field(default_factory=dict)
    """Device type to why it cannot be used; an empty reason means that it can, ``None`` that only
    an import of torch would tell."""

    interpreter: Interpreter = field(default_factory=this_interpreter)
    """Whose environment it is."""

    _modules: dict[str, bool | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Modules that were looked for, and whether they are there."""

    @property
    def default_device(self) -> str:
        """The accelerator if one can be used, else ``cpu``."""
        usable = [device for device, reason in self.devices.items() if reason == ""]
        return next((device for device in usable if device != "cpu"), "cpu")

    @classmethod
    def current(cls) -> "Environment":
        """Look at this process's machine and path."""
        return cls.of(this_interpreter())

    @classmethod
    def of(cls, interpreter: Interpreter) -> "Environment":
        """Look at this machine, and at the path of one of its interpreters."""
        installed = scan(interpreter.path)
        build = build_of("torch", interpreter)
        here = devices(build or {})
        torch = installed.find("torch")
        if build is None and torch is not None:
            build = {"__version__": torch.version}
            here |= dict.fromkeys(("cuda", "xpu"))
        return cls(
            installed=installed, torch_build=build or {}, devices=here, interpreter=interpreter
        )

    def has_module(self, name: str) -> bool | None:
        """Whether there is a module, or may be one, without an import; ``None``: nobody can say."""
        if name not in self._modules:
            self._modules[name] = name in self.interpreter.loaded or self._is_found(name)
        return self._modules[name]

    def _is_found(self, name: str) -> bool | None:
        try:
            if module_exists(name, self.interpreter.find_spec):
                return True
            importlib.invalidate_caches()  # it may have been installed a moment ago
            return module_exists(name, self.interpreter.find_spec)
        except OnlyAnImportTells:
            return None
        except Exception:  # noqa: BLE001 (finders are foreign code; where they fail, nobody knows)
            return True

    def missing_tool(self, tool: str) -> tuple[str, str] | None:
        """Return (what is missing, how to get it), or ``None`` where the tool is here."""
        if tool != "triton":
            return _missing_compiler(tool)
        if any(self.installed.find(name) for name in _TRITONS):
            return None
        return "Triton is not installed", "pip install triton"


def build_of(package: str, interpreter: Interpreter) -> dict[str, str | None] | None:
    """Read the constants of a package's ``version.py``: none where there is no such file.

    ``None``: whether there is one, only an import tells.
    """
    try:
        spec = interpreter.find_spec(package, None)
    except OnlyAnImportTells:
        return None
    if spec is None or spec.origin is None:
        return {}
    try:
        path = os.path.join(os.path.dirname(spec.origin), "version.py")
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return {}
    return {name: single or double or None for name, single, double in _CONSTANT.findall(text)}


def devices(build: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return torch's device types, each with why it cannot be used here, or an empty reason."""
    apple_silicon = sys.platform == "darwin" and os.uname().machine == "arm64"
    return {
        "cpu": "",
        "cuda": _why_no_cuda(build),
        "xpu": "" if build.get("xpu") else _built_without(build, "XPU"),
        "mps": "" if apple_silicon else "Metal needs a Mac with Apple silicon",
    }


def _why_no_cuda(build: Mapping[str, str | None]) -> str:
    if build.get("hip"):
        return "" if os.path.exists("/dev/kfd") else "no AMD GPU is visible (/dev/kfd is absent)"
    if not build.get("cuda"):
        return _built_without(build, "CUDA")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in {"", "-1"}:
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU"
    return "" if nvidia_gpus() else "no NVIDIA GPU is visible to the driver"


def _built_without(build: Mapping[str, str | None], what: str) -> str:
    if not build:
        return "PyTorch is not installed"
    return f"this PyTorch ({build.get('__version__')}) is built without {what}"


@functools.cache
def nvidia_gpus() -> int:
    """Count NVIDIA GPUs through NVML, which does not initialise CUDA; 0 without a driver.

    CUDA itself must not be touched: a process that has initialised it can no longer be forked.
    """
    import ctypes  # noqa: PLC0415 (most listings are made without a GPU)

    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        return 0
    if nvml.nvmlInit_v2() != 0:
        return 0
    count = ctypes.c_uint(0)
    failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0
    nvml.nvmlShutdown()
    return 0 if failed else count.value


def _missing_compiler(tool: str) -> tuple[str, str] | None:
    import shutil  # noqa: PLC0415 (imports every archive format)

    # torch/_inductor/config.py chooses the same way.
    cxx = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    variable, default = {"c++": ("CXX", cxx), "cc": ("CC", "cc")}[tool]
    command = os.environ.get(variable) or default
    if shutil.which(command):
        return None
    if tool == "cc" and variable not in os.environ and shutil.which("gcc"):
        return None
    language = "C++" if tool == "c++" else "C"
    return (
        f"no {language} compiler: {command!r} is not on PATH",
        f"install one (Debian: apt-get install g++; conda: cxx-compiler) or set {variable}",
    )


def _machine() -> str:
    if hasattr(os, "uname"):
        return os.uname().machine
    return os.environ.get("PROCESSOR_ARCHITECTURE", "")
