import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.passes import constant_masks

SHAPE = (2, 4, 6, 8)


def tensors(*, heads=4, keys=6, dtype=torch.float32, train=False):
    """Give query, key and value: (2, 4, 6, 8), and the others with their own heads and length."""
    torch.manual_seed(0)
    shapes = (SHAPE, (2, heads, keys, 8), (2, heads, keys, 8))
    return [torch.randn(x, dtype=dtype).requires_grad_(train) for x in shapes]


def attend(mask_of, **keywords):
    return lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask_of(q, k), **keywords
    )


def rows(n):
    return torch.arange(n)[:, None]


CAUSAL = {
    "comparison": lambda q, k: rows(6) >= torch.arange(6),
    "tril": lambda q, k: torch.ones(6, 6).tril() > 0,
    "tril of booleans": lambda q, k: torch.ones(6, 6, dtype=torch.bool).tril(),
    "for each sequence": lambda q, k: (rows(6) >= torch.arange(6)).expand(2, 1, 6, 6),
    "and all": lambda q, k: (rows(6) >= torch.arange(6)) & torch.ones(6, 6, dtype=torch.bool),
    "minus infinity": lambda q, k: torch.full((6, 6), float("-inf")).triu(1),
    "the lowest number": lambda q, k: torch.full((6, 6), torch.finfo(torch.float32).min).triu(1),
    "a window that is wide enough": lambda q, k: (
        (rows(6) >= torch.arange(6)) & (rows(6) - torch.arange(6) < 6)
    ),
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mask_of", CAUSAL.values(), ids=CAUSAL)
def test_a_causal_mask_is_missed(look, mask_of, train):
    given = tensors(train=train)
    seen = look(attend(mask_of), *given, passes=[constant_masks])
    assert seen.changes["constant_masks"] == 1
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs == {"is_causal": True}
    assert not seen.calls("arange") + seen.calls("tril") + seen.calls("full")
    torch.testing.assert_close(seen.result, F.scaled_dot_product_attention(*given, is_causal=True))


@pytest.mark.parametrize(
    "mask_of",
    [
        lambda q, k: torch.ones(6, 6, dtype=torch.bool),
        lambda q, k: torch.zeros(2, 1, 6, 6),
        lambda q, k: torch.ones(1, 1, dtype=torch.bool),
    ],
)
def test_a_mask_that_hides_nothing_is_missed(look, mask_of):
    given = tensors()
    seen = look(attend(mask_of), *given, passes=[constant_masks])
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs == {"is_causal": False}
    torch.testing.assert_close(seen.result, F.scaled_dot_product_attention(*given))


def test_a_mask_that_hides_nothing_of_a_longer_past_is_missed(look):
    given = tensors(keys=9)
    seen = look(attend(lambda q, k: torch.ones(6, 9) > 0), *given, passes=[constant_masks])
    assert seen.changes["constant_masks"] == 1


BUFFER = torch.ones(6, 6, dtype=torch.bool).tril()
NEITHER = {
    "an input": (lambda q, k: q[0, 0, :, :6] > 0, "depends on the input"),
    "a tensor of the model": (lambda q, k: BUFFER, "depends on the input"),
    "a window": (
        lambda q, k: (rows(6) >= torch.arange(6)) & (rows(6) - torch.arange(6) < 3),
        "neither causal nor empty: it lets 42% of all pairs through",
    ),
    "strictly causal": (lambda q, k: rows(6) > torch.arange(6), "neither causal"),
    "reversed": (lambda q, k: rows(6) <= torch.arange(6), "neither causal"),
    "one pair less": (
        lambda q, k: (rows(6) >= torch.arange(6)) & (rows(6) * 6 + torch.arange(6) != 30),
        "neither causal",
    ),
    "causal for one sequence of two": (
        lambda q, k: (rows(6) >= torch.arange(6)) | (torch.arange(2)[:, None, None, None] > 0),
        "neither causal",
    ),
    "a bias": (lambda q, k: torch.arange(6)[None] * 0.5, "a bias"),
    "a random mask": (lambda q, k: torch.rand(6, 6) > 0.5, "random"),
}


@pytest.mark.parametrize(("mask_of", "why"), NEITHER.values(), ids=NEITHER)
def test_a_mask_that_is_neither_is_taken_away(look, mask_of, why):
    given = tensors()
    torch.manual_seed(1)
    seen = look(attend(mask_of), *given, passes=[constant_masks])
    assert not seen.changes["constant_masks"]
    assert why in seen.near[0]


def test_a_causal_mask_over_a_longer_past_becomes_torchs_other_corner(look):
    # is_causal aligns the first query with the first key; this mask the last with the last.
    given = tensors(keys=9)
    seen = look(
        attend(lambda q, k: rows(6) + 3 >= torch.arange(9)), *given, passes=[constant_masks]
    )
    assert not seen.changes["constant_masks"]
    assert "more keys than queries" in seen.near[0]


def test_a_mask_that_is_written_to_is_taken_as_it_was_made(look):
    def attended(q, k, v):
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        mask[5, 0] = False
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    given = tensors()
    seen = look(attended, *given, passes=[constant_masks])
    assert not seen.changes["constant_masks"]
    assert "written to" in seen.near[0]


def test_a_mask_of_a_symbolic_size_is_guessed(look):
    def attended(q, k, v):
        n = q.shape[2]
        mask = torch.arange(n)[:, None] >= torch.arange(n)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    given = tensors()
    seen = look(attended, *given, passes=[constant_masks], dynamic=True)
    assert not seen.changes["constant_masks"]
    assert seen.near


def test_one_mask_of_several_layers_is_kept_for_one(look):
    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        first = F.scaled_dot_product_attention(q, k, v, mask, 0.0)
        second = F.scaled_dot_product_attention(first, k, v, attn_mask=mask, scale=0.3)
        return second + mask[0, 0]

    given = tensors()
    seen = look(attended, *given, passes=[constant_masks])
    assert seen.changes["constant_masks"] == 2
    assert {x.kwargs.get("scale") for x in seen.nodes("scaled_dot_product_attention")} == {
        None,
        0.3,
    }
    torch.testing.assert_close(seen.result, attended(*given))


REPEATED = {
    "index": lambda k: k[:, :, None, :, :].expand(2, 2, 2, 6, 8).reshape(2, 4, 6, 8),
    "unsqueeze": lambda k: k.unsqueeze(2).expand(2, 2, 2, 6, 8).reshape(2, 4, 6, 8),
    "interleaved": lambda k: torch.repeat_interleave(k, 2, dim=1),
    "interleaved method": lambda k: k.repeat_interleave(2, dim=1),
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("repeated", REPEATED.values(), ids=REPEATED)
def test_repeated_heads_are_missed(look, repeated, train):
    given = tensors(heads=2, train=train)

    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)

    seen = look(attended, *given, passes=[constant_masks])
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs == {"is_causal": True, "enable_gqa": True}
    assert not seen.calls("expand") + seen.calls("repeat_interleave")
    torch.testing.assert_close(seen.result, attended(*given))


NOT_REPEATED = {
    "another dimension": lambda k: k.unsqueeze(1).expand(2, 2, 2, 6, 8).reshape(2, 4, 6, 8),
    "tiled": lambda k: k.repeat(1, 2, 1, 1),
    "another order": lambda k: k[:, [0, 1, 0, 1]],
}


@pytest.mark.parametrize("repeated", NOT_REPEATED.values(), ids=NOT_REPEATED)
def test_heads_in_another_order_are_taken_for_groups(look, repeated):
    given = tensors(heads=2)

    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)

    seen = look(attended, *given, passes=[constant_masks])
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs == {"is_causal": True}
    torch.testing.assert_close(seen.result, attended(*given))


def test_heads_stay_repeated_where_a_mask_stays(look):
    given = tensors(heads=2)
    repeated = REPEATED["index"]

    def attended(q, k, v):
        mask = q[0, 0, :, :6] > 0
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)

    seen = look(attended, *given, passes=[constant_masks])
    assert not seen.changes["constant_masks"]


def test_the_option_of_its_name_leaves_it_on(look):
    offered = {"constant_masks": False}
    seen = look(attend(CAUSAL["tril"]), *tensors(), passes=[constant_masks], options=offered)
    assert not seen.changes
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs["attn_mask"] is not None
