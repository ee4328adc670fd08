"""What is compiled leaves nothing behind: no graph, no node, no report."""

import copy
import gc

import pytest
import torch

from backbay.kit.backend import Backend
from backbay.kit.observing import collected
from backbay.kit.rewrites import fold_scalar_chain, rewrite_silu
from backbay_optimizer.backend import Optimizing


class Reports(Backend):
    """Rewrites once, and nearly a second time: what nearly matched used to keep its graph."""

    passes = (rewrite_silu, fold_scalar_chain)
    codegen = "eager"


class Passes(Optimizing):
    codegen = "eager"


def alive():
    """Count what a graph consists of."""
    gc.collect()
    kinds = (torch.fx.GraphModule, torch.fx.Node, torch._subclasses.FakeTensor)
    return sum(issubclass(type(x), kinds) for x in gc.get_objects())


def program(x):
    y = x.long()
    return x * torch.sigmoid(x) + y * torch.sigmoid(y)


@pytest.fixture
def graph():
    """Return a graph as Dynamo hands it over, with its inputs."""
    torch.compiler.reset()
    given = []

    def keep(graph_module, example_inputs):
        given.extend((graph_module, example_inputs))
        return graph_module.forward

    torch.compile(program, backend=keep)(torch.ones(3))
    return given


@pytest.mark.parametrize("kind", [Reports, Passes])
def test_memory_grows_with_every_graph(kind, graph, tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    backend, (graph_module, inputs) = kind(), graph
    for _ in range(5):
        backend(copy.deepcopy(graph_module), inputs)
    before = alive()
    for _ in range(200):
        backend(copy.deepcopy(graph_module), inputs)
    assert alive() <= before


def test_a_report_keeps_its_graph(graph):
    graph_module, inputs = graph
    before = alive()
    with collected() as reports:
        for _ in range(20):
            Reports()(copy.deepcopy(graph_module), inputs)
    assert sum(len(x.near) for x in reports) == 20
    assert alive() - before < len(graph_module.graph.nodes) * 20 / 4
