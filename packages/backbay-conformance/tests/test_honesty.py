"""Level honesty: who leaves a graph to eager, always or in one way only, is called vacuous."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from backbay_conformance import conform
from backbay_conformance.levels import honesty
from backbay_conformance.ownership import Ownership, work_of

FEWEST = 28
OWNED = "static_graph_is_left_to_eager"


def status(backend, case):
    only = [f"honesty/{case}"]
    (result,) = conform(backend, device="cpu", levels=["honesty"], only=only).results
    return result.status


def owning(falls_back=lambda graph_module, example_inputs: False):
    """Make a backend whose own code torch does not see, save where it falls back to eager."""

    def backend(graph_module, example_inputs):
        if falls_back(graph_module, example_inputs):
            return lambda *args: graph_module(*args)

        def run(*args):
            with _disable_current_modes():
                return graph_module(*args)

        return run

    return backend


def test_the_level_has_lost_no_case():
    assert len(list(honesty.cases("cpu", all_samples=False))) >= FEWEST
    assert len(list(honesty.cases("cuda", all_samples=False))) > FEWEST


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_a_debug_backend_is_asked_for_what_it_does_not_claim(name):
    statement = conform(name, device="cpu", levels=["honesty"], profile="full", workers=1)
    wrong = [x for x in statement.results if x.status not in {"pass", "not_runnable"}]
    assert not [f"{x.id}: {x.status}: {x.reason}" for x in wrong]


def test_a_backend_that_does_the_work_is_called_vacuous():
    assert status(owning(), f"ownership/{OWNED}") == "pass"


def dynamic(graph_module, example_inputs):
    return any(isinstance(x, torch.SymInt) for x in example_inputs)


def training(graph_module, example_inputs):
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)


def low_precision(graph_module, example_inputs):
    return any(isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 for x in example_inputs)


def large(graph_module, example_inputs):
    return len(graph_module.graph.nodes) > 60


def changing(graph_module, example_inputs):
    return any(x.target == "mul_" for x in graph_module.graph.nodes)


class Again:
    def __init__(self):
        self.seen = 0

    def __call__(self, graph_module, example_inputs):
        self.seen += 1
        return self.seen > 1


SELECTIVE = {
    "dynamic_graph_is_left_to_eager": dynamic,
    "second_size_is_left_to_eager": dynamic,
    "forward_in_training_is_left_to_eager": training,
    "left_to_eager_in/bfloat16": low_precision,
    "large_graph_is_left_to_eager": large,
    "graph_that_changes_an_input_is_left_to_eager": changing,
    "graph_after_a_recompile_is_left_to_eager": Again(),
    "parts_of_a_broken_graph_are_left_to_eager": Again(),
}


@pytest.mark.parametrize("case", SELECTIVE)
def test_a_fall_back_in_one_way_is_not_seen(case):
    backend = owning(SELECTIVE[case])
    assert status(backend, f"ownership/{case}") == "vacuous"


@pytest.mark.parametrize("case", [x for x in SELECTIVE if not isinstance(SELECTIVE[x], Again)])
def test_a_fall_back_in_one_way_is_seen_in_another(case):
    assert status(owning(SELECTIVE[case]), f"ownership/{OWNED}") == "pass"


@pytest.mark.slow
def test_a_graph_handed_on_in_silence_is_not_seen():
    def handing_on(graph_module, example_inputs):
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph_module, example_inputs)

    assert status(handing_on, "ownership/another_compiler_does_the_work") == "vacuous"
    handing_on.codegen = "inductor"
    assert status(handing_on, "ownership/another_compiler_does_the_work") == "pass"


def test_results_kept_by_their_inputs_are_not_seen():
    known = {}

    def remembering(graph_module, example_inputs):
        def run(x):
            key = tuple(x.tolist())
            if key not in known:
                known[key] = graph_module(x)
            return known[key]

        return run

    assert status(remembering, "ownership/result_is_looked_up_by_its_inputs") == "vacuous"


def test_what_is_kept_for_backward_is_not_seen():
    def hoarding(graph_module, example_inputs):
        class Hoard(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(*(x.clone() for _ in range(40)))
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                return gradient

        return lambda *args: tuple(Hoard.apply(x) for x in graph_module(*args))

    case = "compiling/more_is_kept_for_backward_than_eager_keeps"
    assert status(hoarding, case) == "fail_behaviour"


def test_work_that_changes_its_name_counts_as_done():
    x = torch.randn(8)
    graph = work_of(torch.nn.functional.gelu, (x,))[1]
    decomposed = work_of(lambda x: x * 0.5 * (1 + (x * 0.5**0.5).erf()), (x,))[1]
    assert Ownership(graph=graph, dispatched=decomposed).share == 0
    assert graph == Counter({"gelu": 1})


def test_views_and_allocations_count_as_work():
    done = work_of(lambda x: torch.empty_like(x.t()[1:].view(-1)), (torch.randn(3, 4).t(),))[1]
    assert not done


def test_half_of_the_work_counts_as_none():
    graph, left = Counter(mul=3, sin=1), Counter(mul=2)
    owned = Ownership(graph=graph, dispatched=left)
    assert owned.share == 0.5
    assert str(owned) == "50% of 4 operators; torch still runs mul x2"


def test_a_variable_that_was_deleted_ends_the_case():
    from backbay_conformance.watching import is_graph_itself

    def boxed_with_an_empty_cell():
        graph = object()

        def boxed(args):
            return graph  # noqa: F821 (deleted below)

        boxed._boxed_call = True
        del graph
        return boxed

    assert not is_graph_itself(
        boxed_with_an_empty_cell(), torch.fx.symbolic_trace(lambda x: x.sin())
    )
