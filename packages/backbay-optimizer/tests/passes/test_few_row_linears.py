"""Layers of few rows that read the same become one call, others don't; let loose on the CPU."""

import pytest
import torch
from layers_of_one_input import D, Layer, Model, T, attention, gated, inputs, under_autocast
from layers_of_one_input import with_a_cache as cached
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.backend import Optimizing
from backbay_optimizer.kernels import few_row_linears as kernel
from backbay_optimizer.passes.few_row_linears import few_row_linears
from backbay_optimizer.passes.horizontal_fusion import horizontal_fusion
from backbay_optimizer.passes.one_row_linears import one_row_linears
from backbay_optimizer.passes.parameter_hoist import parameter_hoist

NAME = "few_row_linears"
assert callable(kernel.few_row_linears)  # registers it
LAYERS = torch.ops.backbay.few_row_linears.default
GATED = torch.ops.backbay.gated_linears.default


@pytest.fixture
def anywhere(lift, monkeypatch):
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    lift(few_row_linears, DEVICES=("cpu",), DTYPES=dtypes)
    monkeypatch.setattr(kernel, "pays", lambda x, *_, **__: None if x.numel() else "it is empty")


def calls(seen):
    """Return the operators that a graph calls, and of how many layers each is."""
    found = []
    for graph in seen.graphs:
        for node in graph.graph.nodes:
            if node.target is LAYERS:
                found.append(len(node.args[1]))
            elif node.target is GATED:
                found.append(node.args[-1])
    return found


def names(m, x):
    y = F.linear(weight=m.k.weight, input=x)
    return F.linear(x, m.v.weight, bias=m.v.bias) + torch.mul(F.silu(y), 2)


def other_way(m, x):
    return torch.mul(m.v(x), F.silu(m.k(x), inplace=True))


def gate_last(m, x):
    y = m.v(x)
    return F.silu(m.k(x)) * y


def four(m, x):
    return m.q(x), m.k(x).sin(), m.v(x), F.linear(x, m.q.weight[:8])


def of_a_result(m, x):
    """The second two read what the first two gave."""
    y, z = F.linear(x, m.q.weight[:D]), m.k(x)
    return z, m.k(y), m.v(y)


def written(m, x):
    y = m.k(x)
    y.view(-1)[0] = 3
    return y * m.v(x)


def returned(m, x):
    return m.q(x), m.k(x).view(-1, 2)


def written_later(m, x):
    y = x + 1
    return gated(m, y), m.q(y).sum() + m.k(y).sum(), y.mul_(2)


def autocast_pair(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return m.k(x).sin() * m.v(x)


TAKEN = {
    "attention": (attention, [3]),
    "a gate": (gated, ["silu"]),
    "a gate that comes last": (gate_last, ["silu"]),
    "a gate in place": (other_way, ["silu"]),
    "GELU by tanh": (lambda m, x: F.gelu(m.k(x), approximate="tanh") * m.v(x), ["gelu_tanh"]),
    "GELU by erf": (lambda m, x: F.gelu(m.k(x)) * m.v(x), [2]),
    "a gate that something else reads": (
        lambda m, x: (y := m.k(x)).sin() + F.silu(y) * m.v(x),
        [2],
    ),
    "an active gate that something else reads": (
        lambda m, x: (y := F.silu(m.k(x))) * m.v(x) + y,
        [2],
    ),
    "what is gated is returned": (lambda m, x: (F.silu(m.k(x)) * (y := m.v(x)), y), [2]),
    "a gate of one feature": (
        lambda m, x: F.silu(F.linear(x, m.k.weight[:1])) * m.v(x),
        [2],
    ),
    "a square": (lambda m, x: F.silu(m.k(x)) * F.silu(m.v(x)), [2]),
    "names": (names, [2]),
    "four layers": (four, [3]),
    "six layers": (lambda m, x: (*four(m, x), m.k(x), m.v(x)), [3, 3]),
    "layers of results": (of_a_result, [2, 2]),
    "a result that is written": (written, [2]),
    "what the caller gets": (returned, [2]),
    "a cache that a result is copied to": (cached, [3]),
    "an input that is written later": (written_later, ["silu", 2]),
    "the same weight": (lambda m, x: m.k(x).sin() + F.linear(x, m.k.weight).cos(), [2]),
    "an input with gaps": (lambda m, x: gated(m, x.transpose(0, 1)), ["silu"]),
    "inside autocast": (under_autocast, ["silu"]),
    "inside autocast, ungated": (
        lambda m, x: under_autocast(m, x) * 0 + autocast_pair(m, x),
        ["silu", 2],
    ),
    "a weight that is computed": (
        lambda m, x: F.linear(x, m.k.weight * 2) * m.v(x),
        [2],
    ),
}


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("program", "wanted"), TAKEN.values(), ids=TAKEN)
@pytest.mark.usefixtures("anywhere")
def test_layers_of_one_input_are_several_calls(look, request, program, wanted, bias):
    model, twin, x = Model(program, bias=bias), Model(program, bias=bias), inputs()
    with torch.no_grad():
        seen = look(model, x, passes=[few_row_linears])
        expected = twin(x)
    assert calls(seen) == wanted, seen.near
    assert seen.changes[NAME] == len(wanted)
    rough = "autocast" in request.node.name
    tolerance = {"rtol": 3e-2, "atol": 2e-2} if rough else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(seen.result, expected, **tolerance)
    torch.testing.assert_close(model.cache, twin.cache)
    found, strides = (
        [y.stride() for y in (z if isinstance(z, tuple) else (z,))] for z in (seen.result, expected)
    )
    assert found == strides


def input_written_between(m, x):
    x = x + 1
    y = m.k(x)
    x.mul_(2)
    return y * m.v(x)


def input_written_before_the_product(m, x):
    x = x + 1
    y, z = F.silu(m.k(x)), m.v(x)
    x.mul_(2)
    return y * z + x.sum()


def weight_written_between(m, x):
    y, w = m.k(x), m.v.weight * 1
    z = F.linear(x, w)
    w.mul_(2)
    return y * z, F.linear(x, w)


def mode_between(m, x):
    y = m.k(x).sum()
    with torch.autocast("cpu", torch.bfloat16):
        return m.v(x) * y


def other_mode_between(m, x):
    y = m.k(x).sum()
    with torch.autocast("cpu", enabled=False):
        return m.v(x) * y


def others_between(m, x):
    y = m.o(m.q(x).sin())
    return m.k(y).sum() + m.v(x).exp()


LEFT = {
    "an input that is written between": (input_written_between, "may write on the way"),
    "autocast between": (mode_between, "dtypes differ"),
    "another mode between": (other_mode_between, "changes a mode on the way"),
    "layers far from each other": (others_between, None),
    "two inputs": (lambda m, x: m.k(x) * m.v(x + 1), None),
    "a gate of another input": (lambda m, x: F.silu(m.k(x)) * m.v(x + 1), None),
    "one layer": (lambda m, x: m.k(x), None),
    "a weight that the first one makes": (
        lambda m, x: F.linear(x, m.k(x).view(-1)[: 2 * D].view(2, D)) + m.v(x)[..., :2],
        "made behind the first",
    ),
    "a transposed weight": (
        lambda m, x: F.linear(x, m.o.weight[:, :D].t()) + F.linear(x, m.o.weight[:, D:].t()),
        "do not lie one behind the other",
    ),
    "a weight of one dimension": (
        lambda m, x: F.linear(x, m.q.weight[0]) + F.linear(x, m.q.weight[1]),
        "no matrix",
    ),
    "a bias of one number": (
        lambda m, x: F.linear(x, m.q.weight, m.one) + F.linear(x, m.q.weight, m.one),
        "not one number for each feature",
    ),
    "no rows": (lambda m, x: gated(m, x[:0]), "it is empty"),
    "two dtypes": (
        lambda m, x: m.k(x).double() * F.linear(x.double(), m.k.weight.double()),
        None,
    ),
}


@pytest.mark.parametrize(("program", "why"), LEFT.values(), ids=LEFT)
def test_what_is_something_else_is_put_together(look, anywhere, program, why):
    model, twin, x = Model(program), Model(program), inputs()
    for m in (model, twin):
        m.register_buffer("one", torch.ones(1))
    with torch.no_grad():
        seen = look(model, x, passes=[few_row_linears])
        expected = twin(x)
    assert not calls(seen)
    if why is not None:
        assert any(why in x for x in seen.near), seen.near
    torch.testing.assert_close(seen.result, expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("program", [input_written_before_the_product, weight_written_between])
def test_what_was_written_is_read(look, anywhere, program):
    model, x = Model(program), inputs()
    with torch.no_grad():
        seen = look(model, x, passes=[few_row_linears])
        torch.testing.assert_close(seen.result, program(model, x))
    assert "silu" not in calls(seen)


def test_a_gradient_is_lost(look, anywhere):
    seen = look(Model(gated), inputs(), passes=[few_row_linears])
    assert not calls(seen)
    assert "a gradient is wanted" in seen.near


def test_a_layer_whose_gradient_is_wanted_joins_others(look, anywhere):
    model = Model(lambda m, x: (m.k(x), m.v(x)))
    model.k.requires_grad_(requires_grad=False)
    seen = look(model, inputs(), passes=[few_row_linears])
    assert not calls(seen)
    assert "a gradient is wanted" in seen.near


def test_a_symbolic_size_becomes_a_number(look, anywhere):
    x = inputs()
    torch._dynamo.mark_dynamic(x, 1)
    with torch.no_grad():
        seen = look(Model(attention), x, passes=[few_row_linears])
    assert not calls(seen)
    assert any("symbol" in x for x in seen.near)


def test_a_size_of_what_does_not_read_it_is_asked_about(look, anywhere):
    past = torch.randn(5, D)
    torch._dynamo.mark_dynamic(past, 0)
    model = Model(lambda m, x: (gated(m, x[0]), x[1].sum() + x[1].size(0)))
    with torch.no_grad():
        seen = look(model, (inputs(), past), passes=[few_row_linears])
    assert calls(seen) == ["silu"]


def test_a_cpu_gets_a_kernel_of_a_gpu(look):
    with torch.no_grad():
        seen = look(
            Model(gated, dtype=torch.bfloat16), inputs(torch.bfloat16), passes=[few_row_linears]
        )
    assert not calls(seen)


def test_a_single_row_is_taken_or_a_merged_layer_is_none(look, lift, anywhere, monkeypatch):
    lift(one_row_linears, DEVICES=("cpu",), DTYPES=(torch.float32,))
    given = []
    monkeypatch.setattr(kernel, "pays", lambda *x, **how: given.append((x[1:], how)))
    order = [one_row_linears, few_row_linears, horizontal_fusion, parameter_hoist]
    names = [x.name for x in Optimizing.passes]
    assert sorted(order, key=lambda x: names.index(x.name)) == order
    with torch.no_grad():
        seen = look(Model(gated), inputs()[:1, :1], passes=order)
        assert seen.changes == {"one_row_linears": 2} | dict.fromkeys(names_of(order[1:]), 0)
        seen = look(Model(gated), inputs(), passes=order)
    assert seen.changes[NAME] == 1
    assert not seen.changes["horizontal_fusion"]
    assert given == [((2 * T, [(16, D), (16, D)]), {"is_gated": True})]


def names_of(passes):
    return [x.name for x in passes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_rewritten_decoder_is_further_from_the_truth(prove, anywhere, dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Layer(dtype), Layer(dtype))
    work = Workload(model=model, args=(inputs(dtype),))
    changes = prove(work, passes=[few_row_linears], train=False)
    assert changes[NAME] == 4
