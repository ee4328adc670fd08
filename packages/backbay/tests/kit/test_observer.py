"""Who observes passes sees each graph before and after; who does not costs nothing."""

import threading

import pytest
import torch

from backbay.errors import BackbayError, MissingOutput
from backbay.graph.report import listing
from backbay.kit.backend import Backend
from backbay.kit.observing import observed_by
from backbay.kit.passes import graph_pass
from backbay.kit.pipeline import run_passes
from backbay.kit.rewrites import rewrite_silu


class Notes:
    """Writes down what it is told."""

    def __init__(self):
        self.told = []

    def before(self, one, graph_module):
        self.told.append(("before", one.name, len(listing(graph_module.graph))))

    def after(self, one, graph_module, report):
        self.told.append(("after", one.name, len(listing(graph_module.graph)), report.changes))

    def failed(self, one, graph_module, error):
        self.told.append(("failed", one.name, type(error).__name__))


@graph_pass(level="aten")
def nothing(graph_module):
    return 0


def traced():
    return torch.fx.symbolic_trace(lambda x: x * torch.sigmoid(x))


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def test_each_pass_is_told_with_the_graph_as_it_is_before_and_after_it():
    class Two(Backend):
        passes = (rewrite_silu, nothing)
        codegen = "eager"

    notes = Notes()
    with observed_by(notes), torch.no_grad():
        torch.compile(lambda x: x * x.sigmoid(), backend=Two())(torch.ones(3))
    assert notes.told == [
        ("before", "rewrite_silu", 4),
        ("after", "rewrite_silu", 3, 1),
        ("before", "nothing", 3),
        ("after", "nothing", 3, 0),
    ]


def test_nobody_is_told_after_the_block_and_the_outer_one_again_after_the_inner():
    outer, inner = Notes(), Notes()
    with observed_by(outer):
        with observed_by(inner):
            run_passes([rewrite_silu], traced())
        run_passes([rewrite_silu], traced())
    run_passes([rewrite_silu], traced())
    assert [len(outer.told), len(inner.told)] == [2, 2]


def test_a_pass_that_raises_or_breaks_the_graph_is_told_and_still_raises():
    @graph_pass()
    def loses(graph_module):
        graph_module.graph.erase_node(next(iter(reversed(graph_module.graph.nodes))))
        graph_module.recompile()
        return 1

    @graph_pass()
    def raises(graph_module):
        raise KeyError("x")

    notes = Notes()
    with observed_by(notes):
        with pytest.raises(MissingOutput):
            run_passes([loses], traced())
        with pytest.raises(BackbayError, match="pass raises raised KeyError"):
            run_passes([raises], traced())
    assert [x for x in notes.told if x[0] != "before"] == [
        ("failed", "loses", "MissingOutput"),
        ("failed", "raises", "BackbayError"),
    ]


def test_a_backward_graph_that_another_thread_compiles_is_told_too():
    class Aten(Backend):
        passes = (nothing,)
        codegen = "eager"

    notes = Notes()
    x = torch.randn(5, 3, requires_grad=True)
    with observed_by(notes):
        compiled = torch.compile(lambda x: x.sin() * x.shape[0], backend=Aten())
        result = compiled(x)
    seen = len(notes.told)
    thread = threading.Thread(target=lambda: result.sum().backward())
    thread.start()
    thread.join()
    assert len(notes.told) > seen  # compiled when it was first needed, where nobody observes


def test_what_a_pass_says_beside_is_in_its_report():
    @graph_pass()
    def says(graph_module, context):
        context.detail["gain"] = 1.5
        return 0

    assert run_passes([says], traced())[0].detail == {"gain": 1.5}
    assert run_passes([nothing], traced())[0].detail == {}
