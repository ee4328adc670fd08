"""Which graphs a foreign engine gets, and what is constant in them."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from numpy_engine import Net, Numpy, assert_as_eager, engine

from backbay import compile_log
from backbay.errors import InputError

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


def test_gradients_that_nobody_wants_are_none():
    model = torch.nn.Linear(6, 3)
    model.bias.requires_grad_(requires_grad=False)
    x = torch.randn(4, 6)
    backend = engine()
    torch.compile(model, backend=backend)(x).sum().backward()
    expected = torch.autograd.grad(model(x).sum(), model.weight)[0]
    torch.testing.assert_close(model.weight.grad, expected)
    assert model.bias.grad is None
    assert {x.kind for x in backend.programs} >= {"backward"}


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
