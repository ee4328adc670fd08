"""What only parameters decide leaves the graph, and nothing else does."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.testing._internal.two_tensor import TwoTensor

from backbay.kit.observing import verified
from backbay.proof import Workload
from backbay_optimizer.passes.parameter_hoist import parameter_hoist

D = 7


class Model(nn.Module):
    """A program of an input and of the model's own parameters and buffers."""

    def __init__(self, program, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(D, D).to(dtype))
        self.g = nn.Parameter(torch.randn(D).to(dtype))
        self.register_buffer("table", torch.randn(9, 3).to(dtype))
        self.register_buffer("index", torch.randint(9, (D, D)))
        self.program = program

    def forward(self, x):
        return self.program(self, x)


def kept(seen):
    """Return the names of what is hoisted."""
    inputs = [n for g in seen.graphs for n in g.graph.nodes if n.op == "placeholder"]
    return [n.name for n in inputs if n.name.startswith("_hoisted")]


def standardised(m, x):
    w = F.batch_norm(m.w[None], None, None, weight=m.g * 0.5, training=True, momentum=0.0)
    return F.linear(x, w.reshape_as(m.w))


def biased(m, x):
    bias = m.table[m.index.view(-1)].view(D, D, 3).permute(2, 0, 1).contiguous()
    return x + bias.unsqueeze(0)[0, 0, :2]


def of_two_results(m, x):
    var, mean = torch.var_mean(m.w, 1)
    return x * mean + var


def of_parts(m, x):
    first, second = (m.g[:6] * 2).chunk(2)
    return x[:, :3] * first + second


def of_a_cast(m, x):
    return F.linear(x, m.w.to(torch.float64).to(x.dtype))


def of_constants(m, x):
    return x + torch.arange(D, dtype=x.dtype) * m.g


HOISTED = {
    "weights are standardised": (standardised, 1),
    "a table is looked up": (biased, 1),
    "one added to a weight": (lambda m, x: F.layer_norm(x, (D,), 1.0 + m.g), 1),
    "two results of one call": (of_two_results, 2),
    "views of a result": (of_parts, 1),
    "a cast": (of_a_cast, 1),
    "with constants": (of_constants, 1),
    "weights that are not contiguous": (lambda m, x: F.linear(x, torch.exp(m.w.t())), 1),
    "one weight, twice": (lambda m, x: F.linear(F.linear(x, m.w * 2), m.w * 3), 2),
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("program", "results"), HOISTED.values(), ids=HOISTED)
def test_it_is_computed_in_every_call(look, program, results, dynamic):
    model, x = Model(program), torch.randn(2, D)
    with torch.no_grad():
        seen = look(model, x, passes=[parameter_hoist], dynamic=dynamic)
        expected = model(x)
    assert seen.changes["parameter_hoist"] == len(kept(seen)) == results, seen.near
    assert seen.result.stride() == expected.stride()
    torch.testing.assert_close(seen.result, expected)


def test_weight_standardisation_stays_in_the_graph(look):
    with torch.no_grad():
        seen = look(Model(standardised), torch.randn(2, D), passes=[parameter_hoist])
    assert [n.op for n in seen.graphs[0].graph.nodes if n.op.startswith("call")] == [
        "call_method",  # the view
        "call_function",
    ]
    assert not seen.calls("batch_norm") + seen.calls("mul")


def written_in_place(m, x):
    w = m.w * 2
    w.add_(x.sum())
    return F.linear(x, w)


def updated(m, x):
    m.table.add_(1)
    return x + (m.table * 2).sum()


def updated_through_a_view(m, x):
    view = m.g.detach().view(-1)
    y = x + m.g * 2
    view.mul_(3)
    return y


def grown(m, x):
    return (m.g[:, None, None] * torch.ones(D, 1024, 1024) * x[0, 0]).sum()


def with_a_gradient(m, x):
    with torch.enable_grad():
        y = (x + m.g * 2).sum()
        return x * torch.autograd.grad(y, m.g)[0]


def under_autocast(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, m.w @ m.w)


LEFT = {
    "views": (lambda m, x: F.linear(x, m.w.t()[:3]), ""),
    "what is nothing new": (lambda m, x: x + m.g.to(x.dtype).contiguous(), ""),
    "what depends on an input": (lambda m, x: x + m.g * x.sum(), ""),
    "what wants a gradient": (with_a_gradient, ""),
    "random numbers": (lambda m, x: x + torch.rand_like(m.g), ""),
    "dropout": (lambda m, x: x + F.dropout(m.g, 0.5, training=True) * 0, ""),
    "constants alone": (lambda _, x: x + torch.arange(D) * 2, ""),
    "what the caller gets": (lambda m, x: (x, m.g * 2), "the caller gets it"),
    "a view of which the caller gets": (lambda m, x: (x, (m.g * 2)[1:]), "the caller gets it"),
    "what is written": (written_in_place, ""),
    "a buffer that is updated": (updated, ""),
    "a parameter that is updated": (updated_through_a_view, ""),
    "what is much larger": (grown, "and pays up to 8"),
    "inside autocast": (under_autocast, ""),
}


@pytest.mark.parametrize(("program", "reason"), LEFT.values(), ids=LEFT)
def test_what_must_stay_is_hoisted(look, program, reason):
    x = torch.randn(2, D)
    model, twin = Model(program), Model(program)
    with torch.no_grad():
        torch.manual_seed(1)
        seen = look(model, x, passes=[parameter_hoist])
        torch.manual_seed(1)
        expected = twin(x)
    assert not seen.changes["parameter_hoist"]
    assert any(reason in y for y in seen.near) or not reason, seen.near
    torch.testing.assert_close(seen.result, expected)


def test_a_size_that_is_a_symbol_is_hoisted(look):
    with torch.no_grad():
        model, x = Model(lambda m, x: x + (m.g * x.shape[0])), torch.randn(2, D)
        seen = look(model, x, passes=[parameter_hoist], dynamic=True)
    assert not seen.changes["parameter_hoist"]


def test_what_is_too_large_takes_what_it_is_made_of_with_it(look):
    def program(m, x):
        return ((m.g * 2)[:, None, None] * torch.ones(D, 1024, 1024) * x[0, 0]).sum()

    with torch.no_grad():
        seen = look(Model(program), torch.randn(2, D), passes=[parameter_hoist])
    assert seen.changes["parameter_hoist"] == 1
    assert seen.calls("mul") == 2


def test_training_loses_gradients(look):
    seen = look(Model(standardised), torch.randn(2, D), passes=[parameter_hoist])
    assert not seen.changes["parameter_hoist"]
    assert seen.result.requires_grad


def test_parameters_of_another_kind_are_hoisted(look):
    model = Model(lambda m, x: x + m.g * 2)
    model.g = nn.Parameter(TwoTensor(torch.ones(D), torch.ones(D)))
    with torch.no_grad():
        seen = look(model, torch.randn(2, D), passes=[parameter_hoist])
    assert not seen.changes["parameter_hoist"]


def test_autocast_outside_is_not_that_of_the_call(look):
    model, x = Model(lambda m, x: F.linear(x, m.w @ m.w)), torch.randn(2, D)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        seen = look(model, x, passes=[parameter_hoist])
        expected = model(x)
    assert seen.changes["parameter_hoist"] == 1
    assert seen.result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(seen.result, expected)


def test_it_is_not_verified(look):
    with torch.no_grad(), verified():
        seen = look(Model(standardised), torch.randn(2, D), passes=[parameter_hoist])
    assert seen.changes["parameter_hoist"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("program", [standardised, biased], ids=["standardised", "biased"])
def test_a_model_is_wrong(prove, codegen, dtype, program):
    torch.manual_seed(0)
    workload = Workload(model=Model(program, dtype), args=(torch.randn(2, D).to(dtype),))
    changes = prove(workload, passes=[parameter_hoist], codegen=codegen, train=False)
    assert changes["parameter_hoist"] == 1
