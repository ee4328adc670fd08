"""Answers a probe in a child process: loads one backend, compiles and runs a trial function.

What it finds out it appends to the file that the request names, a JSON object a line: what was
found before a crash, or where a plugin closed every descriptor, is not lost.
"""

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import psutil

from backbay.causes import one_line
from backbay.registry.probe import Probe, Probed, ProbeRequest
from backbay.registry.target import parse

_GRACE_S = 10
_TOLERANCE = 1e-2
_MIB = 2**20
_SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


class _Failed(Exception):  # noqa: N818 (a finding about the backend, not an error of the probe)
    """The backend raised nothing, and does not work."""


class _Findings:
    """The file that the parent reads."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, **facts: object) -> None:
        """Append facts; a later one of the same name replaces the earlier."""
        line = f"\n{json.dumps(facts)}\n".encode()
        # Opened each time, and written at once: a plugin may close every descriptor, and where
        # standard output was among them, its prints may land here.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


class ProbeHandler:
    """Tries one backend."""

    requests: ClassVar[Any] = Probe

    def __init__(self) -> None:
        faulthandler.disable()  # what a plugin printed last is to stand last

    def answer(self, request: Probe) -> Probed:
        """Return the reply to a request."""
        _guard(request.seconds)
        findings = _Findings(request.findings)
        try:
            _import_torch()
            with _measured(findings):
                backend = _load(request.what.load, findings)
            _try(backend, request.what, findings)
        except BaseException as error:  # noqa: BLE001 (a plugin may raise SystemExit)
            findings.add(reason=_cause(error))
        findings.add(ended=True)
        return Probed()


def _guard(seconds: float) -> None:
    if hasattr(signal, "alarm"):
        # Where the parent was killed, nobody else ends this process.
        signal.alarm(int(seconds) + _GRACE_S)


def _import_torch() -> None:
    for switch in _SWITCHES:
        if os.environ.get(switch) == "1":
            raise _Failed(f"torch.compile is switched off: the environment has {switch}=1")
    torch = _torch()
    importlib.import_module("torch._dynamo")
    # Fills torch's list of names, which loads no entry point; it takes 400 modules.
    torch.compiler.list_backends()


def _torch() -> Any:
    import torch  # noqa: PLC0415 (a probe reports that it can't be imported)

    return torch


@contextlib.contextmanager
def _measured(findings: _Findings) -> Iterator[None]:
    cuda = _cuda_states()
    memory = psutil.Process().memory_info().rss
    modules = len(sys.modules)
    start = time.perf_counter()
    yield
    findings.add(
        import_ms=round((time.perf_counter() - start) * 1e3, 1),
        modules=len(sys.modules) - modules,
        rss_mb=round((psutil.Process().memory_info().rss - memory) / _MIB, 1),
        initialised_cuda=any(
            now and not before for before, now in zip(cuda, _cuda_states(), strict=True)
        ),
    )


def _cuda_states() -> tuple[bool, bool]:
    """Whether torch has initialised CUDA, and whether anything has."""
    return _torch().cuda.is_initialized(), _driver_is_initialised()


def _driver_is_initialised() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except (AttributeError, OSError):  # no such mode on this system; nothing has loaded the driver
        return False
    # Answers with an error until something has called cuInit.
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)


def _load(load: str, findings: _Findings) -> str | Callable[..., Any]:
    findings.add(stage="import")
    kind, _, what = load.partition(":")
    if kind in {"torch", "import"}:
        return _look_up(what)
    target = parse(what)
    if target is None:
        raise _Failed(f"{what!r} is not of the form module:attribute")
    found = target.load()
    findings.add(stage="call")
    backend = _callable(found, what)
    return _callable(backend(), f"what {what} returned") if kind == "factory" else backend


def _look_up(what: str) -> str:
    """Have torch load ``NAME``, or import the module of ``MODULE:NAME`` before that."""
    from torch._dynamo.backends.registry import lookup_backend  # noqa: PLC0415

    module, _, name = what.rpartition(":")
    if module:
        importlib.import_module(module)
    lookup_backend(name)
    return name


def _callable(found: object, what: str) -> Callable[..., Any]:
    if callable(found):
        return found
    raise _Failed(
        f"{what} is not a backend: it is of type {type(found).__name__}, which can't be called"
    )


def _try(backend: str | Callable[..., Any], asked: ProbeRequest, findings: _Findings) -> None:
    """Compile a trial function, call it twice, and compare with eager.

    Raises:
        _Failed: nothing was compiled, or a result is not what eager gives.
    """
    torch = _torch()

    def trial(x: Any, y: Any) -> Any:
        return torch.relu(x @ y + 1.0)

    with torch.no_grad():
        findings.add(stage="start")  # where eager fails, the backend is not to blame
        x = torch.linspace(-1, 1, 64).reshape(8, 8).to(asked.device)
        y = x.flip(0).sin()
        expected = _kept(trial(x, y))
        findings.add(stage="compile")
        # fullgraph: Dynamo may not hide a failure by running the function without the backend.
        options = dict(asked.options) or None
        compiled = torch.compile(trial, backend=backend, options=options, fullgraph=True)
        results = _call_twice(compiled, (x, y), findings)
    findings.add(stage="compare")
    for result in results:
        _compare(result, expected)
    findings.add(stage="done", reason=f"it compiled a small function and ran it on {asked.device}")


def _call_twice(
    compiled: Callable[..., Any], arguments: tuple[Any, ...], findings: _Findings
) -> list[Any]:
    dynamo = _torch()._dynamo  # noqa: SLF001 (torch shows nowhere else what it compiled)
    statistics = dynamo.utils.counters["stats"]

    def compilation_ended(*_: object) -> None:
        # It is called after a failure too: of the backend, or of what Dynamo does after it.
        if statistics["unique_graphs"] and sys.exc_info()[0] is None:
            findings.add(stage="run")

    dynamo.on_compile_end(compilation_ended)
    first = _kept(compiled(*arguments))
    if not statistics["unique_graphs"]:  # a plugin can switch it off
        raise _Failed("torch.compile ran the function without compiling it")
    return [first, _kept(compiled(*arguments))]


def _kept(result: Any) -> Any:
    """Copy a tensor to the CPU, as a later call may write over it, and wait for its device."""
    is_tensor = isinstance(result, _torch().Tensor)
    return result.detach().cpu().clone() if is_tensor else result


def _compare(result: Any, expected: Any) -> None:
    if not isinstance(result, type(expected)):
        raise _Failed(f"it gave a {type(result).__name__}, not a tensor")
    if result.shape != expected.shape:
        raise _Failed(f"it gave shape {tuple(result.shape)}, not {tuple(expected.shape)}")
    off = (result.double() - expected.double()).abs().max() / expected.double().abs().max()
    if not off <= _TOLERANCE:  # a NaN is off too
        raise _Failed(f"its result is off by {float(off):.3g} of the largest value")


def _cause(error: BaseException) -> str:
    return str(error) if isinstance(error, _Failed) else one_line(error)
