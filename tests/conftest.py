"""What several test files share."""

import functools
import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores. Two threads each, on two cores, take thirty times as long as one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Nor does a process that compiles need others to help it: they import torch first.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# In every empty cache folder Inductor tries the C++ compiler with each instruction set of the
# processor, for 16 s and more. They are taken to work; set it to nothing to have them tried.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

from backbay.registry import Environment, Registry
from backbay.registry.distributions import scan
from backbay.session import LocalClient, Service

# One commit, one verdict: what is drawn depends on the test alone, unless pytest is told otherwise:
# `--hypothesis-profile=anew`.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("anew", derandomize=False)
hypothesis.settings.load_profile("same")

Install = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def _guards_are_not_timed() -> Iterator[None]:
    """Leave out what Dynamo logs of each graph's guards.

    To time them it flushes the processor's caches, for 30 ms: a quarter of a small graph's compile.
    """
    if "torch" not in sys.modules:  # no file that was collected has imported it
        yield
        return
    import torch._dynamo.guards

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *_: 0.0, raising=False)
        yield


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Write a distribution's metadata folder, as an installer would."""

    def write(name: str, version: str = "1.0", entry_points: str | bytes = "") -> Path:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        data = entry_points if isinstance(entry_points, bytes) else entry_points.encode()
        (folder / "entry_points.txt").write_bytes(data)
        return folder

    return write


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Give a registry that sees torch 2.13 for CPUs, and what `install` wrote; looked at lazily."""
    _forget_what_torch_loaded(monkeypatch)

    class LazyRegistry(Registry):
        @functools.cached_property
        def environment(self) -> Environment:
            return Environment(
                installed=scan([str(tmp_path)]),
                torch_build={"__version__": "2.13.0+cpu", "cuda": None},
                devices={"cpu": "", "cuda": "this PyTorch is built without CUDA"},
            )

    return LazyRegistry()


def _forget_what_torch_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the backends that earlier tests of this process had torch load: nobody installed them.

    To a registry that knows of no such distribution they would be this process's own.
    """
    module = sys.modules.get("torch._dynamo.backends.registry")
    held = {} if module is None else module._COMPILER_FNS
    for name, compiler_fn in list(held.items()):
        where = getattr(compiler_fn, "__module__", None) or type(compiler_fn).__module__
        if where.partition(".")[0] == "backbay":
            monkeypatch.delitem(held, name)


@pytest.fixture
def reports() -> Iterator[list[Any]]:
    """Collect what passes report in a test."""
    from backbay.kit.observing import collected

    with collected() as found:
        yield found


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in a fresh Python process."""

    def run(program: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(program)]
        return subprocess.run(command, capture_output=True, text=True, check=check)

    return run


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start no child processes for races and verifications: each would import torch for 5 s.

    Nothing is isolated, and nothing ends what takes too long.
    """
    import torch

    def started(
        service: Service[Any, Any], environment: Mapping[str, str]
    ) -> LocalClient[Any, Any]:
        module, _, attribute = service.handler.partition(":")
        handler = getattr(importlib.import_module(module), attribute)()
        return LocalClient(service, handler, environment)

    monkeypatch.setattr(Service, "start", started)
    torch.compiler.reset()
    with torch.random.fork_rng():
        yield
    torch.compiler.reset()
