import pytest
import torch

from backbay.kit.passes import PassContext
from backbay.kit.rewrites import fold_constants

DTYPES = [torch.float32, torch.bfloat16]
LEVELS = ["torch", "aten"]


def check(look, function, *args, folded, level="torch", **how):
    seen = look(function, *args, passes=[fold_constants.at(level)], **how)
    torch.testing.assert_close(seen.result, function(*args), rtol=0, atol=0)
    assert seen.changes["fold_constants"] == folded
    return seen


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (10000.0 ** (-torch.arange(0, 4) / 8)),
        lambda x: x + torch.ones(4).cumsum(0).mul(2),
        lambda x: x + torch.full((4,), 2.0).sqrt(),
        lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]).exp(),
        lambda x: x + torch.outer(torch.arange(4.0), torch.arange(4.0))[1],
    ],
)
def test_expression_of_constants_is_computed_in_every_call(look, function, level):
    seen = check(look, function, torch.randn(4), folded=1, level=level)
    kinds = {n.op for n in seen.graphs[0].graph.nodes}
    assert "get_attr" in kinds
    assert seen.calls("arange") + seen.calls("aten.arange") == 0


@pytest.mark.parametrize("level", LEVELS)
def test_constructor_alone_becomes_a_load(look, level):
    check(look, lambda x: x + torch.arange(4), torch.randn(4), folded=0, level=level)


def test_model_that_has_no_constants_changes(look):
    check(look, lambda x: x.exp() * 2, torch.randn(4), folded=0)


@pytest.mark.parametrize("level", LEVELS)
def test_every_call_draws_the_same_numbers(look, level):
    def function(x):
        return x + torch.rand(4).mul(2) + torch.bernoulli(torch.full((4,), 0.5))

    torch.manual_seed(0)
    expected = [function(torch.zeros(4)) for _ in range(2)]
    torch.manual_seed(0)
    seen = look(function, torch.zeros(4), passes=[fold_constants.at(level)])
    again = torch.compile(function, backend="eager")(torch.zeros(4))
    assert torch.equal(seen.result, expected[0])
    assert torch.equal(again, expected[1])


def test_memory_that_nobody_wrote_becomes_a_constant(look):
    seen = look(lambda x: x + torch.empty(4).mul(0), torch.zeros(4), passes=[fold_constants])
    assert not seen.changes["fold_constants"]


def test_table_that_is_changed_in_place_keeps_the_change(look):
    def function(x):
        table = torch.arange(4.0).mul(2)
        table[0].add_(1)
        table.view(-1)[1:].sub_(1)
        return table + x

    check(look, function, torch.randn(4), folded=0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.view(2, 2), lambda x: x[1:]])
def test_caller_writes_into_the_constant(look, view, level):
    def function(x):
        table = torch.arange(4.0).mul(2)
        return view(table), x + table

    torch.compiler.reset()
    x = torch.randn(4)
    graphs = look(function, x, passes=[fold_constants.at(level)]).graphs
    given = [leaf for leaf in graphs[0](x) if leaf.shape != x.shape or not torch.equal(leaf, x)]
    for leaf in given:
        leaf.zero_()
    after = graphs[0](x)
    for one, other in zip(after, function(x), strict=True):
        assert torch.equal(one, other)


def test_size_of_the_first_call_becomes_a_constant(look):
    def function(x):
        return x * torch.arange(x.shape[0]).cos() + torch.arange(3).cos().sum()

    seen = check(look, function, torch.randn(5), folded=1, dynamic=True)
    other = torch.randn(7)
    torch.testing.assert_close(seen.graphs[0](7, other)[0], function(other), rtol=0, atol=0)


def test_large_table_is_kept_in_memory(look):
    check(look, lambda x: x + torch.arange(2**20).cos()[:4], torch.randn(4), folded=0)


def test_huge_table_is_made_when_it_is_compiled():
    graph = torch.fx.Graph()
    made = graph.call_function(torch.ones, (2**44,))
    small = graph.call_function(torch.sum, (made,))
    graph.output(small)
    with torch._subclasses.FakeTensorMode():
        made.meta["example_value"] = torch.ones(2**44)
        small.meta["example_value"] = torch.ones(2**44).sum()
    graph_module = torch.fx.GraphModule({}, graph)
    assert fold_constants.run(graph_module, PassContext()) == 0


def test_buffer_that_the_user_changes_later_is_frozen():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(3))

        def forward(self, x):
            return x * self.scale.exp()

    graph_module = torch.fx.symbolic_trace(Scaled())
    for node in graph_module.graph.nodes:
        node.meta["example_value"] = torch.ones(3)
    assert fold_constants.run(graph_module, PassContext()) == 0


def test_constant_moves_to_another_device_or_dtype(look):
    def function(x):
        return torch.arange(4, dtype=torch.float16).div(3).to(torch.bfloat16).double() * x

    check(look, function, torch.randn(4).double(), folded=1)


def test_leaf_that_learns_becomes_a_constant(look):
    def function(x):
        with torch.enable_grad():
            return x + torch.arange(4.0).mul(2).requires_grad_().exp()

    x = torch.randn(4)
    seen = look(function, x, passes=[fold_constants])
    torch.testing.assert_close(seen.result, function(x), rtol=0, atol=0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_model_with_folded_constants_is_wrong(prove, workload, dtype, dynamic, level):
    def model(x, w):
        frequency = (100.0 ** (-torch.arange(0, 3) / 6)).to(x.dtype)
        angle = torch.arange(x.shape[1]).to(x.dtype)
        return (x * w)[:, :3] * frequency + (x * angle.cos()).sum()

    passes = [fold_constants.at(level)]
    assert prove(workload(model, dtype), passes=passes, dynamic=dynamic)["fold_constants"]


@pytest.mark.slow
def test_folded_constants_are_wrong_after_inductor(prove, workload):
    work = workload(lambda x, w: x * w * torch.arange(33).cos(), torch.float32)
    for level in LEVELS:
        passes = [fold_constants.at(level)]
        assert prove(work, passes=passes, codegen="inductor")["fold_constants"]
