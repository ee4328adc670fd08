import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.effects import is_pure
from backbay.graph.values import value_of
from backbay.kit.passes import graph_pass
from backbay.kit.pipeline import run_passes
from backbay.kit.rewrites import remove_dead_code

DTYPES = [torch.float32, torch.bfloat16]


def traced(function):
    return torch.fx.symbolic_trace(function)


def run(graph_module):
    (report,) = run_passes([remove_dead_code], graph_module)
    return report.changes


def test_chain_of_unused_nodes_stays():
    graph_module = traced(lambda x: x.sigmoid())
    x = next(iter(graph_module.graph.nodes))
    with graph_module.graph.inserting_after(x):
        first = graph_module.graph.call_method("exp", (x,))
    with graph_module.graph.inserting_after(first):
        graph_module.graph.call_function(torch.mul, (first, 2))
    graph_module.recompile()
    assert run(graph_module) == 2
    assert [n.op for n in graph_module.graph.nodes] == ["placeholder", "call_method", "output"]


def test_what_is_used_goes(look):
    x = torch.randn(4)
    seen = look(lambda x: torch.exp(x) * 2, x, passes=[remove_dead_code])
    assert not seen.changes["remove_dead_code"]


def test_unused_input_goes():
    graph_module = traced(lambda x, y: x + 1)
    assert run(graph_module) == 0
    assert graph_module(1, 2) == 2


def test_in_place_method_goes():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_method("add_", (x, 1))
    graph.output(x)
    graph_module = torch.fx.GraphModule({}, graph)
    assert run(graph_module) == 0
    assert graph_module(torch.zeros(1)).item() == 1


def test_mutation_through_a_view_goes(look):
    def through(x):
        y = x * 1.5
        y[0].mul_(3)
        y[1] = 7
        return y

    x = torch.randn(4, 3)
    seen = look(through, x, passes=[remove_dead_code])
    assert torch.equal(seen.result, through(x))


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (F.relu, {"args": (True,)}),
        (F.dropout, {"args": (0.5, True)}),
        (torch.relu_, {}),
        (torch.rand_like, {}),
        (torch.bernoulli, {}),
        (F.dropout2d, {"args": (0.5,)}),
        (torch.exp, {"kwargs": {"out": "x"}}),
        (torch._assert_async, {}),
        (torch._assert, {"args": ("why",)}),
        (torch.ops.aten.add_.Tensor, {"args": (1,)}),
        (torch.ops.aten.rand_like.default, {}),
        (torch.ops.aten._assert_async.msg, {"args": ("why",)}),
        (torch.ops.aten.native_batch_norm.default, {}),
        (torch.batch_norm, {}),
        (torch._C._set_grad_enabled, {}),
        (torch.ops.higher_order.cond, {}),
        (print, {}),
        (torch.fused_moving_avg_obs_fake_quant, {}),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),  # a function's text holds its address
)
def test_side_effect_of_a_function_goes(target, arguments):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    keywords = dict.fromkeys(arguments.get("kwargs", {}), x)
    node = graph.call_function(target, (x, *arguments.get("args", ())), keywords)
    graph.output(x)
    assert not is_pure(node)
    assert run(torch.fx.GraphModule({}, graph)) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i, w, m: F.embedding(i, w, max_norm=1.0),
        lambda x, i, w, m: F.batch_norm(x, m[0], m[1], training=True),
    ],
    ids=["embedding", "batch_norm"],
)
def test_state_that_a_function_updates_is_left_as_it_was(look, call):
    def unused(x, i, w, m):
        call(x, i, w, m)
        return x + 1

    def inputs():
        torch.manual_seed(0)
        return torch.randn(4, 3), torch.tensor([0, 1]), torch.randn(4, 3) * 9, torch.ones(2, 3)

    eager, compiled = inputs(), inputs()
    unused(*eager)
    look(unused, *compiled, passes=[remove_dead_code])
    for one, other in zip(eager, compiled, strict=True):
        assert torch.equal(one, other)


def test_generator_does_not_move_on(look):
    def draws(x):
        torch.rand_like(x)
        return x + torch.rand_like(x)

    x = torch.zeros(5)
    torch.manual_seed(0)
    expected = draws(x)
    torch.manual_seed(0)
    assert torch.equal(look(draws, x, passes=[remove_dead_code]).result, expected)


def test_assertion_of_the_user_no_longer_raises(look):
    def positive(x):
        torch._assert_async((x > 0).all())
        return x + 1

    with pytest.raises(RuntimeError):
        look(positive, torch.tensor([-1.0]), passes=[remove_dead_code])


def test_autocast_region_opens_and_never_closes(look):
    def mixed(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x
        return y.float() @ x

    x = torch.randn(4, 4)
    assert torch.equal(look(mixed, x, passes=[remove_dead_code]).result, mixed(x))


def test_custom_operator_that_prints_goes():
    with torch.library._scoped_library("backbay_tests", "DEF") as library:
        library.define("shout(Tensor x) -> Tensor")
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        graph.call_function(torch.ops.backbay_tests.shout.default, (x,))
        graph.call_function(torch.ops.backbay_tests.shout, (x,))
        graph.output(x)
        assert run(torch.fx.GraphModule({}, graph)) == 0


CALLS = {
    "torch": (torch.exp, torch.neg),
    "aten": (torch.ops.aten.exp.default, torch.ops.aten.neg.default),
}


def leave_dead(level):
    """Return a pass that adds two nodes without users: Dynamo and AOTAutograd leave none."""

    @graph_pass(level=level)
    def leave(graph_module):
        graph = graph_module.graph
        x = next(n for n in graph.nodes if isinstance(value_of(n), torch.Tensor))
        first = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(first):
            for target in CALLS[level]:
                x = graph.call_function(target, (x,))
        graph_module.recompile()
        return 2

    return leave


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_model_with_dead_code_is_wrong_without_it(prove, workload, dtype, dynamic, level):
    work = workload(lambda x, w: F.dropout(x * w, 0.2).exp().sum(-1), dtype)
    changes = prove(work, passes=[leave_dead(level), remove_dead_code.at(level)], dynamic=dynamic)
    assert changes["remove_dead_code"] >= 2


@pytest.mark.slow
def test_dead_code_is_wrong_after_inductor(prove, workload):
    work = workload(lambda x, w: (x * w).exp().sum(-1), torch.float32)
    passes = [leave_dead("aten"), remove_dead_code.at("aten")]
    assert prove(work, passes=passes, codegen="inductor")["remove_dead_code"] >= 2
