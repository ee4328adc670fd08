"""What the tests of passes share: compile with passes and look; compile with passes and prove."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch._inductor.config

from backbay.graph.canonical import canonicalise
from backbay.kit.backend import Backend
from backbay.kit.observing import collected
from backbay.kit.passes import Pass
from backbay.proof import Workload, make_golden, observe


@dataclass
class Seen:
    """What a compiled call gave, and what the passes made of its graphs."""

    result: Any
    graphs: list[torch.fx.GraphModule]
    changes: Counter[str] = field(default_factory=Counter)
    near: list[str] = field(default_factory=list)
    inductor: dict[str, Any] = field(default_factory=dict)

    def nodes(self, name: str) -> list[torch.fx.Node]:
        """Give the calls of what has a name, over all graphs."""
        found = [n for g in self.graphs for n in g.graph.nodes if n.op.startswith("call")]
        return [x for x in found if _name(x) == name]

    def calls(self, name: str) -> int:
        """Count them."""
        return len(self.nodes(name))


def _name(node: torch.fx.Node) -> str:
    called = getattr(node.target, "__name__", str(node.target))
    return called.removesuffix(".default").removesuffix(".Tensor")


def backend_of(passes: tuple[Any, ...], **declared: Any) -> Backend:
    return type("Tried", (Backend,), {"passes": passes, **declared})()


@pytest.fixture
def look() -> Callable[..., Seen]:
    """Compile a function with passes, run it once, and give what became of its graphs."""

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
def workload() -> Callable[..., Workload]:
    """Make a workload of a function of x and w: x is an input, w a parameter; both wide-ranging."""

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


class Idle(Pass):
    """Does nothing."""

    def run(self, graph_module, context):
        return 0


class Hoists(Idle):
    """Does nothing, and says that what only parameters decide is computed once."""

    hoists = True


@pytest.fixture
def hoists(request) -> Pass:
    """Give a pass that says so, or, for False, one that does not."""
    return Hoists() if getattr(request, "param", True) else Idle()
