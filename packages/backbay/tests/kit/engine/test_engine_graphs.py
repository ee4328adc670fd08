"""Which graphs a foreign engine gets, and what is constant in them."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from numpy_engine import EXP, Net, Numpy, assert_as_eager, engine
from torch.fx import Graph, GraphModule

from backbay import compile_log
from backbay.errors import InputError
from backbay.kit.engine_region import Region

aten = torch.ops.aten


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_batches_of_4_7_and_1_are_right_and_the_engine_runs_them(train):
    backend = engine()
    assert_as_eager(Net(), backend, 4, 7, 1, train=train)
    kinds = {x.kind for x in backend.programs}
    assert kinds == ({"forward", "backward"} if train else {"inference"})
    assert not any(x.fell_back for x in compile_log.records())


def test_the_log_says_which_graph_ran_where_and_what_was_left():
    assert_as_eager(Net(), engine(), 4)
    forward, backward = compile_log.records()
    assert (forward.asked, forward.ran) == ("numpy_engine", "numpy_engine")
    assert forward.why.startswith("forward graph: ")
    assert "eager runs aten.sigmoid.default (not in the list" in forward.why
    assert forward.owned < forward.nodes
    assert backward.why.startswith("backward graph: ")


def test_an_engine_for_inference_alone_leaves_training_to_its_fallback_and_says_so():
    backend = engine(graph_kinds=("inference",))
    assert_as_eager(Net(), backend, 4)
    assert not backend.programs
    assert [(x.ran, x.fell_back) for x in compile_log.records()] == [("eager", True)] * 2
    assert "forward graph: numpy_engine takes none" in compile_log.records()[0].why
    assert_as_eager(Net(), backend, 4, train=False)
    assert backend.programs


def test_the_backward_graph_alone_can_be_left():
    backend = engine(graph_kinds=("inference", "forward"))
    assert_as_eager(Net(), backend, 4)
    assert {x.kind for x in backend.programs} == {"forward"}


@pytest.mark.parametrize("unwanted", ["weight", "bias"])
def test_gradients_that_nobody_wants_are_none(unwanted):
    model, x, backend = torch.nn.Linear(6, 3), torch.randn(4, 6), engine()
    getattr(model, unwanted).requires_grad_(requires_grad=False)
    torch.compile(model, backend=backend)(x).sum().backward()
    for name, parameter in model.named_parameters():
        if name == unwanted:
            assert parameter.grad is None
        else:
            expected = torch.autograd.grad(model(x).sum(), parameter)[0]
            torch.testing.assert_close(parameter.grad, expected)
    assert {x.kind for x in backend.programs} >= {"forward"}


def test_a_program_has_only_tensors_that_it_reads_and_computes():
    graph = Graph()
    a, b = (graph.placeholder(x) for x in "ab")
    held = graph.get_attr("held")
    doubled = graph.call_function(aten.mul.Tensor, (a, 2))
    graph.call_function(EXP, (b,))
    graph.output((None, b, held, 3, doubled, doubled))
    for node in graph.nodes:
        node.meta["val"] = torch.ones(3)
    module = torch.nn.Module()
    module.register_buffer("held", torch.ones(3))
    backend, given = engine(), [torch.ones(3), torch.zeros(3)]
    region = Region(backend, GraphModule(module, graph), "inference", {})
    none, passed, constant, number, *twice = region.built(given)(*given)
    assert (none, number) == (None, 3)
    assert passed is given[1]
    assert constant.data_ptr() == module.held.data_ptr()
    assert [x.tolist() for x in twice] == [[2.0] * 3] * 2
    (program,) = backend.programs
    assert [x.target for x in program.graph_module.graph.nodes] == [
        "a",
        aten.mul.Tensor,
        "output",
    ]


def test_frozen_weights_are_constants_of_the_region_that_reads_them():
    backend = engine()
    assert_as_eager(Net(), backend, 4, train=False, options={"freeze": True})
    assert len(backend.programs) == 2  # around sigmoid
    held = [sorted(tuple(c.shape) for c in x.constants.values()) for x in backend.programs]
    assert held == [[(8,), (8, 6)], [(4,), (4, 8)]]
    assert all(len(x.inputs) <= 2 for x in backend.programs)


def test_weights_are_inputs_unless_asked_for_and_their_changes_are_seen():
    backend, model = engine(), torch.nn.Linear(6, 4)
    call, x = torch.compile(model, backend=backend), torch.randn(3, 6)
    with torch.no_grad():
        call(x)
        model.weight.mul_(2)
        torch.testing.assert_close(call(x), model(x))
    assert not backend.programs[0].constants


def test_two_threads_are_in_what_an_engine_built_at_once():
    met = []

    class Busy(Numpy):
        def build(self, program):
            run, inside = super().build(program), [0]

            def alone(*tensors):
                inside[0] += 1
                met.append(inside[0])
                time.sleep(0.01)
                inside[0] -= 1
                return run(*tensors)

            return alone

    model, x = Net().eval(), torch.randn(4, 6)
    with torch.no_grad():
        call = torch.compile(model, backend=Busy())
        want = call(x)["out"]

        def called():
            with torch.no_grad():
                return [call(x)["out"] for _ in range(5)]

        with ThreadPoolExecutor(4) as pool:
            found = [
                y for future in [pool.submit(called) for _ in range(4)] for y in future.result()
            ]
    assert set(met) == {1}
    assert len(met) >= 21
    for one in found:
        torch.testing.assert_close(one, want)


def test_a_program_can_be_saved_for_an_engine_that_compiles_in_another_process(tmp_path):
    backend = engine()
    with torch.no_grad():
        torch.compile(torch.nn.Sequential(torch.nn.Linear(6, 8)), backend=backend)(
            torch.randn(4, 6)
        )
    (program,) = backend.programs
    torch.export.save(program.exported, tmp_path / "program.pt2")
    assert (tmp_path / "program.pt2").stat().st_size


def test_a_wrong_declaration_is_an_error():
    with pytest.raises(InputError, match="symbols is 'specialise' or 'elsewhere'"):
        engine(symbols="pass")
    with pytest.raises(InputError, match="graph_kinds has 'inference', 'forward', 'backward', not"):
        engine(graph_kinds=("training",))
