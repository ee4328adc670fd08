"""What several test files share."""

import dataclasses
import functools
import gc
import importlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("COLUMNS", None)  # of the terminal that pytest runs in
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

# Compilers make many objects that stay: to look for garbage among them is a fifteenth of the time.
# What a cycle of objects says when it is collected is so said later, perhaps in another test.
RARELY = 50_000, 20, 20
gc.set_threshold(*RARELY)

# One commit, one verdict: what is drawn depends on the test alone, unless pytest is told otherwise:
# `--hypothesis-profile=anew`.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("anew", derandomize=False)
hypothesis.settings.load_profile("same")

Install = Callable[..., Path]


def pytest_collection_finish() -> None:
    """Keep pytest off torch's trace, which takes a tenth of each compile to be written.

    Torch writes it where its logger has a handler, and pytest adds its own to all that don't
    propagate.
    """
    logging.getLogger("torch.__trace").propagate = True


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
    """A registry that sees torch 2.13 for CPUs, and what `install` wrote; looked at lazily."""
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
        if where.partition(".")[0] in {"backbay", "backbay_adapters", "backbay_optimizer"}:
            monkeypatch.delitem(held, name)


@pytest.fixture
def reports() -> Iterator[list[Any]]:
    """Collect what passes report in a test."""
    from backbay.kit.observing import collected

    with collected() as found:
        yield found


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in a fresh Python process."""

    def run(program: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        rarely = f"import gc; gc.set_threshold{RARELY}\n"
        command = [sys.executable, "-c", rarely + textwrap.dedent(program)]
        return subprocess.run(command, capture_output=True, text=True, check=check)

    return run


@pytest.fixture(scope="module")
def sigterm_as_before() -> Iterator[None]:
    """Put back who handles SIGTERM: Ray does from its start on, and leaves it so."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start no child processes for races and verifications: each would import torch for 5 s.

    Nothing is isolated, and nothing ends what takes too long. One request is answered at a time:
    the default dtype, which a reference sets to float64, is one for all threads.
    """
    import torch

    # Nor ahead: each sets variables from its start to its end, one inside of another.
    monkeypatch.setattr("backbay.race.ahead.Ahead.start", lambda *_: None)
    one_at_a_time = threading.RLock()

    def started(
        service: Service[Any, Any], environment: Mapping[str, str], _path: object = None
    ) -> LocalClient[Any, Any]:
        handler = _handler_of(service)
        answer = handler.answer

        def locked(request: Any) -> Any:
            with one_at_a_time:
                return answer(request)

        handler.answer = locked
        return LocalClient(service, handler, environment)

    monkeypatch.setattr(Service, "start", started)
    torch.compiler.reset()
    with torch.random.fork_rng():
        yield
    torch.compiler.reset()


@pytest.fixture
def judged_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no child processes that judge, for backends that don't turn on their judge."""
    from backbay.judge.requests import SERVICE as RACE
    from backbay.verify.weighing_requests import SERVICE as VERIFICATION

    start = Service.start

    def started(
        service: Service[Any, Any], environment: Mapping[str, str], path: Path | None = None
    ) -> Any:
        if service is not RACE and service is not VERIFICATION:
            return start(service, environment, path)
        return LocalClient(service, _handler_of(service), environment)

    monkeypatch.setattr(Service, "start", started)


def _handler_of(service: Service[Any, Any]) -> Any:
    module, _, attribute = service.handler.partition(":")
    return getattr(importlib.import_module(module), attribute)()


@dataclass
class Seen:
    """What a compiled call gave, and what the passes made of its graphs."""

    result: Any
    graphs: list[Any]
    changes: Counter[str] = field(default_factory=Counter)
    near: list[str] = field(default_factory=list)
    inductor: dict[str, Any] = field(default_factory=dict)

    def nodes(self, name: str) -> list[Any]:
        """Return the calls of what has a name, over all graphs."""
        found = [n for g in self.graphs for n in g.graph.nodes if n.op.startswith("call")]
        return [x for x in found if _name(x) == name]

    def calls(self, name: str) -> int:
        """Count them."""
        return len(self.nodes(name))


def _name(node: Any) -> str:
    called = getattr(node.target, "__name__", str(node.target))
    return called.removesuffix(".default").removesuffix(".Tensor")


def backend_of(passes: tuple[Any, ...], **declared: Any) -> Any:
    from backbay.kit import Backend

    return type("Tried", (Backend,), {"passes": passes, **declared})()


@pytest.fixture
def look() -> Callable[..., Seen]:
    """Compile a function with passes, run it once, and give what became of its graphs."""
    import torch

    from backbay.graph.canonical import canonicalise
    from backbay.kit import collected

    def run(function, *args, passes, dynamic=None, options=None):
        graphs = []

        def keep(self, graph_module, example_inputs):
            graphs.append(graph_module)
            return graph_module.forward

        torch.compiler.reset()
        level = "torch" if all(x.level == "torch" for x in passes) else "aten"
        backend = backend_of(tuple(passes), compile=keep, level=level)
        call = torch.compile(function, backend=backend, dynamic=dynamic, options=options)
        with collected() as reports:
            result = call(*args)
        seen = Seen(result, graphs)
        for report in reports:
            seen.changes[report.name] += report.changes
            seen.near += [x.reason for x in report.near]
            seen.inductor.update(report.inductor)
        for graph_module in graphs:
            graph_module.graph.lint()
            canonicalise(graph_module.graph)
        return seen

    return run


@pytest.fixture
def prove() -> Callable[..., Counter[str]]:
    """Prove a model, compiled with passes, forward and backward; give how much they changed."""
    import torch
    import torch._inductor.config

    from backbay.kit import collected
    from backbay.proof import make_golden, observe

    def run(
        workload,
        *,
        passes,
        dynamic=None,
        codegen="eager",
        options=None,
        cached=False,
        train=True,
    ):
        golden = make_golden(workload, train=train)
        torch.compiler.reset()
        backend = backend_of(tuple(passes), codegen=codegen)
        # A graph from Inductor's cache has been through its passes before: they would not run.
        caches = torch._inductor.config.patch(
            force_disable_caches=codegen == "inductor" and not cached
        )
        with golden.context(), caches, collected() as reports:
            call = torch.compile(workload.model, backend=backend, dynamic=dynamic, options=options)
            proof = golden.judge(observe(call, golden.at(workload), train=train))
        assert proof.passed, proof.worst
        changes = Counter()
        for report in reports:
            changes[report.name] += report.changes
        return changes

    return run


@pytest.fixture
def workload() -> Callable[..., Any]:
    """Make a workload of a function of x and w: x is an input, w a parameter; both wide-ranging."""
    import torch

    from backbay.proof import Workload

    def make(function, dtype, shape=(8, 33)):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.randn(shape[-1], dtype=dtype))

            def forward(self, x):
                return function(x, self.w)

        torch.manual_seed(0)
        x = (torch.randn(shape) * 3).to(dtype).requires_grad_()
        return Workload(model=Model(), args=(x,))

    return make


@pytest.fixture
def lift(monkeypatch) -> Callable[..., None]:
    """Have a pass require other devices or dtypes, or give a constant of its file another value."""

    def run(one, **changed):
        fields = {"DEVICES": "devices", "DTYPES": "dtypes"}
        required = {fields[x]: changed.pop(x) for x in fields.keys() & changed.keys()}
        requires = dataclasses.replace(type(one).requires, **required)
        monkeypatch.setattr(type(one), "requires", requires)
        for name, value in changed.items():
            home = "backbay.kit.passes" if name == "IS_HIP" else type(one).__module__
            monkeypatch.setattr(sys.modules[home], name, value)

    return run
