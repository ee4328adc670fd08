"""Attention that is written out becomes one call, whatever is added; all else stays."""

import pytest
import torch
from spelled_attention import (
    INFINITY,
    B,
    H,
    K,
    S,
    anywhere,  # noqa: F401 (a fixture)
    plain,
    product,
    t5,
    tensors,
)
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from backbay.kit import passes
from backbay.proof import Workload
from backbay_optimizer.passes.fused_attention import fused_attention
from backbay_optimizer.passes.masks import constant_masks
from backbay_optimizer.passes.windowed_attention import windowed_attention

LOWEST = torch.finfo(torch.float32).min


BIASES = {
    "for each pair": (S, S),
    "for each head": (H, 1, S),
    "for all": (1, 1),
    "for each key": (B, 1, 1, S),
    "for each query": (B, H, S, 1),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("shape", BIASES.values(), ids=BIASES)
def test_a_bias_is_broadcast_otherwise(look, shape):
    given = (*tensors()[:3], torch.randn(shape))
    seen = look(plain, *given, passes=[fused_attention])
    assert seen.changes["fused_attention"] == 1
    torch.testing.assert_close(seen.result, plain(*given))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("number", [-INFINITY, LOWEST, INFINITY, float("nan")])
@pytest.mark.parametrize("rows", [slice(2, 3), slice(None)], ids=["a row", "all"])
def test_rows_that_see_nothing_are_otherwise(look, rows, number):
    q, k, v, bias = tensors()
    bias[:, 1, rows] = number
    bias[:, :, :, 3] = -INFINITY
    seen = look(plain, q, k, v, bias, passes=[fused_attention])
    assert seen.changes["fused_attention"] == 1
    torch.testing.assert_close(seen.result, plain(q, k, v, bias), equal_nan=True)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("number", [-INFINITY, LOWEST, -1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_is_filled_in_is_otherwise(look, dtype, number):
    def program(q, k, v, mask):
        scores = product(q, k).float().masked_fill(mask, number)
        return torch.matmul(scores.softmax(-1).to(q.dtype), v)

    mask = torch.rand(B, 1, S, S) > 0.5
    mask[0, :, 3] = True
    given = (*tensors(dtype=dtype)[:3], mask)
    seen = look(program, *given, passes=[fused_attention])
    assert seen.changes["fused_attention"] == 1
    expected = program(*given)
    assert torch.equal(seen.result.isnan(), expected.isnan())
    torch.testing.assert_close(seen.result, expected, equal_nan=True, atol=0.02, rtol=0.02)


@pytest.mark.usefixtures("anywhere")
def test_a_number_is_not_rounded_as_in_eager(look):
    def program(q, k, v, mask):
        scores = torch.where(mask, LOWEST, product(q, k))  # minus infinity in bfloat16
        return torch.matmul(scores.softmax(-1), v)

    mask = torch.rand(B, 1, S, S) > 0.5
    mask[0, :, 3] = True
    given = (*tensors(dtype=torch.bfloat16)[:3], mask)
    seen = look(program, *given, passes=[fused_attention])
    assert seen.changes["fused_attention"] == 1
    assert torch.equal(seen.result.isnan(), program(*given).isnan())
    assert seen.result.isnan().any()


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("first", ["fill", "sum"])
def test_scores_are_changed_in_another_order(look, first):
    def program(q, k, v, bias):
        scores, hidden = product(q, k), bias < -1e30
        if first == "fill":
            return torch.matmul((scores.masked_fill(hidden, LOWEST) + bias).softmax(-1), v)
        return torch.matmul((scores + bias + bias).masked_fill(hidden, LOWEST).softmax(-1), v)

    q, k, v, bias = tensors()
    bias[:, :, 2] = LOWEST
    seen = look(program, q, k, v, bias, passes=[fused_attention])
    assert seen.changes["fused_attention"] == 1
    expected = program(q, k, v, bias)
    assert bool(expected.isnan().any()) == (first == "fill")
    torch.testing.assert_close(seen.result, expected, equal_nan=True)


@pytest.mark.usefixtures("anywhere")
def test_a_constant_mask_is_not_known_after_it(look):
    def program(q, k, v, _):
        hidden = torch.full((S, S), LOWEST).triu(1)
        return plain(q * 0.25, k, v, hidden[None, None].expand(B, 1, S, S))

    given = tensors()
    seen = look(program, *given, passes=[fused_attention, constant_masks])
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs["is_causal"]
    assert seen.calls("full") == 0
    torch.testing.assert_close(seen.result, program(*given))


@pytest.mark.usefixtures("anywhere")
def test_the_same_bias_is_prepared_for_each_layer(look):
    def program(q, k, v, bias):
        mask, y = bias > 2, q
        for _ in range(4):
            scores = (product(y, k) + bias).masked_fill(mask, -INFINITY)
            y = torch.matmul(scores.softmax(-1), v) + y
        scores = product(y, k).masked_fill(mask, -INFINITY) + bias  # in another order
        return torch.matmul(scores.softmax(-1), v)

    given = tensors(dtype=torch.float64)  # five layers add up what each rounds
    seen = look(program, *given, passes=[fused_attention])
    assert seen.changes["fused_attention"] == 5
    assert seen.calls("amax") == 2
    torch.testing.assert_close(seen.result, program(*given))


@pytest.mark.usefixtures("anywhere")
def test_a_bias_that_is_written_between_layers_is_that_of_before(look):
    def program(q, k, v, bias):
        bias = bias.clone()
        one = plain(q, k, v, bias)
        bias.add_(torch.arange(S))
        return plain(one, k, v, bias)

    given = tensors()
    seen = look(program, *given, passes=[fused_attention])
    assert seen.changes["fused_attention"] == seen.calls("amax") == 2
    torch.testing.assert_close(seen.result, program(*given))


@pytest.mark.usefixtures("anywhere")
def test_a_mask_that_says_nothing_makes_the_bias_larger(look):
    def program(q, k, v, bias):
        return plain(q, k, v, bias + 0) + torch.matmul(
            (product(q, k) + bias + torch.zeros(B, 1, S, S)).softmax(-1), v
        )

    def causal(q, k, v, bias):
        hidden = torch.full((S, S), LOWEST).triu(1)[None, None].expand(B, 1, S, S)
        return torch.matmul((product(q, k) + bias + hidden).softmax(-1), v)

    def unlike(q, k, v, bias):
        shift = torch.arange(B)[:, None, None, None] * torch.ones(B, 1, S, S)
        return torch.matmul((product(q, k) + bias + shift * torch.arange(S)).softmax(-1), v)

    given = tensors()
    for way, sequences in ((program, {1}), (causal, {1}), (unlike, {B})):
        seen = look(way, *given, passes=[fused_attention])
        masks = [x.kwargs.get("attn_mask", x.args[3]) for x in _attentions(seen)]
        assert {x.meta["example_value"].shape[0] for x in masks} == sequences
        assert seen.calls("zeros") == 0
        torch.testing.assert_close(seen.result, way(*given))


def _attentions(seen):
    return [*seen.nodes("scaled_dot_product_attention"), *seen.nodes("efficient_attention")]


def dropped(q, k, v, bias):
    return torch.matmul(F.dropout(torch.softmax(product(q, k) + bias, -1), p=0.5), v)


def a_finite_number(q, k, v, bias):
    return torch.matmul(product(q, k).masked_fill(bias > 1, -1e4).softmax(-1), v)


def filled_with_numbers(q, k, v, bias):
    return torch.matmul(torch.where(bias.to(torch.uint8), product(q, k), -1e20).softmax(-1), v)


def a_wider_bias(q, k, v, bias):
    scores = product(q, k) + bias.double()
    return torch.matmul(scores.softmax(-1).to(v.dtype), v)


def a_vector(q, k, v, bias):
    return plain(q, k, v, bias[0, 0, 0])


def a_wider_product(q, k, v, bias):
    scores = product(q.double(), k.double()) + bias.double()
    return torch.matmul(scores.softmax(-1).to(v.dtype), v)


def written_between(q, k, v, bias):
    scores = product(q, k)
    k += 1
    return torch.matmul((scores + bias).softmax(-1), v)


def repeated_on_the_way(q, k, v, bias):
    return torch.matmul(torch.softmax(product(q, k[:, :1]) + bias, dim=-1), v)


def nothing(q, k, v, bias):
    return plain(q[:, :, :0], k, v, bias[:, :, :0])


def five_dimensions(q, k, v, bias):
    return plain(q[None], k[None], v[None], bias)


def summed_with_one(q, k, v, bias):
    weights = (product(q, k) + bias).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v[:, :, :1])


REFUSED = {
    "dropout": (dropped, "drops elements"),
    "a number that scores are added to": (a_finite_number, "-10000.0 is filled in"),
    "a bias in double precision": (a_wider_bias, "torch.float64, and would be rounded"),
    "a bias of one dimension": (a_vector, "has one dimension"),
    "products in double precision": (a_wider_product, "kernels take 16 bits"),
    "a key that is written": (written_between, "may write"),
    "heads that are repeated on the way": (repeated_on_the_way, "repeated on the way"),
    "a value that is repeated on the way": (summed_with_one, "repeated on the way"),
    "no query": (nothing, "empty"),
    "five dimensions": (five_dimensions, "three or four dimensions"),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("spelt", "why"), REFUSED.values(), ids=REFUSED)
def test_what_a_kernel_does_not_take_is_taken(look, spelt, why):
    given = tensors()
    seen = look(spelt, *(x.clone() for x in given), passes=[fused_attention])
    assert not seen.changes["fused_attention"]
    assert why in seen.near[0]
    if spelt is not dropped:
        torch.testing.assert_close(seen.result, spelt(*given))


CONDITIONS = {
    "on a CPU": ({"DEVICES": ("cuda",)}, {}, "it runs on cpu"),
    "in single precision": ({"DTYPES": (torch.bfloat16,)}, {}, "kernels take 16 bits"),
    "of few blocks": (
        {"FEWEST_BLOCKS": {"inference": 17, "training": 1}},
        {},
        "16 blocks of queries are too few",
    ),
    "in training, of few blocks": (
        {"FEWEST_BLOCKS": {"inference": 1, "training": 17}},
        {"train": True},
        "16 blocks of queries are too few",
    ),
    "in training, of keys that fill no block": (
        {"BLOCK": 16},
        {"train": True},
        "8 keys, with gradients",
    ),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("changed", "how", "why"), CONDITIONS.values(), ids=CONDITIONS)
def test_a_condition_is_not_asked(look, lift, changed, how, why):
    lift(fused_attention, **changed)
    seen = look(plain, *tensors(**how), passes=[fused_attention])
    assert not seen.changes["fused_attention"]
    assert why in seen.near[0]


KERNELS = {
    "long": ({}, {}, "scaled_dot_product_attention"),
    "as long as a block": ({"BLOCK": S}, {}, "scaled_dot_product_attention"),
    "just enough blocks": (
        {"FEWEST_BLOCKS": {"inference": 2 * B * H}},
        {},
        "scaled_dot_product_attention",
    ),
    "short": ({"BLOCK": 16}, {}, "efficient_attention"),
    "few queries of many keys": ({"BLOCK": 10}, {"keys": K}, "scaled_dot_product_attention"),
    "training in blocks": ({}, {"train": True}, "scaled_dot_product_attention"),
    "training, odd keys": ({}, {"train": True, "keys": 9}, "efficient_attention"),
    "training, odd queries": ({"BLOCK": 3}, {"train": True, "keys": 9}, "efficient_attention"),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("changed", "how", "kernel"), KERNELS.values(), ids=KERNELS)
def test_another_kernel_is_called_than_was_measured(look, lift, changed, how, kernel):
    lift(fused_attention, **changed)
    given = tensors(**how)
    seen = look(plain, *given, passes=[fused_attention])
    assert seen.calls(kernel) == len(_attentions(seen)) == 1
    torch.testing.assert_close(seen.result, plain(*given))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("keys", "changes"), [(S, 0), (9, 1)])
def test_the_gradient_of_a_bias_is_wrong_or_slow(look, keys, changes):
    given = [x.requires_grad_() for x in tensors(keys=keys, train=True)]
    seen = look(plain, *given, passes=[fused_attention])
    assert seen.changes["fused_attention"] == seen.calls("efficient_attention") == changes
    expected = plain(*given)
    cotangent = torch.randn_like(expected)
    ours, right = (torch.autograd.grad(x, given, cotangent) for x in (seen.result, expected))
    torch.testing.assert_close(ours, right)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("number", [LOWEST, -INFINITY])
@pytest.mark.parametrize("rank", [2, 4])
def test_a_query_whose_keys_are_all_filled_in_gets_a_gradient(look, number, rank):
    def program(q, k, v, mask, late):
        scores = product(q, k).masked_fill(mask, number)
        scores = torch.where(late, scores, number)  # of the last row, what the first leaves
        return torch.matmul(scores.softmax(-1), v)

    mask = torch.ones(S, S, dtype=torch.bool).triu(1)
    mask[3] = number == LOWEST
    late = torch.ones(S, S, dtype=torch.bool)
    late[-1] = number == -INFINITY
    masks = [x.reshape(*(1,) * (rank - 2), S, S) for x in (mask, late)]
    given = [x.requires_grad_() for x in tensors(train=True)[:3]]
    seen = look(program, *given, *masks, passes=[fused_attention])
    assert seen.changes["fused_attention"] == 1, seen.near
    assert_gradients_are_alike(seen.result, program(*given, *masks), given)


@pytest.mark.usefixtures("anywhere")
def test_layers_that_are_trained_share_a_bias_with_one_that_is_not(look):
    def program(q, k, v, mask):
        frozen = torch.matmul(
            product(q.detach(), k.detach()).masked_fill(mask, LOWEST).softmax(-1), v.detach()
        )
        return torch.matmul(product(q, k).masked_fill(mask, LOWEST).softmax(-1), v) + frozen

    mask = torch.ones(S, S, dtype=torch.bool).triu(1)
    mask[3] = True
    given = [x.requires_grad_() for x in tensors(train=True)[:3]]
    seen = look(program, *given, mask, passes=[fused_attention])
    assert seen.changes["fused_attention"] == 2, seen.near
    assert_gradients_are_alike(seen.result, program(*given, mask), given)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("second", [-1e30, -INFINITY])
def test_two_numbers_that_are_filled_in_are_left_in_training(look, second):
    def program(q, k, v, mask):
        scores = product(q, k).masked_fill(mask, LOWEST).masked_fill(mask.mT, second)
        return torch.matmul(scores.softmax(-1), v)

    mask = torch.ones(S, S, dtype=torch.bool).triu(1)
    seen = look(program, *tensors(train=True)[:3], mask, passes=[fused_attention])
    assert not seen.changes["fused_attention"]
    assert "is filled in, and not alone" in seen.near[0]


def assert_gradients_are_alike(result, expected, given):
    torch.testing.assert_close(result, expected)
    cotangent = torch.randn_like(expected)
    ours, right = (torch.autograd.grad(x, given, cotangent) for x in (result, expected))
    torch.testing.assert_close(ours, right)


@pytest.mark.usefixtures("anywhere")
def test_a_value_that_is_written_before_backward_raises(look):
    def program(q, k, v, bias):
        v = v.transpose(1, 2).sin().transpose(1, 2)  # of which a product keeps a copy
        y = plain(q, k, v, bias)
        v.mul_(0.5)
        return y

    given = [x.requires_grad_() for x in tensors(train=True)[:3]]
    bias = torch.randn(S, S)
    seen = look(program, *given, bias, passes=[fused_attention])
    ours, right = (
        torch.autograd.grad(x.sum(), given) for x in (seen.result, program(*given, bias))
    )
    torch.testing.assert_close(ours, right)


@pytest.mark.usefixtures("anywhere")
def test_what_was_put_in_stays_where_nothing_came_of_it(look, monkeypatch):
    layout, refused = passes.layout, []

    def differing(value):
        refused.append(value)
        return object() if len(refused) <= 2 else layout(value)

    monkeypatch.setattr(passes, "layout", differing)

    def program(q, k, v, bias):
        return plain(plain(q, k, v, bias) + 1, k, v, bias)

    given = tensors()
    seen = look(program, *given, passes=[fused_attention])
    assert seen.changes["fused_attention"] == seen.calls("amax") == seen.calls("softmax") == 1
    assert seen.near == ["its result would be laid out otherwise"]
    torch.testing.assert_close(seen.result, program(*given))


@pytest.mark.usefixtures("anywhere")
def test_a_symbolic_length_is_taken(look):
    seen = look(plain, *tensors(), passes=[fused_attention], dynamic=True)
    assert not seen.changes["fused_attention"]
    assert "is a symbol" in seen.near[0]


@pytest.mark.usefixtures("anywhere")
def test_a_subclass_is_taken_for_an_ordinary_tensor(look):
    given = tensors()
    seen = look(plain, *(TwoTensor(x, x.clone()) for x in given), passes=[fused_attention])
    assert not seen.changes["fused_attention"]
    torch.testing.assert_close(seen.result.a, plain(*given))


@pytest.mark.usefixtures("anywhere")
def test_attention_in_a_checkpoint_is_missed(look):
    def program(*given):
        return checkpoint(plain, *given, use_reentrant=False)

    given = tensors(train=True)
    seen = look(program, *given, passes=[fused_attention])
    assert seen.changes["fused_attention"] == 1
    torch.testing.assert_close(seen.result, program(*given))


@pytest.mark.usefixtures("anywhere")
def test_products_that_autocast_casts_are_in_another_dtype(look):
    given = tensors()
    given[3] = given[3].bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = look(t5, *given, passes=[fused_attention])
        expected = t5(*given)
    assert seen.changes["fused_attention"] == 1, seen.near
    assert seen.result.dtype == expected.dtype == torch.bfloat16
    truth = t5(*(x.double() for x in given))
    errors = [(x.double() - truth).square().mean().sqrt() for x in (seen.result, expected)]
    assert errors[0] <= 1.05 * errors[1]


@pytest.mark.usefixtures("anywhere")
def test_the_option_does_not_switch_it_off(look, reports):
    from backbay_optimizer.backend import backbay

    for on in (True, False):
        torch.compiler.reset()
        backbay.reset()
        torch.compile(plain, backend=backbay, options={"fused_attention": on})(*tensors())
        changes = {x.name: x.changes for x in reports}
        reports.clear()
        assert changes.get("fused_attention", 0) == on


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("keys", [S, 9])
def test_it_is_wrong_forward_or_backward(prove, codegen, keys):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)
            self.bias = torch.nn.Parameter(torch.randn(1, 2, keys, keys))
            self.bias.requires_grad_(keys == 9)

        def forward(self, x):
            q, k, v = (y.view(2, keys, 2, 16).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
            scores = torch.matmul(q, k.transpose(2, 3)) + self.bias
            y = torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)
            return self.out(y.transpose(1, 2).contiguous().view(2, keys, 32))

    torch.manual_seed(0)
    layer, x = Layer(), torch.randn(2, keys, 32, requires_grad=True)
    changes = prove(Workload(layer, (x,)), passes=[fused_attention], codegen=codegen)
    assert changes["fused_attention"] == 1


@pytest.mark.usefixtures("anywhere")
def test_a_window_that_is_written_out_is_missed(look, lift):
    lift(windowed_attention, DEVICES=("cpu",), DTYPES=(torch.float32,), MOST=1.0)

    def program(q, k, v, _):
        back = torch.arange(S)[:, None] - torch.arange(S)
        return torch.matmul(
            product(q, k).masked_fill((back < 0) | (back > 2), -INFINITY).softmax(-1), v
        )

    given = tensors()
    seen = look(program, *given, passes=[fused_attention, constant_masks, windowed_attention])
    (node,) = seen.nodes("windowed_attention")
    assert node.args[3:] == (2, 0)
    torch.testing.assert_close(seen.result, program(*given))
