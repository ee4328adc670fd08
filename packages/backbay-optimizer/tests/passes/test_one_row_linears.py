"""A linear layer of one row becomes a sum where that is the same, and not elsewhere."""

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.passes.linear_epilogues import linear_epilogues
from backbay_optimizer.passes.one_row_linears import one_row_linears
from backbay_optimizer.passes.parameter_hoist import parameter_hoist
from backbay_optimizer.passes.slice_pushdown import slice_pushdown

D, N = 24, 16
MODULE = sys.modules["backbay_optimizer.passes.one_row_linears"]


@pytest.fixture
def anywhere(lift):
    """Let the pass rewrite on the CPU, in single precision too."""
    lift(one_row_linears, DEVICES=("cpu",))
    lift(one_row_linears, DTYPES=(torch.float32, torch.bfloat16, torch.float16))


def tensors(dtype=torch.float32, shape=(1, 1, D)):
    torch.manual_seed(0)
    return [torch.randn(x).to(dtype) for x in (shape, (N, D), (N,))]


LAYERS = {
    "a row": lambda x, w, b: F.linear(x, w),
    "with a bias": lambda x, w, b: F.linear(x, w, b),
    "by names": lambda x, w, b: F.linear(input=x, weight=w, bias=b) * 2,
    "with an activation": lambda x, w, b: F.relu(F.linear(x, w, b)),
    "a part of a weight": lambda x, w, b: F.linear(x[..., :8], w[:, 8:16], b),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("shape", [(1, 1, D), (1, D), (D,)], ids=str)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@torch.no_grad()
def test_a_row_is_missed(look, layer, shape):
    given = tensors(shape=shape)
    seen = look(layer, *given, passes=[one_row_linears, linear_epilogues])
    assert seen.changes == {"one_row_linears": 1, "linear_epilogues": 0}
    assert not seen.calls("linear")
    assert seen.inductor == {"combo_kernels": True}
    expected = layer(*given)
    torch.testing.assert_close(seen.result, expected)
    assert seen.result.stride() == expected.stride()


def no_row(*shape, **changed):
    return lambda: ([torch.randn(shape), *tensors()[1:]], changed)


OTHERS = {
    "two rows": (no_row(2, 1, D), None),
    "no row": (no_row(0, D), None),
    "on a CPU": (no_row(1, D, DEVICES=("cuda",)), "it runs on cpu"),
    "in single precision": (no_row(1, D, DTYPES=(torch.bfloat16,)), "it is of torch.float32"),
    "of many elements": (no_row(1, D, MOST=N * D - 1), "its weight has 384 elements"),
    "of a transposed weight": (
        lambda: ([*tensors()[:1], torch.randn(D, N).t(), tensors()[2]], {}),
        "not contiguous",
    ),
    "that is trained": (
        lambda: ([x.requires_grad_() for x in tensors()], {}),
        "a gradient is wanted",
    ),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("made", "why"), OTHERS.values(), ids=OTHERS)
def test_another_layer_is_taken(look, lift, made, why):
    given, changed = made()
    lift(one_row_linears, **changed)
    seen = look(LAYERS["with a bias"], *given, passes=[one_row_linears])
    assert not seen.changes["one_row_linears"]
    assert not seen.inductor
    assert [why in x for x in seen.near] == ([] if why is None else [True])


@pytest.mark.usefixtures("anywhere")
@torch.no_grad()
def test_combo_kernels_are_wanted_beside_other_products(look):
    def layers(x, w, b):
        return F.linear(x, w, b) + F.linear(x.expand(2, D) * 2, w)

    seen = look(layers, *tensors(shape=(1, D)), passes=[one_row_linears])
    assert seen.changes["one_row_linears"] == 1
    assert not seen.inductor


@pytest.mark.usefixtures("anywhere")
@torch.no_grad()
def test_combo_kernels_are_wanted_for_sizes_that_are_symbols(look):
    def step(x, past, w, b):
        return F.linear(x, w, b) + past.sum(0)

    x, w, b = tensors(shape=(1, D))
    torch._dynamo.mark_dynamic(past := torch.randn(5, N), 0)
    seen = look(step, x, past, w, b, passes=[one_row_linears])
    assert seen.changes["one_row_linears"] == 1
    assert not seen.inductor


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_products_are_rounded_before_they_are_added(look, dtype):
    seen = look(LAYERS["a row"], *tensors(dtype), passes=[one_row_linears])
    (product,) = seen.nodes("mul")
    assert product.meta["example_value"].dtype == torch.float32
    assert seen.result.dtype == dtype


@pytest.mark.usefixtures("anywhere")
@torch.no_grad()
def test_rows_of_a_symbol_are_taken_for_one(look):
    given = tensors(shape=(3, D))
    seen = look(LAYERS["a row"], *given, passes=[one_row_linears], dynamic=True)
    assert not seen.changes["one_row_linears"]


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "around"])
@torch.no_grad()
def test_autocast_is_forgotten(look, inside):
    def layer(x, w, b):
        if not inside:
            return F.linear(x, w, b)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, w, b)

    given = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        seen = look(layer, *given, passes=[one_row_linears])
        expected = layer(*given)
    assert seen.changes["one_row_linears"] == 1
    assert seen.result.dtype == expected.dtype == torch.bfloat16
    (product,) = seen.nodes("mul")  # of what autocast rounds
    row, weight = (x.meta["example_value"].dtype for x in product.args)
    assert (row, weight) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(seen.result, expected, rtol=2e-2, atol=2e-2)


class Layers(nn.Module):
    """A step of attention's projections and a feed-forward network."""

    def __init__(self, dtype):
        super().__init__()
        sizes = ((D, N), (D, 8), (N, D), (D, 33), (33, D))
        self.layers = nn.ModuleList(nn.Linear(*x, bias=x[1] == D, dtype=dtype) for x in sizes)

    def forward(self, x):
        q, k, o, up, down = self.layers
        x = x + o(q(F.rms_norm(x, (D,))) * k(x).repeat(1, 1, 2))
        return x + down(F.silu(up(F.layer_norm(x, (D,)))))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_wrong(prove, dtype, codegen):
    torch.manual_seed(0)
    workload = Workload(Layers(dtype), (torch.randn(1, 1, D, dtype=dtype),))
    changes = prove(workload, passes=[one_row_linears], codegen=codegen, train=False)
    assert changes["one_row_linears"] == 5


@pytest.mark.usefixtures("anywhere")
@torch.no_grad()
def test_a_weight_is_kept_in_single_precision(look):
    model = Layers(torch.bfloat16)
    x = torch.randn(1, 1, D, dtype=torch.bfloat16)
    seen = look(model, x, passes=[parameter_hoist, one_row_linears, parameter_hoist])
    assert seen.changes == {"parameter_hoist": 0, "one_row_linears": 5}


@pytest.mark.usefixtures("anywhere")
@torch.no_grad()
def test_a_row_that_is_left_of_many_is_missed(look):
    model, x = nn.Linear(D, N), torch.randn(1, 5, D)
    call = nn.Sequential(model, nn.SiLU())
    seen = look(
        lambda x: call(x)[:, -1] * 2, x, passes=[slice_pushdown, one_row_linears, linear_epilogues]
    )
    assert seen.changes == {"slice_pushdown": 1, "one_row_linears": 1, "linear_epilogues": 0}
    torch.testing.assert_close(seen.result, call(x)[:, -1] * 2)
