"""A constant window is computed, and not what it hides; whatever is no window stays."""

import sys

import pytest
import torch
from hypothesis import HealthCheck, settings, strategies
from hypothesis import given as drawn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from backbay.proof import Workload
from backbay_optimizer.passes import mask_kinds
from backbay_optimizer.passes.mask_kinds import Window, kind_of
from backbay_optimizer.passes.masks import constant_masks
from backbay_optimizer.passes.slice_pushdown import slice_pushdown
from backbay_optimizer.passes.windowed_attention import windowed_attention

MODULE = sys.modules["backbay_optimizer.passes.windowed_attention"]
S, K = 8, 11


@pytest.fixture
def anywhere(lift, monkeypatch):
    """Let the pass rewrite on the CPU, in single precision too, where all blocks are one."""
    lift(windowed_attention, DEVICES=("cpu",))
    lift(windowed_attention, DTYPES=(torch.float32, torch.bfloat16))
    monkeypatch.setattr(MODULE, "MOST", 1.0)


def tensors(*, heads=4, keys=S, dtype=torch.float32, train=False):
    """Return query (2, 4, 8, 8), key and value with heads and a length of their own."""
    torch.manual_seed(0)
    shapes = (2, 4, S, 8), (2, heads, keys, 8), (2, heads, keys, 8)
    return [torch.randn(x, dtype=dtype).requires_grad_(train) for x in shapes]


def back(queries=S, keys=S):
    """Return how far back each key is."""
    return torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)


def attend(mask_of, **keywords):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask_of(), **keywords)


def sliding():
    return (back() >= 0) & (back() < 3)


WINDOWS = {
    "back": (sliding, (2, 0)),
    "ahead": (lambda: (back() <= 0) & (back() > -3), (0, 2)),
    "both": (lambda: back().abs() <= 2, (2, 2)),
    "uneven": (lambda: (back() <= 3) & (back() >= -1), (3, 1)),
    "its own": (lambda: back() == 0, (0, 0)),
    "all behind": (lambda: back() <= 0, (0, 7)),
    "for each sequence": (lambda: sliding().expand(2, 1, S, S), (2, 0)),
    "minus infinity": (lambda: torch.zeros(S, S).masked_fill(~sliding(), float("-inf")), (2, 0)),
    "the lowest number": (
        lambda: torch.where(sliding(), 0.0, torch.finfo(torch.float32).min)[None, None],
        (2, 0),
    ),
}


@pytest.mark.usefixtures("anywhere")
def test_a_window_that_is_causal_too_is_not(look):
    function, given = attend(lambda: back().abs() <= 2, is_causal=True), tensors()
    seen = look(function, *given, passes=[constant_masks, windowed_attention])
    assert not seen.changes["windowed_attention"]
    torch.testing.assert_close(seen.result, function(*given))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("mask_of", "window"), WINDOWS.values(), ids=WINDOWS)
def test_a_window_is_missed(look, mask_of, window, train):
    given = tensors(train=train)
    seen = look(attend(mask_of), *given, passes=[constant_masks, windowed_attention])
    assert seen.changes == {"windowed_attention": 1, "constant_masks": 0}
    (node,) = seen.nodes("windowed_attention")
    assert node.args[3:] == window
    assert not node.kwargs
    assert not seen.calls("arange") + seen.calls("scaled_dot_product_attention")
    torch.testing.assert_close(seen.result, attend(mask_of)(*given))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("reach", [2, K])
def test_a_window_over_a_longer_past_is_missed(look, reach):
    def mask_of():
        return (back(S, K) >= 0) & (back(S, K) <= reach)

    given = tensors(keys=K)
    seen = look(attend(mask_of, scale=0.3), *given, passes=[windowed_attention])
    (node,) = seen.nodes("windowed_attention")
    assert node.args[3:] == (min(reach, K - 1), 0)
    assert node.kwargs == {"scale": 0.3}
    torch.testing.assert_close(seen.result, attend(mask_of, scale=0.3)(*given))


OTHERS = {
    "causal": lambda: back() >= 0,
    "empty": lambda: back() < S,
    "every other key": lambda: sliding() & (back() % 2 == 0),
    "a hole": lambda: sliding() & ~((back() == 1) & (torch.arange(S) == 4)),
    "one pair more": lambda: sliding() | ((back() == 5) & (torch.arange(S) == 1)),
    "not itself": lambda: (back() > 0) & (back() < 3),
    "wider for one sequence": lambda: (
        sliding() | ((back() == 3) & (torch.arange(2)[:, None, None, None] > 0))
    ),
    "from the other corner": lambda: (
        (torch.arange(S)[:, None] + torch.arange(S) - S + 1).abs() <= 1
    ),
    "chunks": lambda: torch.arange(S)[:, None] // 2 == torch.arange(S) // 2,
    "a row for all": lambda: (torch.arange(S) < 3)[None],
    "a bias": lambda: torch.where(sliding(), 0.5, float("-inf")),
    "random": lambda: torch.rand(S, S) > 0.5,
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("mask_of", OTHERS.values(), ids=OTHERS)
def test_a_mask_that_is_no_window_is_taken_for_one(look, mask_of):
    given = tensors()
    seen = look(attend(mask_of), *given, passes=[windowed_attention])
    assert not seen.changes["windowed_attention"]
    assert seen.calls("scaled_dot_product_attention") == 1


ELSEWHERE = {
    "fewer keys than queries": lambda: back(S, 5) <= 1,
    "fewer keys, and queries that see none": lambda: (back(S, 5) >= 0) & (back(S, 5) < 3),
    "not itself, of a longer past": lambda: (back(S, K) > 0) & (back(S, K) < 3),
    "not itself, nor the last of a longer past": lambda: back(S, K) > 1,
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("mask_of", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_mask_of_other_lengths_that_is_no_window_is_taken_for_one(look, mask_of):
    given = tensors(keys=mask_of().shape[1])
    seen = look(attend(mask_of), *given, passes=[windowed_attention])
    assert not seen.changes["windowed_attention"]


@pytest.mark.usefixtures("anywhere")
def test_heads_without_a_batch_are_taken(look):
    given = [x[0] for x in tensors()]
    seen = look(attend(sliding), *given, passes=[windowed_attention])
    assert not seen.changes["windowed_attention"]
    assert "not four dimensions" in seen.near[0]


@pytest.mark.usefixtures("anywhere")
def test_a_subclass_is_taken_for_an_ordinary_tensor(look):
    given = tensors()
    wrapped = [TwoTensor(x, x.clone()) for x in given]
    seen = look(attend(sliding), *wrapped, passes=[windowed_attention])
    assert not seen.changes["windowed_attention"]
    assert "not an ordinary tensor" in seen.near[0]
    torch.testing.assert_close(seen.result.a, attend(sliding)(*given))


@pytest.mark.usefixtures("anywhere")
def test_two_dtypes_that_autocast_makes_one_are_handed_over(look):
    query, key, value = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = look(attend(sliding), query, key.bfloat16(), value, passes=[windowed_attention])
    assert not seen.changes["windowed_attention"]


def with_mask(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.usefixtures("anywhere")
def test_a_window_that_is_an_input_is_taken_for_a_constant(look):
    seen = look(with_mask, *tensors(), sliding(), passes=[windowed_attention])
    assert not seen.changes["windowed_attention"]


@pytest.mark.usefixtures("anywhere")
def test_a_window_of_a_symbolic_length_is_guessed(look):
    def attended(q, k, v):
        far = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(far >= 0) & (far < 3))

    seen = look(attended, *tensors(), passes=[windowed_attention], dynamic=True)
    assert not seen.changes["windowed_attention"]


REFUSED = {
    "on a CPU": ({"DEVICES": ("cuda",)}, {}, "it runs on cpu"),
    "in single precision": ({"DTYPES": (torch.bfloat16,)}, {}, "it is of torch.float32"),
    "with dropout": ({}, {"dropout_p": 0.5}, "drops elements"),
    "of heads that are no eights": ({"EIGHTS": 16}, {}, "its heads are 8 wide"),
    "of most blocks": ({"BLOCK": 4, "MOST": 0.7}, {}, "75% of the blocks"),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("changed", "keywords", "why"), REFUSED.values(), ids=REFUSED)
def test_a_window_is_taken(look, lift, changed, keywords, why):
    lift(windowed_attention, **changed)
    seen = look(attend(sliding, **keywords), *tensors(), passes=[windowed_attention])
    assert not seen.changes["windowed_attention"]
    assert "a window of 2 keys back and 0 ahead: " in seen.near[0]
    assert why in seen.near[0]


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_repeated_heads_are_kept(look, train):
    def attended(q, k, v):
        wide = (x[:, :, None].expand(2, 2, 2, S, 8).reshape(2, 4, S, 8) for x in (k, v))
        return F.scaled_dot_product_attention(q, *wide, attn_mask=sliding())

    given = tensors(heads=2, train=train)
    seen = look(attended, *given, passes=[windowed_attention])
    (node,) = seen.nodes("windowed_attention")
    assert [tuple(x.meta["example_value"].shape) for x in node.args[:3]] == [
        (2, 4, S, 8),
        (2, 2, S, 8),
        (2, 2, S, 8),
    ]
    assert not seen.calls("expand")
    torch.testing.assert_close(seen.result, attended(*given))


@pytest.mark.usefixtures("anywhere")
def test_groups_of_heads_are_missed(look):
    given = tensors(heads=2)
    call = attend(sliding, enable_gqa=True)
    seen = look(call, *given, passes=[windowed_attention])
    assert seen.changes["windowed_attention"] == 1
    torch.testing.assert_close(seen.result, call(*given))


@pytest.mark.usefixtures("anywhere")
def test_a_mask_is_computed_for_each_layer(look, monkeypatch):
    asked = []
    real = mask_kinds.constant_value
    monkeypatch.setattr(
        mask_kinds, "constant_value", lambda *a, **k: asked.append(1) or real(*a, **k)
    )

    def attended(q, k, v):
        mask, other = sliding(), OTHERS["chunks"]()
        for _ in range(3):
            q = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            q = F.scaled_dot_product_attention(q, k, v, attn_mask=other)
        return q * 2

    seen = look(attended, *tensors(), passes=[windowed_attention])
    assert seen.changes["windowed_attention"] == 3
    assert len(asked) == 2


@pytest.mark.usefixtures("anywhere")
def test_a_window_in_a_checkpoint_is_missed(look):
    def layer(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def attended(q, k, v):
        return checkpoint(layer, q, k, v, sliding(), use_reentrant=False)

    given = tensors(train=True)
    seen = look(attended, *given, passes=[windowed_attention])
    assert seen.changes["windowed_attention"] == 1
    torch.testing.assert_close(seen.result, attended(*given))


@pytest.mark.usefixtures("anywhere")
def test_the_last_row_is_looked_for_in_the_wrong_place(look):
    call = attend(sliding)
    given = tensors()
    seen = look(
        lambda *x: call(*x)[:, :, -1] * 2,
        *given,
        passes=[constant_masks, slice_pushdown, windowed_attention],
    )
    assert seen.changes == {"constant_masks": 0, "slice_pushdown": 1, "windowed_attention": 1}
    (node,) = seen.nodes("windowed_attention")
    assert node.args[0].meta["example_value"].shape[2] == 1
    torch.testing.assert_close(seen.result, call(*given)[:, :, -1] * 2)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_wrong_forward_or_backward(prove, codegen, dtype):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = torch.nn.Linear(32, 64, dtype=dtype)

        def forward(self, x):
            q, k, v = self.qkv(x).split((32, 16, 16), dim=-1)
            q = q.view(2, S, 4, 8).transpose(1, 2)
            k, v = (y.view(2, S, 2, 8).transpose(1, 2) for y in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=sliding(), enable_gqa=True)
            return y.transpose(1, 2).reshape(2, S, 32)

    torch.manual_seed(0)
    layer, x = Layer(), torch.randn(2, S, 32, dtype=dtype, requires_grad=True)
    changes = prove(Workload(layer, (x,)), passes=[windowed_attention], codegen=codegen)
    assert changes["windowed_attention"] == 1


LENGTHS = strategies.integers(min_value=1, max_value=40)
REACHES = strategies.integers(min_value=0, max_value=45)
AT_LEISURE = settings(deadline=None, suppress_health_check=list(HealthCheck))


@AT_LEISURE
@drawn(queries=LENGTHS, more=REACHES, left=REACHES, right=REACHES)
def test_a_window_is_read_as_another_one(queries, more, left, right):
    keys = queries + more
    mask = Window(left, right).seen(queries, keys, torch.device("cpu"))
    kind = kind_of(mask, queries, keys)
    if kind == "none":
        assert mask.all()
    elif kind == "causal":
        assert torch.equal(mask, torch.ones(queries, queries, dtype=torch.bool).tril())
    else:
        assert torch.equal(mask, kind.seen(queries, keys, torch.device("cpu")))


@AT_LEISURE
@drawn(
    queries=LENGTHS,
    more=REACHES,
    left=REACHES,
    right=REACHES,
    block=strategies.integers(min_value=1, max_value=9),
)
def test_blocks_are_miscounted(queries, more, left, right, block):
    window, keys = Window(left, right), queries + more
    mask = window.seen(queries, keys, torch.device("cpu"))
    tiles = [y for x in mask.split(block, 0) for y in x.split(block, 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "BLOCK", block)
        share = MODULE.blocks(window, queries, keys)
    assert share == sum(bool(x.any()) for x in tiles) / len(tiles)
