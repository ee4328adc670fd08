"""Level context: torch's own backends pass it, and themes say "broken" of a broken backend."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from backbay_conformance import conform
from backbay_conformance.levels import context

CASES = list(context.cases("cpu", all_samples=False))
FEWEST = 95
KNOWN = {"context/subclasses/torch_function_of_a_subclass_is_not_called": "fail_error"}
"""PyTorch issue 193932: a bare subclass fails behind AOTAutograd."""


def status(backend, case):
    (result,) = conform(backend, device="cpu", levels=["context"], only=[f"context/{case}"]).results
    return result.status


def test_the_level_has_lost_no_case():
    assert len(CASES) >= FEWEST
    on_cuda = {x.id for x in context.cases("cuda", all_samples=False)}
    assert {x.split("/")[1] for x in on_cuda - {x.id for x in CASES}} == {"streams"}


@pytest.mark.slow
def test_a_right_backend_is_called_wrong():
    statement = conform("aot_eager", device="cpu", levels=["context"], profile="full", workers=1)
    found = {x.id: x.status for x in statement.results if x.status != "pass"}
    assert found == KNOWN


def without(*names):
    """Make a backend that leaves nodes of a graph out."""

    def faulty(graph_module, example_inputs):
        for node in reversed(graph_module.graph.nodes):
            if getattr(node.target, "__name__", "") in names:
                graph_module.graph.erase_node(node)
        graph_module.recompile()
        return lambda *args: graph_module(*args)

    return faulty


def first_branch(graph_module, example_inputs):
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.higher_order.cond:
            node.args = (True, *node.args[1:])
    graph_module.recompile()
    return lambda *args: graph_module(*args)


def around(change):
    def faulty(graph_module, example_inputs):
        return lambda *args: tuple(change(x) for x in graph_module(*args))

    return faulty


def from_the_first_part(x):
    return TwoTensor(x.a, x.a) if isinstance(x, TwoTensor) else x


def twice(graph_module, example_inputs):
    def run(*args):
        graph_module(*args)
        return graph_module(*args)

    return run


def on_copies(graph_module, example_inputs):
    return lambda *args: graph_module(*(x.clone() for x in args))


FAULTS = {
    "modes/region_without_autocast_is_cast": (
        without("_enter_autocast", "_exit_autocast"), "fail_metadata"
    ),
    "higher_order/branch_that_is_not_asked_for": (first_branch, "fail_value"),
    "subclasses/second_part_is_computed_from_the_first": (
        around(from_the_first_part), "fail_value"
    ),
    "extensions/custom_operator_runs_too_often_or_never": (twice, "fail_behaviour"),
    "extensions/change_by_a_custom_operator_is_dropped": (on_copies, "fail_mutation"),
    "functions/backward_by_hand_is_replaced": (around(torch.detach), "fail_grad"),
    "modules/norm_of_a_weight_is_frozen": (around(torch.detach), "fail_grad"),
    "autograd/gradient_of_a_result_inside": (around(torch.detach), "fail_error"),
    "transforms/inside/grad": (around(lambda x: x * 1.001), "fail_value"),
    "directives/step_that_is_marked": (around(lambda x: x.round()), "fail_value"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_not_seen(case):
    backend, wanted = FAULTS[case]
    assert status(backend, case) == wanted


def test_a_theme_has_no_fault():
    themes = {x.id.split("/")[1] for x in CASES}
    assert themes == {case.partition("/")[0] for case in FAULTS}
