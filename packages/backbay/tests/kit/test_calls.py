"""Nothing stands between Dynamo and compiled code that need not: see ``benchmarks/overhead.py``."""

import pytest
import torch
from torch.fx import GraphModule, symbolic_trace
from torch.fx._lazy_graph_module import _LazyGraphModule

from backbay.errors import BackbayError
from backbay.kit.backend import Backend
from backbay.kit.codegen import boxed


class Own(Backend):
    def compile(self, graph_module, example_inputs):
        return graph_module.forward


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def test_a_graphs_own_forward_is_wrapped_and_each_call_pays_for_it():
    given = []

    def backend(graph_module, example_inputs):
        given.append((graph_module, Own()(graph_module, example_inputs)))
        return given[0][1]

    assert torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1)) == 2
    graph_module, compiled = given[0]
    assert compiled.__self__ is graph_module


def test_a_graph_of_the_authors_own_that_gives_a_bare_tensor_is_let_through():
    class Bare(Backend):
        def compile(self, graph_module, example_inputs):
            return symbolic_trace(lambda x: x + 1).forward

    with pytest.raises(BackbayError, match="returns Tensor: return a tuple"):
        torch.compile(lambda x: x + 1, backend=Bare())(torch.ones(3))


def test_a_boxed_forward_asks_at_each_call_whether_its_code_is_made(monkeypatch):
    traced = symbolic_trace(lambda x: (x + 1,))
    lazy = _LazyGraphModule(traced, traced.graph)
    run = boxed(lazy.forward)

    def asked(self):
        raise AssertionError("asked again")

    monkeypatch.setattr(_LazyGraphModule, "real_recompile", asked)
    with pytest.raises(AssertionError, match="asked again"):
        _LazyGraphModule(traced, traced.graph).forward(torch.ones(1))  # what is mended
    assert run([torch.ones(1)])[0] == 2


def test_a_method_of_a_graph_module_is_taken_for_its_forward():
    class Two(GraphModule):
        def twice(self, x):
            return (self.forward(x)[0] * 2,)

    traced = symbolic_trace(lambda x: (x + 1,))
    assert boxed(Two(traced, traced.graph).twice)([torch.ones(1)])[0] == 4
