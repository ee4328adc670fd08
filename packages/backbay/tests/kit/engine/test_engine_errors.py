"""An error of a foreign engine says which operator of whose line it is about."""

import pytest
import torch
from numpy_engine import EXP, Numpy


def test_an_engines_error_names_engine_graph_cause_and_line():
    class Broken(Numpy):
        def build(self, program):
            if len(program.graph_module.graph.find_nodes(op="call_function", target=EXP)) > 1:
                raise RuntimeError("compilation failed") from ValueError("no room for two")
            return super().build(program)

    with pytest.raises(
        Exception,
        match=r"numpy can't compile this inference graph: ValueError: no room for two "
        r".*\(the graph of .*test_engine_errors.py:\d+: torch.compile",
    ):
        torch.compile(lambda x: x.exp().exp(), backend=Broken())(torch.ones(3))


def test_an_engine_that_is_absent_is_named_before_anything_is_asked_of_it():
    class Absent(Numpy):
        name, engine = "acme_engine", "acme-runtime"

        def supports(self, _):
            raise AssertionError("asked")

    with pytest.raises(Exception, match="acme_engine needs acme-runtime, which is not installed"):
        torch.compile(torch.exp, backend=Absent())(torch.ones(3))


@pytest.mark.parametrize("freeze", [False, True])
def test_an_engines_error_names_the_operator_that_it_cant_build(freeze):
    class Picky(Numpy):
        def build(self, program):
            if program.graph_module.graph.find_nodes(op="call_function", target=EXP):
                raise RuntimeError("17 has no kernel")
            return super().build(program)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(6))

        def forward(self, x):
            return (x * self.scale).exp() + self.scale.exp()

    call = torch.compile(Model(), backend=Picky(), options={"freeze": freeze})
    said = (
        r"numpy can't compile aten.exp.default in this inference graph: RuntimeError: 17 has no "
        r"kernel \(.*test_engine_errors.py:\d+: return \(x"
    )
    with pytest.raises(Exception, match=said), torch.no_grad():
        call(torch.ones(3, 6))


def test_what_is_not_installed_is_blamed_on_an_operator():
    class Missing(Numpy):
        def build(self, program):
            raise ModuleNotFoundError("No module named 'ml_dtypes'")

    said = "numpy can't compile this inference graph: ModuleNotFoundError: No module named 'ml_"
    with pytest.raises(Exception, match=said):
        torch.compile(lambda x: x * 2, backend=Missing())(torch.ones(3))


def test_the_search_for_an_operator_builds_one_twice_or_goes_on_for_ever(monkeypatch):
    tried = []

    class Broken(Numpy):
        def build(self, program):
            called = program.graph_module.graph.find_nodes(op="call_function", target=EXP)
            tried.append(len(called))
            if len(called) != 1:
                raise RuntimeError("no room for two")
            return super().build(program)

    with pytest.raises(Exception, match="numpy can't compile this inference graph"):
        torch.compile(lambda x: x.exp().exp(), backend=Broken())(torch.ones(3))
    assert tried == [2, 1]
    monkeypatch.setattr("backbay.kit.engine_region._SEARCH_S", -1.0)
    torch.compiler.reset()
    tried.clear()
    with pytest.raises(Exception, match="numpy can't compile this inference graph"):
        torch.compile(lambda x: x.exp().exp(), backend=Broken())(torch.ones(3))
    assert tried == [2]


def test_an_operator_with_several_results_is_built_without_what_reads_them():
    split, results = torch.ops.aten.split_with_sizes.default, []

    class Unsplit(Numpy):
        supports = None

        def build(self, program):
            if program.graph_module.graph.find_nodes(op="call_function", target=split):
                results.append([x.shape for x in program.results])
                raise RuntimeError("can't split")
            return super().build(program)

    call = torch.compile(lambda x: [y * 2 for y in x.split([1, 2])], backend=Unsplit())
    with pytest.raises(Exception, match=r"numpy can't compile aten.split_with_sizes.default in"):
        call(torch.ones(3))
    assert results == [[(1,), (2,)]] * 2


def test_what_reads_one_of_several_results_is_tried_by_itself():
    class Small(Numpy):
        supports = None

        def build(self, program):
            run = super().build(program)  # checks that inputs are tensors
            if len(program.graph_module.graph.find_nodes(op="call_function", target=EXP)) == 2:
                raise RuntimeError("too large")
            return run

    call = torch.compile(lambda x: [y.exp() for y in x.split([1, 2])], backend=Small())
    with pytest.raises(Exception, match="numpy can't compile this inference graph: RuntimeError"):
        call(torch.ones(3))
