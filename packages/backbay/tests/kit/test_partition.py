"""A backend that supports some operators, and hands the rest to another."""

import itertools

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

import backbay
from backbay.errors import InputError
from backbay.kit.backend import Backend
from backbay.proof import Workload, make_golden, observe

aten = torch.ops.aten
FALLBACKS = [
    "eager",
    "aot_eager_decomp_partition",
    pytest.param("inductor", marks=pytest.mark.slow),
]


class Matmuls(Backend):
    """Takes products of matrices and what is around them, if it is alone."""

    level = "aten"
    supports = (aten.mm, aten.addmm, aten.relu, aten.t, aten.mul)
    fallback = "eager"

    def __init__(self):
        super().__init__()
        self.compiled = []

    def compile(self, graph_module, example_inputs):
        self.compiled.append([str(n.target) for n in graph_module.graph.nodes])
        return graph_module.forward


class Net(torch.nn.Module):
    """A constant, a concatenation, a buffer that changes, a view, and a size."""

    def __init__(self):
        super().__init__()
        self.lift, self.drop = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        h = torch.relu(self.lift(x))
        h = h * h.sigmoid() * torch.tensor(2.0)
        h = torch.cat([h, h])
        return {"out": self.drop(h).softmax(-1), "view": h.t(), "size": h.shape[0]}


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def with_fallback(name):
    return type("Falls", (Matmuls,), {"fallback": name})()


# In CI Inductor has one dtype here: regions are cut without looking at it.
@pytest.mark.parametrize(
    ("fallback", "dtype"),
    [
        *itertools.product(
            ["eager", "aot_eager_decomp_partition"], [torch.float32, torch.bfloat16]
        ),
        pytest.param("inductor", torch.bfloat16, marks=pytest.mark.slow),
        pytest.param("inductor", torch.float32, marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_values_gradients_mutation_and_aliasing_are_eagers(fallback, dtype):
    torch.manual_seed(0)
    model, backend = Net().to(dtype), with_fallback(fallback)
    workload = Workload(model=model, args=(torch.randn(5, 6, dtype=dtype),))
    golden = make_golden(workload, train=True)
    with golden.context():
        call = torch.compile(model, backend=backend)
        proof = golden.judge(observe(call, golden.at(workload), train=True))
    assert proof.passed, proof.worst
    assert any("aten.addmm.default" in x for x in backend.compiled)
    assert not any("aten.sigmoid.default" in x for x in backend.compiled)


@pytest.mark.parametrize("fallback", FALLBACKS)
def test_a_dynamic_size_reaches_regions_that_see_only_a_multiple_of_it(fallback):
    model, backend = Net(), with_fallback(fallback)
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x)["out"], model(x)["out"])
    graphs = len(backend.compiled)
    compiled(torch.randn(12, 6))
    assert len(backend.compiled) == graphs


@pytest.mark.parametrize("fallback", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_dropout_beside_regions_draws_what_eager_draws(fallback):
    def step(x, w):
        h = F.dropout(torch.relu(x @ w), 0.5)
        return F.dropout(torch.relu(h @ w), 0.5)

    x, w = torch.randn(6, 8), torch.randn(8, 8, requires_grad=True)
    with torch._inductor.config.patch(fallback_random=True):
        compiled = torch.compile(step, backend=with_fallback(fallback))
        seen = []
        for call in (step, compiled):
            torch.manual_seed(7)
            out = call(x, w)
            seen.append((out, *torch.autograd.grad(out.square().sum(), w)))
    torch.testing.assert_close(*seen)


def test_a_dry_run_names_operators_and_lines_and_compiles_and_touches_nothing(reports):
    model, backend = Net(), Matmuls()
    x = torch.randn(5, 6, requires_grad=True)
    found = backend.dry_run(model, x, train=True)
    assert len(found.graphs) == 2  # forward and backward
    said = str(found)
    assert "aten.sigmoid.default: not in the list of supported operators" in said
    assert "test_partition.py" in said
    assert "h = h * h.sigmoid() * torch.tensor(2.0)" in said
    assert not backend.compiled
    assert not reports
    assert model.calls == 0
    assert x.grad is None
    assert model.lift.weight.grad is None


def test_what_is_dry_run_is_what_is_compiled():
    model, backend = Net(), Matmuls()
    expected = [len(x) for graph in backend.dry_run(model, torch.ones(5, 6)).graphs
                for x in graph.regions]  # fmt: skip
    with torch.no_grad():
        torch.compile(model, backend=backend)(torch.ones(5, 6))
    compiled = [sum(t.startswith("aten.") for t in x) for x in backend.compiled]
    assert expected == compiled != []


def test_small_regions_go_to_the_fallback():
    backend = type("Large", (Matmuls,), {"minimum_region": 3})()
    with torch.no_grad():
        torch.compile(Net(), backend=backend)(torch.ones(5, 6))
    assert backend.compiled
    assert all(sum(t.startswith("aten.") for t in x) >= 3 for x in backend.compiled)


def test_a_dry_run_of_a_backend_that_takes_everything_says_so():
    class Whole(Backend):
        codegen = "eager"

    with pytest.raises(InputError, match="takes every graph whole"):
        Whole().dry_run(torch.nn.Linear(1, 1), torch.ones(1))


@pytest.mark.parametrize(
    "body",
    [
        {"supports": (aten.mm,)},
        {"supports": (aten.mm,), "compile": lambda self, gm, inputs: gm.forward},
        {"supports": (aten.mm,), "level": "aten"},
    ],
)
def test_support_without_a_compiler_for_functional_graphs_is_an_error(body):
    with pytest.raises(InputError, match="define compile"):
        type("Wrong", (Backend,), body)


def test_an_unknown_fallback_is_an_error_with_the_nearest_name():
    with pytest.raises(Exception, match="aot_eager"):
        torch.compile(lambda x: x + 1, backend=with_fallback("aot_eagr"))(torch.ones(1))


def test_the_predicate_of_a_composed_backend_is_its_own():
    backend = Matmuls()
    chained = backbay.compose("backbay_gelu", backend)
    with torch.no_grad():
        torch.compile(Net(), backend=chained)(torch.ones(5, 6))
    assert any("aten.addmm.default" in x for x in backend.compiled)
    assert not any("aten.sigmoid.default" in x for x in backend.compiled)
