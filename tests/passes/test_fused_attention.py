"""Attention that is written out becomes one call, whatever is added; all else stays."""

import math
import sys

import pytest
import torch
from hypothesis import HealthCheck, settings, strategies
from hypothesis import given as drawn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from backbay.passes import constant_masks, fused_attention, windowed_attention
from backbay.proof import Workload

MODULE = sys.modules["backbay.passes.fused_attention"]
B, H, S, K, D = 2, 4, 8, 12, 16
LOWEST = torch.finfo(torch.float32).min
INFINITY = float("inf")


@pytest.fixture
def anywhere(monkeypatch):
    """Let the pass rewrite on the CPU, in single precision too, and what is short."""
    monkeypatch.setattr(MODULE, "DEVICES", ("cpu",))
    monkeypatch.setattr(MODULE, "DTYPES", (torch.float32, torch.bfloat16, torch.float16))
    monkeypatch.setattr(MODULE, "FEWEST_BLOCKS", {"inference": 1, "training": 1})
    monkeypatch.setattr(MODULE, "BLOCK", 4)


def tensors(*, keys=S, dtype=torch.float32, train=False):
    """Give query (2, 4, 8, 16), key and value, as models lay them out, and a bias for each pair."""
    torch.manual_seed(0)
    made = [torch.randn(B, n, H, D, dtype=dtype).transpose(1, 2) for n in (S, keys, keys)]
    made.append(torch.randn(1, H, S, keys, dtype=dtype))
    return [x.requires_grad_(train) for x in made[:3]] + made[3:]


def product(q, k):
    return torch.matmul(q, k.transpose(-2, -1))


def plain(q, k, v, bias):
    return torch.matmul(torch.softmax(product(q, k) + bias, dim=-1), v)


def t5(q, k, v, bias):
    scores = product(q, k)
    scores += bias
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    return torch.matmul(F.dropout(weights, p=0.1, training=False), v)


def bert(q, k, v, bias):
    scores = product(q, k) / math.sqrt(D) + bias
    return torch.matmul(F.dropout(F.softmax(scores, -1), p=0.0), v).transpose(1, 2).flatten(2)


def eager(q, k, v, bias):
    weights = torch.matmul(q, k.transpose(2, 3)) * 0.3 + bias + bias[:, :1]
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def operators(q, k, v, bias):
    scores = 0.5 * (q @ k.mT)
    return (bias + scores).softmax(-1) @ v


def scaled_first(q, k, v, bias):
    return (q * 0.2 @ k.permute(0, 1, 3, 2)).add(bias).softmax(dim=3).matmul(v)


def flat(q, k, v, bias):
    q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).mul_(0.5).add_(bias[0, 0])
    return torch.bmm(scores.softmax(-1), v).view(B, H, -1, D)


def no_bias(q, k, v, bias):
    return torch.matmul(F.softmax(product(q, k) * 0.1, dim=-1), v) + bias.sum()


def filled(q, k, v, bias):
    scores = (product(q, k) + bias).masked_fill(bias > 1, -INFINITY)
    return torch.matmul(scores.softmax(-1), v)


def filled_first(q, k, v, bias):
    scores = product(q, k).masked_fill(bias[:, :1] > 1, torch.finfo(q.dtype).min) + bias
    return torch.matmul(scores.softmax(-1), v)


def where(q, k, v, bias):
    scores = torch.where(bias < 1, product(q, k) * 0.1, -1e20)
    return torch.matmul(scores.softmax(-1), v)


def where_not(q, k, v, bias):
    scores = bias + torch.where(bias > 1, -INFINITY, product(q, k) * 0.1)
    return torch.matmul(scores.softmax(-1), v)


def einsum(q, k, v, bias):
    scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 0.3 + bias
    return torch.einsum("b h i j, b h j d -> b h i d", scores.softmax(dim=-1), v)


def heads_last(q, k, v, bias):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", [q, k]) + bias
    return torch.einsum("bhqk,bkhd->bqhd", F.softmax(scores, -1), v).flatten(2)


def keys_first(q, k, v, bias):
    scores = torch.einsum("bhjd,bhid->bhij", k, q) + bias
    return torch.einsum("bhjd,bhij->ibhd", v, scores.softmax(-1))


def mixed(q, k, v, bias):
    scores = torch.einsum("hid,hjd->hij", q.flatten(0, 1), k.flatten(0, 1)) + bias[0, 0]
    return scores.softmax(-1) @ v.flatten(0, 1)


SPELLINGS = {
    x.__name__: x
    for x in (
        *(plain, t5, bert, eager, operators, scaled_first, flat),
        *(no_bias, filled, filled_first, where, where_not, einsum, heads_last, keys_first, mixed),
    )
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("keys", [S, K])
@pytest.mark.parametrize("spelt", SPELLINGS.values(), ids=SPELLINGS)
def test_attention_that_is_written_out_is_missed_or_wrong(look, spelt, keys, train):
    given = tensors(keys=keys, train=train)
    seen = look(spelt, *given, passes=[fused_attention])
    assert seen.changes["fused_attention"] == 1, seen.near
    assert seen.calls("scaled_dot_product_attention") == 1
    assert not any(seen.calls(x) for x in ("softmax", "matmul", "bmm", "einsum"))
    expected = spelt(*given)
    torch.testing.assert_close(seen.result, expected)
    assert seen.result.stride() == expected.stride()
    if train:
        cotangent = torch.randn_like(expected)
        ours, right = (
            torch.autograd.grad(x, given[:3], cotangent) for x in (seen.result, expected)
        )
        torch.testing.assert_close(ours, right)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spelt", SPELLINGS.values(), ids=SPELLINGS)
def test_less_is_right_than_in_eager(look, spelt, dtype):
    given = tensors(dtype=dtype)
    seen = look(spelt, *given, passes=[fused_attention])
    if (spelt, dtype) == (filled_first, torch.float16):  # its lowest number is none of the lowest
        assert "-65504.0 is filled in" in seen.near[0]
        return
    assert seen.changes["fused_attention"] == 1, seen.near
    assert seen.calls("clamp") == (dtype == torch.bfloat16 and spelt is not no_bias)  # for CUDA
    truth = spelt(*(x.double() for x in given))
    errors = [(x.double() - truth).square().mean().sqrt() for x in (seen.result, spelt(*given))]
    assert errors[0] <= 1.05 * errors[1]


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

    given = tensors()
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


def read_elsewhere(q, k, v, bias):
    weights = torch.softmax(product(q, k) + bias, dim=-1)
    return torch.matmul(weights, v), weights.sum()


def scores_read(q, k, v, bias):
    scores = product(q, k) + bias
    return torch.matmul(torch.softmax(scores, dim=-1), v), scores.amax()


def over_queries(q, k, v, bias):
    return torch.matmul(torch.softmax(product(q, k) + bias, dim=-2), v)


def scaled_late(q, k, v, bias):
    return torch.matmul(torch.softmax((product(q, k) + bias) * 0.5, dim=-1), v)


def scaled_by_a_tensor(q, k, v, bias):
    return torch.matmul(torch.softmax(product(q, k) * bias, dim=-1), v)


def twice(q, k, v, bias):
    return torch.matmul(torch.softmax(torch.softmax(product(q, k) + bias, -1), -1), v)


def of_weights(q, k, v, bias):
    return torch.matmul(torch.softmax(bias, dim=-1), v) + q + k


def zero_times(q, k, v, bias):
    return torch.matmul(torch.softmax(product(q, k) * 0.0 + bias, dim=-1), v)


def with_a_factor(q, k, v, bias):
    scores = torch.add(product(q, k), bias, alpha=2)
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def an_integer(q, k, v, bias):
    return torch.matmul(torch.softmax(product(q, k) + bias, dim=-1).long().to(v.dtype), v)


def minus(q, k, v, bias):
    return torch.matmul(torch.softmax(product(q, k) - bias, dim=-1), v)


def summed_over_queries(q, k, v, bias):
    weights = torch.softmax(product(q, k) + bias, dim=-1)
    return torch.einsum("bhij,bhid->bhjd", weights, v)


def turned(q, k, v, bias):
    scores = torch.einsum("bhid,bhjd->bhji", q, k) + bias
    return torch.einsum("bhji,bhjd->bhid", scores.softmax(-1), v)


def summed_twice(q, k, v, bias):
    scores = torch.einsum("bhid,bhjd->bij", q, k)[:, None] + bias
    return torch.matmul(scores.softmax(-1), v)


def diagonal(q, k, v, bias):
    scores = torch.einsum("bhid,bhid->bhi", q, k)[..., None] + bias
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def heads_mixed(q, k, v, bias):
    weights = (product(q, k) + bias).softmax(-1)
    return torch.einsum("bhij,bgjd->bhid", weights, v)


def into_a_bias(q, k, v, bias):
    kept = bias + torch.zeros(B, 1, 1, 1)
    scores = kept
    scores += product(q, k)
    return torch.matmul(scores.softmax(-1), v), kept.sum()


def other_rows(q, k, v, bias):
    weights = torch.einsum("bhid,bhjd->ijbh", q, k).softmax(-1)
    return torch.matmul(weights, v[0, 0, :H]) + bias[0, 0, 0, 0]


def one_head_of_keys(q, k, v, bias):
    scores = torch.einsum("bhid,bjd->bhij", q, k[:, 0]) + bias
    return torch.matmul(scores.softmax(-1), v)


def elsewhere(q, k, v, bias):
    scores = (product(q, k) + bias).to("meta")
    return torch.matmul(scores.softmax(-1), v.to("meta"))


SILENT = {
    x.__name__: x
    for x in (
        *(read_elsewhere, scores_read, over_queries, scaled_late, scaled_by_a_tensor, twice),
        *(of_weights, zero_times, with_a_factor, an_integer, minus),
        *(summed_over_queries, turned, summed_twice, diagonal, heads_mixed),
        *(into_a_bias, elsewhere, other_rows, one_head_of_keys),
    )
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("spelt", SILENT.values(), ids=SILENT)
def test_what_is_no_attention_is_taken_for_it(look, spelt):
    seen = look(spelt, *tensors(), passes=[fused_attention])
    assert not seen.changes["fused_attention"]


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
def test_a_condition_is_not_asked(look, monkeypatch, changed, how, why):
    for name, value in changed.items():
        monkeypatch.setattr(MODULE, name, value)
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
def test_another_kernel_is_called_than_was_measured(look, monkeypatch, changed, how, kernel):
    for name, value in changed.items():
        monkeypatch.setattr(MODULE, name, value)
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
def test_what_was_put_in_stays_where_nothing_came_of_it(look, monkeypatch):
    layout, refused = MODULE.layout, []

    def differing(value):
        refused.append(value)
        return object() if len(refused) <= 4 else layout(value)

    monkeypatch.setattr(MODULE, "layout", differing)

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
def test_the_option_does_not_switch_it_off(look):
    from backbay.backends.optimizing import backbay

    for on in (True, False):
        torch.compiler.reset()
        backbay.reset()
        torch.compile(plain, backend=backbay, options={"fused_attention": on})(*tensors())
        reports = {x.name: x.changes for x in backbay.reports}
        assert reports.get("fused_attention", 0) == on


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


LENGTHS = strategies.integers(min_value=1, max_value=9)


@pytest.mark.usefixtures("anywhere")
@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@drawn(
    lengths=strategies.tuples(LENGTHS, LENGTHS, LENGTHS, LENGTHS),
    alike=strategies.lists(strategies.booleans(), min_size=4, max_size=4),
    steps=strategies.lists(strategies.sampled_from(["add", "fill", "float"]), max_size=4),
    scale=strategies.floats(min_value=0.1, max_value=2),
)
def test_what_is_drawn_is_wrong(look, lengths, alike, steps, scale):
    heads, queries, keys, width = lengths
    sizes = [1 if x else n for x, n in zip(alike, (B, heads, queries, keys), strict=True)]

    def program(q, k, v, biases, masks):
        scores = torch.matmul(q, k.transpose(2, 3)) * scale
        for step, bias, mask in zip(steps, biases, masks, strict=True):
            if step == "add":
                scores = scores + bias
            elif step == "fill":
                scores = scores.masked_fill(mask, -INFINITY)
            else:
                scores = scores.float()
        return torch.matmul(scores.softmax(-1), v) * 2

    torch.manual_seed(0)
    three = [torch.randn(B, heads, n, width) for n in (queries, keys, keys)]
    biases = [torch.randn(sizes) for _ in steps]
    masks = [torch.rand(sizes) > 0.7 for _ in steps]
    seen = look(program, *three, biases, masks, passes=[fused_attention], dynamic=False)
    assert seen.changes["fused_attention"] == 1, seen.near
    expected = program(*three, biases, masks)
    torch.testing.assert_close(seen.result, expected, equal_nan=True)


@pytest.mark.usefixtures("anywhere")
@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@drawn(
    orders=strategies.tuples(*(strategies.permutations(x) for x in ("bhid", "bhjd", "bhjd"))),
    result=strategies.permutations("bhid"),
    batch=strategies.sampled_from(["bh", "hb"]),
    swaps=strategies.tuples(strategies.booleans(), strategies.booleans()),
)
def test_an_equation_is_read_as_another(look, orders, result, batch, swaps):
    sizes = {"b": 2, "h": 3, "i": 4, "j": 5, "d": 6}
    q, k, v = ("".join(x) for x in orders)
    result, weights = "".join(result), f"{batch}ij"

    def summed(one, other, into, x, y, *, swap):
        if swap:
            one, other, x, y = other, one, y, x
        return torch.einsum(f"{one},{other}->{into}", x, y)

    def program(x, y, z, bias):
        scores = summed(q, k, weights, x, y, swap=swaps[0]) + bias
        return summed(weights, v, result, scores.softmax(-1), z, swap=swaps[1])

    torch.manual_seed(0)
    given = [torch.randn([sizes[x] for x in letters]) for letters in (q, k, v, weights)]
    seen = look(program, *given, passes=[fused_attention], dynamic=False)
    assert seen.changes["fused_attention"] == 1, seen.near
    expected = program(*given)
    torch.testing.assert_close(seen.result, expected)
    assert seen.result.stride() == expected.stride()


@pytest.mark.usefixtures("anywhere")
def test_a_window_that_is_written_out_is_missed(look, monkeypatch):
    module = sys.modules["backbay.passes.windowed_attention"]
    monkeypatch.setattr(module, "DEVICES", ("cpu",))
    monkeypatch.setattr(module, "DTYPES", (torch.float32,))
    monkeypatch.setattr(module, "MOST", 1.0)

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
