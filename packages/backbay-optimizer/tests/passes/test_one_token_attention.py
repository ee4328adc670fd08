"""One query attends to keys that are not repeated, where that is the same, and not elsewhere."""

import sys

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.passes.one_token_attention import one_token_attention

B, HEADS, SHARED, S, D = 2, 6, 2, 7, 8


@pytest.fixture
def anywhere(lift, monkeypatch):
    """Let the pass rewrite on the CPU, in single precision too, and few heads."""
    module = sys.modules["backbay_optimizer.passes.one_token_attention"]
    lift(one_token_attention, DEVICES=("cpu",))
    lift(one_token_attention, DTYPES=(torch.float32, torch.bfloat16))
    monkeypatch.setattr(module, "BLOCKS", B * SHARED)


def tensors(*, queries=1, dtype=torch.float32, train=False, batch=B):
    """Return query (B, 6, 1, 8), key and value (B, 2, 7, 8), and where the cache ends."""
    torch.manual_seed(0)
    shapes = (batch, HEADS, queries, D), (batch, SHARED, S, D), (batch, SHARED, S, D)
    made = [torch.randn(x, dtype=dtype).requires_grad_(train) for x in shapes]
    return *made, torch.tensor(4)


def repeated(x):
    batch, heads, length, width = x.shape
    times = HEADS // heads
    wide = x[:, :, None].expand(batch, heads, times, length, width)
    return wide.reshape(batch, heads * times, length, width)


def hidden(position):
    return (torch.arange(S) <= position)[None, None, None]


def step(q, k, v, position, **keywords):
    return F.scaled_dot_product_attention(
        q, repeated(k), repeated(v), attn_mask=hidden(position), **keywords
    )


STEPS = {
    "a mask of positions": step,
    "two dimensions": lambda q, k, v, p: F.scaled_dot_product_attention(
        q, repeated(k), repeated(v), attn_mask=hidden(p)[0, 0]
    ),
    "for each sequence": lambda q, k, v, p: F.scaled_dot_product_attention(
        q,
        repeated(k),
        repeated(v),
        attn_mask=hidden(p) & (torch.arange(B) >= 0)[:, None, None, None],
    ),
    "minus infinity": lambda q, k, v, p: F.scaled_dot_product_attention(
        q, repeated(k), repeated(v), attn_mask=torch.zeros(S).masked_fill(~hidden(p), -torch.inf)
    ),
    "a cache that is written before": lambda *x: written_before(*x),
    "a scale": lambda q, k, v, p: step(q, k, v, p, scale=0.3),
    "interleaved": lambda q, k, v, p: F.scaled_dot_product_attention(
        q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), attn_mask=hidden(p)
    ),
    "groups by name": lambda q, k, v, p: F.scaled_dot_product_attention(
        q, k, v, attn_mask=hidden(p), enable_gqa=True
    ),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("attend", STEPS.values(), ids=STEPS)
def test_keys_are_repeated_for_one_query(look, attend):
    seen = look(attend, *tensors(), passes=[one_token_attention])
    assert seen.changes["one_token_attention"] == 1
    (node,) = seen.nodes("scaled_dot_product_attention")
    shapes = [tuple(x.meta["example_value"].shape) for x in node.args[:3]]
    assert shapes == [(B, SHARED, HEADS // SHARED, D), (B, SHARED, S, D), (B, SHARED, S, D)]
    assert not seen.calls("expand") + seen.calls("repeat_interleave")
    assert seen.result.shape == (B, HEADS, 1, D)
    torch.testing.assert_close(seen.result, attend(*tensors()))


def written_after(q, k, v, position):
    wide = repeated(k), repeated(v)
    k.mul_(0.5)
    return F.scaled_dot_product_attention(q, *wide, attn_mask=hidden(position))


def written_before(q, k, v, position):
    k[:, :, 3].mul_(0.5)
    return step(q, k, v, position)


def per_head(q, k, v, position):
    mask = torch.arange(S) <= position - torch.arange(HEADS)[:, None, None] % 3
    return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask[None])


def for_each(q, k, v, p):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden(p), enable_gqa=True)


OTHERS = {
    "values of fewer heads": (lambda q, k, v, p: for_each(q, k, v[:, :1], p), {}, "other heads"),
    "keys of fewer heads": (lambda q, k, v, p: for_each(q, k[:, :1], v, p), {"batch": 4}, "other"),
    "a query for all": (lambda q, k, v, p: for_each(q[:1], k, v, p), {}, "another batch"),
    "two queries": (step, {"queries": 2}, None),
    "no mask": (
        lambda q, k, v, p: F.scaled_dot_product_attention(q, repeated(k), repeated(v)),
        {},
        None,
    ),
    "groups of one": (
        lambda q, k, v, p: F.scaled_dot_product_attention(
            q[:, :2], k, v, attn_mask=hidden(p), enable_gqa=True
        ),
        {},
        None,
    ),
    "a cache that is written after it was repeated": (written_after, {}, None),
    "tiled": (
        lambda q, k, v, p: F.scaled_dot_product_attention(
            q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1), attn_mask=hidden(p)
        ),
        {},
        None,
    ),
    "a mask that tells heads apart": (per_head, {}, "tells heads apart"),
    "a gradient": (step, {"train": True}, "gradient"),
    "dropout": (lambda *x: step(*x, dropout_p=0.5).isfinite(), {}, "drops elements"),
    "few heads": (step, {"batch": 1}, "2 heads of keys leave multiprocessors idle"),
    "double precision": (step, {"dtype": torch.float64}, "it is of torch.float64"),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("attend", "how", "why"), OTHERS.values(), ids=OTHERS)
def test_another_attention_is_taken_for_a_step(look, attend, how, why):
    seen = look(attend, *tensors(**how), passes=[one_token_attention])
    assert not seen.changes["one_token_attention"]
    assert why is None or why in seen.near[0]
    torch.testing.assert_close(seen.result, attend(*tensors(**how)))


def test_it_fires_on_a_processor(look):
    seen = look(step, *tensors(dtype=torch.bfloat16), passes=[one_token_attention])
    assert "it runs on cpu" in seen.near[0]


class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(HEADS * D, HEADS * D), torch.nn.Linear(D, D)

    def forward(self, x, k, v, position):
        q = self.inner(x).view(B, 1, HEADS, D).transpose(1, 2)
        return self.outer(step(q, k, v, position).transpose(1, 2)).reshape(B, 1, HEADS * D)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("codegen", ["aot_eager", "inductor"])
def test_a_step_is_wrong(prove, dtype, codegen):
    torch.manual_seed(0)
    _, k, v, position = tensors(dtype=dtype)
    workload = Workload(
        Step().to(dtype).eval(), (torch.randn(B, 1, HEADS * D, dtype=dtype), k, v, position)
    )
    found = prove(workload, passes=[one_token_attention], codegen=codegen, train=False)
    assert found["one_token_attention"] == 1
