"""A linear layer and its activation become one call where that is the same, not elsewhere.

The pass is for CUDA. Here it is let loose on the CPU, where the operator's GELU is the one by erf:
a stand-in has CUDA's meaning. What cuBLASLt makes of it, tests of a GPU see.
"""

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.match import traced
from backbay.kit import passes
from backbay.kit.observing import verified
from backbay.kit.passes import PassContext
from backbay.kit.rewrites import gelu
from backbay.proof import Workload
from backbay_optimizer.passes.linear_epilogues import linear_epilogues
from backbay_optimizer.passes.match_sites import MatchSites

B, T, D, N = 2, 3, 8, 16
OPERATOR = torch.ops.aten._addmm_activation.default
ZEROS = torch.ops.aten.zeros.default


@pytest.fixture
def anywhere(lift):
    """Let the pass rewrite on the CPU, in single precision too, with the GELU that CUDA has."""
    lift(linear_epilogues, DEVICES=("cpu",))
    lift(linear_epilogues, DTYPES=(torch.float32, torch.bfloat16, torch.float16))
    lift(linear_epilogues, EIGHTS=1)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_addmm_activation", as_on_cuda, "CPU", allow_override=True)
        yield


def as_on_cuda(bias, x, weight, *, beta=1, alpha=1, use_gelu=False):
    y = torch.addmm(bias, x, weight, beta=beta, alpha=alpha)
    return F.gelu(y, approximate="tanh") if use_gelu else y.relu_()


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(x).to(dtype) for x in ((B, T, D), (N, D), (N,))]


def new_gelu(x):
    inner = 0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def of_gpt2(x, w, b):
    """Conv1D of transformers: its weight is transposed, and it goes through views."""
    y = torch.addmm(b, x.view(-1, D), w.t().contiguous())
    return new_gelu(y.view((*x.size()[:-1], N)))


FUSED = {
    "GELU by tanh": lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "GELU spelled out": lambda x, w, b: new_gelu(F.linear(x, w, b)),
    "GELU after addmm and a view": of_gpt2,
    "ReLU": lambda x, w, b: F.relu(F.linear(x, w, b)),
    "ReLU of a matrix": lambda x, w, b: F.linear(input=x[0], weight=w, bias=b).relu() @ w,
    "ReLU in place": lambda x, w, b: F.relu(F.linear(x, w, b), inplace=True) @ w,
    "a method in place": lambda x, w, b: F.linear(x, w, b).reshape(-1, 2).relu_(),
    "an input with gaps": lambda x, w, b: F.linear(x[..., ::2], w[:, ::2], b[:N]).relu(),
    "many dimensions": lambda x, w, b: F.linear(x[:, None, None], w, b).relu(),
    "no bias": lambda x, w, b: F.linear(x, w).relu(),
    "None for a bias": lambda x, w, b: F.gelu(F.linear(x, w, None), approximate="tanh"),
    "None by name": lambda x, w, b: new_gelu(F.linear(x, weight=w, bias=None)),
    "no bias, in place": lambda x, w, b: F.relu(F.linear(x[0], w), inplace=True) @ w,
    "no bias, gaps, odd sizes": lambda x, w, b: F.linear(x[..., :7:2], w[:13, ::2]).relu(),
    "no bias, a transposed weight": lambda x, w, b: F.linear(
        x.transpose(0, 1), w.view(D, N).t()
    ).relu(),
    "read by a product, through views and dropout that is off": lambda x, w, b: torch.matmul(
        F.dropout(F.linear(x, w, b).relu().view(-1, N), 0.5, training=False), w
    ),
    "no bias, nothing to do": lambda x, w, b: F.linear(x[:0], w).relu(),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", FUSED)
def test_a_layer_and_its_activation_are_two_calls(look, name, dynamic):
    program, (x, w, b) = FUSED[name], tensors()
    model = nn.Module()
    model.w, model.b = nn.Parameter(w), nn.Parameter(b)
    model.forward = lambda x: program(x, model.w, model.b)
    with torch.no_grad():
        seen = look(model, x, passes=[linear_epilogues], dynamic=dynamic)
    assert seen.changes["linear_epilogues"] == 1, seen.near
    assert [n.target for n in seen.graphs[0].graph.nodes].count(OPERATOR) == 1
    assert not seen.calls("linear") + seen.calls("addmm") + seen.calls("relu") + seen.calls("tanh")
    assert seen.calls("zeros") == ("no bias" in name or "None" in name)
    expected = program(x, w, b)
    assert seen.result.stride() == expected.stride()
    torch.testing.assert_close(seen.result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("anywhere")
def test_a_size_that_is_computed_and_is_1_ends_the_compilation(look):
    """Torch then has the number of columns as a fraction, whose lower part is that size."""

    _, w, b = tensors()
    model = nn.Module()
    model.w, model.b = nn.Parameter(w), nn.Parameter(b)

    def forward(x):
        thinned = torch.cat([x, x.cos()], 1)[:, ::2, :, ::3]
        return F.linear(thinned.permute(0, 2, 3, 1), model.w, model.b).relu()

    model.forward = forward
    x = torch.randn(2, D, 2, 3).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        seen = look(model, x, passes=[linear_epilogues], dynamic=True)
        torch.testing.assert_close(seen.result, forward(x))


def used_twice(x, w, b):
    y = F.linear(x, w, b)
    return y.relu() + y


def used_before_a_view(x, w, b):
    y = F.linear(x, w, b)
    return y.view(-1).relu().sum() + y


def written(x, w, b):
    y = F.linear(x, w, b)
    y.mul_(2)
    return y.relu()


def spelled_with_another_reader(x, w, b):
    y = F.linear(x, w, b)
    return new_gelu(y) + y


LEFT = {
    "GELU by erf": lambda x, w, b: F.gelu(F.linear(x, w, b)),
    "GELU by erf, spelled out": lambda x, w, b: by_erf(F.linear(x, w, b)),
    "another activation": lambda x, w, b: F.silu(F.linear(x, w, b)),
    "no bias, another activation": lambda x, w, b: F.silu(F.linear(x, w)),
    "no bias, double": lambda x, w, b: F.linear(x.double(), w.double()).relu(),
    "a product that is no layer": lambda x, w, b: torch.mm(x[0], w.t()).relu(),
    "a matrix for a bias": lambda x, w, b: torch.addmm(b.expand(T, N), x[0], w.t()).relu(),
    "factors": lambda x, w, b: torch.addmm(b, x[0], w.t(), alpha=2).relu(),
    "a vector": lambda x, w, b: F.linear(x[0, 0], w, b).relu(),
    "used elsewhere": used_twice,
    "used before a view": used_before_a_view,
    "spelled out, used elsewhere": spelled_with_another_reader,
    "written": written,
    "something between": lambda x, w, b: (F.linear(x, w, b) * 2).relu(),
    "double": lambda x, w, b: F.linear(x.double(), w.double(), b.double()).relu(),
    "read by a gate": lambda x, w, b: F.linear(x, w, b).relu() * F.linear(x, w),
    "read by a sum, through a view": lambda x, w, b: F.linear(x, w, b).relu().view(-1) + 1,
    "read by a product, and a sum": lambda x, w, b: a_sum_too(F.linear(x, w, b).relu(), w),
    "read by a norm": lambda x, w, b: F.layer_norm(F.linear(x, w, b).relu(), (N,)),
    "without inputs": lambda x, w, b: F.linear(x[..., :0], w[:, :0], b).relu(),
    "a cast between": lambda x, w, b: F.linear(x, w, b).double().relu(),
}


def a_sum_too(y, w):
    return y @ w, y + 1


def by_erf(x):
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("program", LEFT.values(), ids=LEFT)
def test_what_the_epilogue_does_not_compute_is_left_to_it(look, program):
    given = tensors()
    seen = look(program, *given, passes=[linear_epilogues])
    assert not seen.changes["linear_epilogues"]
    assert not seen.calls("zeros")
    torch.testing.assert_close(seen.result, program(*given))


@pytest.mark.usefixtures("anywhere")
def test_what_drops_is_passed_over(look):
    def program(x, w, b):
        return F.dropout(F.linear(x, w, b).relu(), 0.5) @ w

    seen = look(program, *tensors(), passes=[linear_epilogues])
    assert not seen.changes["linear_epilogues"]
    assert seen.near == ["dropout reads it: Inductor computes both at once"]


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("odd", ["inputs", "results"])
def test_odd_sizes_are_taken_from_what_pads_them(look, lift, odd):
    lift(linear_epilogues, EIGHTS=8)

    def program(x, w, b):
        y = F.linear(x, w, b).relu() @ w  # in eights
        z = F.linear(x[..., :7], w[:, :7], b) if odd == "inputs" else F.linear(x, w[:15], b[:15])
        return y, z.relu()

    given = tensors()
    seen = look(program, *given, passes=[linear_epilogues])
    assert seen.changes["linear_epilogues"] == 1
    assert seen.near == ["its sizes are not in eights"]
    torch.testing.assert_close(seen.result, program(*given))


@pytest.mark.usefixtures("anywhere")
def test_gelu_is_spelled_anew_for_nothing(look):
    def gated(x, w, b):
        return new_gelu(F.linear(x, w, b)) * F.linear(x.sin(), w)

    given = tensors()
    seen = look(gated, *given, passes=[linear_epilogues])
    assert not seen.changes["linear_epilogues"]
    assert seen.calls("tanh") == 1
    torch.testing.assert_close(seen.result, gated(*given))


def test_a_cpu_is_taken_for_cuda_and_means_another_gelu(look):
    given = tensors(torch.bfloat16)
    seen = look(FUSED["GELU spelled out"], *given, passes=[linear_epilogues])
    assert not seen.changes["linear_epilogues"]
    assert seen.calls("tanh") == 1


@pytest.mark.usefixtures("anywhere")
def test_training_loses_gradients(look):
    x, w, b = tensors()
    seen = look(FUSED["ReLU"], x, w.requires_grad_(), b, passes=[linear_epilogues])
    assert not seen.changes["linear_epilogues"]
    assert seen.result.requires_grad


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("program", ["ReLU", "GELU by tanh"])
def test_autocast_computes_in_another_dtype(look, program):
    def cast(x, w, b):
        with torch.autocast("cpu", torch.bfloat16):
            return FUSED[program](x, w, b)

    given = tensors()
    seen = look(cast, *given, passes=[linear_epilogues])
    assert seen.changes["linear_epilogues"] == 1
    assert seen.result.dtype == torch.bfloat16
    torch.testing.assert_close(seen.result, cast(*given), rtol=2e-2, atol=2e-2)


# 1. Layers without a bias


def zeros_of(seen):
    (graph_module,) = seen.graphs
    return graph_module.graph.find_nodes(op="call_function", target=ZEROS)


@pytest.mark.usefixtures("anywhere")
def test_each_layer_makes_zeros_of_its_own(look):
    def program(x, w, b):
        y, z = F.linear(x, w).relu(), F.linear(x.sin(), w).relu()
        return F.linear(y, w.t()).relu(), z @ w, F.linear(x, w, b).relu()

    given = tensors()
    seen = look(program, *given, passes=[linear_epilogues])
    assert seen.changes["linear_epilogues"] == 4
    assert [n.args for n in zeros_of(seen)] == [([D],), ([N],)]
    torch.testing.assert_close(seen.result, program(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("program", ["no bias", "None for a bias"])
def test_autocast_adds_zeros_of_another_dtype(look, program):
    def cast(x, w, b):
        y = FUSED[program](x, w, b)
        with torch.autocast("cpu", torch.bfloat16):
            return y, FUSED[program](x, w, b)

    given = tensors()
    seen = look(cast, *given, passes=[linear_epilogues])
    assert seen.changes["linear_epilogues"] == 2
    assert {n.kwargs["dtype"] for n in zeros_of(seen)} == {torch.bfloat16, torch.float32}
    assert [x.dtype for x in seen.result] == [torch.float32, torch.bfloat16]
    torch.testing.assert_close(seen.result, cast(*given), rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("anywhere")
def test_zeros_that_a_later_layer_takes_stand_in_a_mode_that_has_ended(look):
    def program(x, w, b):
        with torch.autocast("cpu", torch.bfloat16):
            y = F.linear(x, w).relu()
        return y, F.linear(x.bfloat16(), w.bfloat16()).relu()

    given = tensors()
    seen = look(program, *given, passes=[linear_epilogues])
    assert seen.changes["linear_epilogues"] == 2
    (made,) = zeros_of(seen)
    assert made.prev.op == "placeholder"
    torch.testing.assert_close(seen.result, program(*given), rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("refused", [1, 2])
def test_zeros_are_left_of_a_layer_that_was_not_taken(look, monkeypatch, refused):
    layout, asked = passes.layout, []

    def differing(value):
        asked.append(value)
        return object() if len(asked) <= 2 * refused else layout(value)

    monkeypatch.setattr(passes, "layout", differing)
    given = tensors()

    def program(x, w, b):
        return F.linear(x, w).relu() @ w + F.linear(x + 1, w).relu() @ w

    seen = look(program, *given, passes=[linear_epilogues])
    assert seen.changes["linear_epilogues"] == 2 - refused
    assert len(zeros_of(seen)) == 2 - refused
    torch.testing.assert_close(seen.result, program(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("anywhere")
def test_a_bias_that_is_not_known_is_taken_for_none(look):
    seen = look(FUSED["ReLU"], *tensors(), passes=[])
    (graph_module,) = seen.graphs
    (product,) = graph_module.graph.find_nodes(op="call_function", target=F.linear)
    product.args[2].meta.clear()
    assert linear_epilogues.run(graph_module, PassContext()) == 0


@pytest.mark.usefixtures("anywhere")
def test_a_layer_without_a_bias_cannot_be_timed_alone(look):
    sites, (x, w, b) = MatchSites(keep=True), tensors()
    with sites.asked():
        look(FUSED["no bias"], x, w, b, passes=[linear_epilogues])
    (site,) = sites.found.values()
    assert linear_epilogues.run(site.region, PassContext(alone=True)) == 1
    torch.testing.assert_close(site.region(x, w), (FUSED["no bias"](x, w, b),))


@pytest.mark.usefixtures("anywhere")
def test_training_without_a_bias_loses_gradients(look):
    x, w, b = tensors()
    seen = look(FUSED["no bias"], x, w.requires_grad_(), b, passes=[linear_epilogues])
    assert not seen.changes["linear_epilogues"]
    assert not seen.calls("zeros")
    assert seen.result.requires_grad


# 2. GELU that is spelled out


TANHS = {
    "a function": torch.tanh,
    "of torch.nn": F.tanh,
    "a method": lambda x: x.tanh(),
    "a keyword": lambda x: torch.tanh(input=x),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("tanh", TANHS.values(), ids=TANHS)
def test_a_spelling_of_tanh_hides_gelu(look, tanh):
    def program(x, w, b):
        y = F.linear(x, w, b)
        return 0.5 * y * (1 + tanh(0.7978845608028654 * (y + 0.044715 * y**3)))

    seen = look(program, *tensors(), passes=[linear_epilogues])
    assert seen.changes["linear_epilogues"] == 1, seen.near


def test_gelu_is_spelled_without_the_tanh_that_is_looked_for():
    for pattern in gelu.approximate_gelu():
        assert gelu.may_be_approximate(traced(pattern.match))


@pytest.mark.usefixtures("anywhere")
def test_gelu_is_searched_for_in_a_graph_without_tanh(look, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("searched for")

    module = sys.modules["backbay_optimizer.passes.linear_epilogues"]
    monkeypatch.setattr(module, "rewrite_pass", refuse)
    seen = look(FUSED["ReLU"], *tensors(), passes=[linear_epilogues])
    assert seen.changes["linear_epilogues"] == 1


# 3. Whole models


@pytest.mark.usefixtures("anywhere")
def test_inference_is_verified_by_gradients_that_the_operator_has_not(look):
    model = nn.Sequential(nn.Linear(D, N), nn.ReLU())
    with torch.no_grad(), verified():
        seen = look(model, tensors()[0], passes=[linear_epilogues])
    assert seen.changes["linear_epilogues"] == 1


@pytest.mark.usefixtures("anywhere")
def test_single_precision_is_taken_without_a_measurement(look, lift, monkeypatch):
    monkeypatch.undo()
    lift(linear_epilogues, DEVICES=("cpu",))
    seen = look(FUSED["ReLU"], *tensors(), passes=[linear_epilogues])
    assert not seen.changes["linear_epilogues"]


class Feeder(nn.Module):
    """Layers with each activation, one of them with a residual stream round it."""

    def __init__(self, *, bias):
        super().__init__()
        sizes = (9, 33), (33, 9), (9, 5)
        self.layers = nn.ModuleList(nn.Linear(*x, bias=bias) for x in sizes)

    def forward(self, x):
        up, down, out = self.layers
        x = x + down(new_gelu(up(x)))
        return out(F.relu(down(F.gelu(up(x), approximate="tanh")), inplace=True))


# Inductor takes seconds for each: in CI it has one dtype, with every shape.
COMPILED = [
    pytest.param(codegen, dtype, marks=marks)
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    for codegen, marks in (
        ("eager", ()),
        ("inductor", pytest.mark.slow if dtype == torch.bfloat16 else pytest.mark.sweep),
    )
]


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("codegen", "dtype"), COMPILED)
@pytest.mark.parametrize("shape", [(3, 7, 9), (1, 9), (0, 9), (2, 1, 1, 9)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
def test_a_model_is_wrong(prove, codegen, dtype, shape, bias):
    torch.manual_seed(0)
    model = Feeder(bias=bias).to(dtype)
    workload = Workload(model=model, args=(torch.randn(shape).to(dtype),))
    changes = prove(workload, passes=[linear_epilogues], codegen=codegen, train=False)
    assert changes["linear_epilogues"] == 3
