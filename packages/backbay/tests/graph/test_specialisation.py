"""A graph with symbols, made again for the sizes of one call."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.shape_prop import ShapeProp

from backbay.graph.specialisation import specialised


def traced():
    """Return a graph of a symbolic batch whose every node has other metadata of batch 4."""
    graph_module = make_fx(lambda x: torch.relu(x * 2), tracing_mode="symbolic")(torch.ones(4, 3))
    ShapeProp(graph_module).propagate(torch.ones(4, 3))
    return graph_module


def test_values_have_the_sizes_of_the_call():
    made = specialised(traced(), [torch.ones(7, 3)])
    nodes = [x for x in made.graph.nodes if x.op != "output"]
    assert [tuple(x.meta["val"].shape) for x in nodes] == [(7, 3)] * len(nodes)
    assert made(torch.ones(7, 3)).eq(2).all()


def test_an_importer_that_reads_other_metadata_does_not_see_the_first_calls_sizes():
    before = traced()
    assert next(iter(before.graph.nodes)).meta["tensor_meta"].shape == (4, 3)
    made = specialised(before, [torch.ones(7, 3)])
    for node in made.graph.nodes:
        said = node.meta.get("tensor_meta")
        assert said is None or said.shape == (7, 3), node
    assert next(iter(before.graph.nodes)).meta["tensor_meta"].shape == (4, 3)  # left as it was
