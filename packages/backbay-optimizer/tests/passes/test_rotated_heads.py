"""Heads are normalised and turned by one operator, and nothing else is."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels import rotated_heads as kernel
from backbay_optimizer.passes.rotated_heads import rotated_heads

B, T, H, D = 2, 6, 3, 16
HALF = D // 2


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift(rotated_heads, DEVICES=("cpu",))
    monkeypatch.setattr(kernel, "pays", lambda *_: None)


# 1. One tensor of heads


def normal(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def given(dtype=torch.bfloat16, batch=1, tokens=T, heads=H):
    angles = normal(batch, tokens, D, dtype=torch.float32, seed=3)
    return (
        normal(B, tokens, heads * D, dtype=dtype),
        normal(D, dtype=dtype, seed=1),
        angles.cos().to(dtype),
        angles.sin().to(dtype),
    )


def rms_norm(x, weight, offset=0.0):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    if offset:
        return (wide * (offset + weight.float())).type_as(x)
    return weight * wide.to(x.dtype)


def rotate_half(x):
    return torch.cat((-x[..., HALF:], x[..., :HALF]), dim=-1)


def turned(x, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return x * cos + rotate_half(x) * sin


def heads(x):
    return x.view(*x.shape[:2], -1, D)


def by_chunks(x, w, cos, sin):
    x = rms_norm(heads(x), w).transpose(1, 2)
    first, second = x.chunk(2, dim=-1)
    return cos[0] * x + torch.cat((-second, first), dim=-1) * sin[0]


TURNED = {
    "as Qwen3's": lambda x, w, c, s: turned(rms_norm(heads(x), w).transpose(1, 2), c, s),
    "as Gemma 3's": lambda x, w, c, s: turned(rms_norm(heads(x).transpose(1, 2), w, 1.0), c, s),
    "by a function": lambda x, w, c, s: turned(
        F.rms_norm(heads(x), (D,), w, 1e-6).transpose(-2, -3), c, s
    ),
    "by chunks, without a batch": by_chunks,
}


@pytest.mark.parametrize("name", TURNED)
@pytest.mark.parametrize(
    "sizes",
    [{}, {"batch": B}, {"heads": 1}, {"tokens": 1}, {"tokens": 1, "heads": 1}],
    ids=str,
)
def test_heads_are_left_or_differ(look, anywhere, name, sizes):
    program, inputs = TURNED[name], given(**sizes)
    seen = look(lambda *x: program(*x), *inputs, passes=[rotated_heads])
    assert seen.changes["rotated_heads"] == 1, seen.near
    wanted = program(*inputs)
    assert seen.result.stride() == wanted.stride()
    truth = program(*(t.double() for t in inputs))
    assert (seen.result - truth).norm() <= (wanted - truth).norm()
    assert not [n for g in seen.graphs for n in g.graph.nodes if n.target is torch.cat]


def test_another_number_of_tokens_is_compiled_again(look, anywhere):
    inputs = given()
    for x in (inputs[0], *inputs[2:]):
        torch._dynamo.mark_dynamic(x, 1)

    def program(x, w, c, s):
        return turned(rms_norm(x.view(B, -1, H, D), w).transpose(1, 2), c, s)

    seen = look(program, *inputs, passes=[rotated_heads])
    assert seen.changes["rotated_heads"] == 1, seen.near
    torch.testing.assert_close(seen.result, program(*inputs), rtol=2e-2, atol=2e-2)


def read_by_others(x, w, c, s):
    y = rms_norm(heads(x), w).transpose(1, 2)
    return turned(y, c, s) + y[..., :1]


def half_is_read(x, w, c, s):
    y = rms_norm(heads(x), w).transpose(1, 2)
    first = y[..., :HALF]
    return y * c[0] + torch.cat((-y[..., HALF:], first), -1) * s[0], first


def the_other_way(x, w, c, s):
    y = rms_norm(heads(x), w).transpose(1, 2)
    return y * c[0] + torch.cat((y[..., HALF:], -y[..., :HALF]), -1) * s[0]


def halves_in_place(x, w, c, s):
    y = rms_norm(heads(x), w).transpose(1, 2)
    return y * c[0] + torch.cat((-y[..., :HALF], y[..., HALF:]), -1) * s[0]


def a_quarter(x, w, c, s):
    y = rms_norm(heads(x), w).transpose(1, 2)
    return y * c[0] + torch.cat((-y[..., 4:], y[..., :4]), -1) * s[0]


def written_between(x, w, c, s):
    w = w * 1
    y = rms_norm(heads(x), w).transpose(1, 2)
    w.zero_()
    return turned(y, c, s)


def angles_of_heads(x, w, c, s):
    y = rms_norm(heads(x), w).transpose(1, 2)
    return y * c[:, :H, None] + rotate_half(y) * s[:, :H, None]


LEFT = {
    "read by others": (read_by_others, None),
    "of which a half is read": (half_is_read, "something else reads"),
    "turned the other way": (the_other_way, None),
    "whose halves stay": (halves_in_place, None),
    "joined of unequal parts": (a_quarter, None),
    "whose weight is written between": (written_between, "may write"),
    "turned by angles of heads": (angles_of_heads, "not those of tokens"),
    "of what is pointwise": (
        lambda x, w, c, s: TURNED["as Qwen3's"](x.sin(), w, c, s),
        "computed with it",
    ),
    "turned by wider angles": (
        lambda x, w, c, s: TURNED["as Qwen3's"](x, w, c.float(), s.float()),
        "of several dtypes",
    ),
    "of rows with gaps": (
        lambda x, w, c, s: turned(rms_norm(x.view(B, T, D, H).mT, w).transpose(1, 2), c, s),
        "side by side",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernel_cannot_take_is_replaced(look, anywhere, name):
    program, why = LEFT[name]
    inputs = given()
    seen = look(lambda *x: program(*x), *inputs, passes=[rotated_heads])
    assert not seen.changes["rotated_heads"]
    assert why is None or any(why in x for x in seen.near), seen.near


def test_a_gradient_is_lost(look, anywhere):
    x, *others = given()
    seen = look(TURNED["as Qwen3's"], x.requires_grad_(), *others, passes=[rotated_heads])
    assert "a gradient is wanted" in seen.near


# 2. Queries and keys


def queries_and_keys(x, w, c, s):
    q, k = heads(x), heads(x[..., : 2 * D] * 1)
    q, k = rms_norm(q, w).transpose(1, 2), rms_norm(k, 2 * w).transpose(1, 2)
    return turned(q, c, s), turned(k, c, s)


def of_several_angles(x, w, c, s):
    q, k = queries_and_keys(x, w, c, s)
    return q, turned(rms_norm(heads(x), w).transpose(1, 2), s, c), k


def of_layers(x, w, c, s):
    for _ in range(2):
        q, k = queries_and_keys(x, w, c, s)
        x = (q + k.mean(1, keepdim=True)).transpose(1, 2).flatten(2) @ torch.eye(H * D).to(q.dtype)
    return x


def read_before_keys_are_turned(x, w, c, s):
    q = turned(rms_norm(heads(x), w).transpose(1, 2), c, s)
    y = q.transpose(1, 2).flatten(2) @ torch.eye(H * D).to(q.dtype)
    return q, turned(rms_norm(heads(y), w).transpose(1, 2), c, s)


def of_several_offsets(x, w, c, s):
    q = turned(rms_norm(heads(x), w, 1.0).transpose(1, 2), c, s)
    return q, turned(rms_norm(heads(x), w).transpose(1, 2), c, s)


def written_between_both(x, w, c, s):
    w = w * 1
    q = turned(rms_norm(heads(x), w).transpose(1, 2), c, s)
    w.mul_(2)
    return q, turned(rms_norm(heads(x), w).transpose(1, 2), c, s)


def of_several_batches(x, w, c, s):
    q = turned(rms_norm(heads(x), w).transpose(1, 2), c, s)
    return q, turned(rms_norm(heads(x[:1]), w).transpose(1, 2), c, s)


PAIRS = {
    "one layer's": (queries_and_keys, 1),
    "those of layers": (of_layers, 2),
    "turned by others in between": (of_several_angles, 2),
    "read in between": (read_before_keys_are_turned, 2),
    "of several offsets": (of_several_offsets, 2),
    "with a weight that is written in between": (written_between_both, 2),
    "of several batches": (of_several_batches, 2),
}


@pytest.mark.parametrize("name", PAIRS)
def test_queries_and_keys_are_apart_or_others_are_together(look, anywhere, name):
    program, calls = PAIRS[name]
    inputs = given()
    seen = look(program, *inputs, passes=[rotated_heads])
    assert seen.changes["rotated_heads"] == calls, seen.near
    wanted, found = program(*inputs), seen.result
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=4e-2)
    truth = program(*(t.double() for t in inputs))
    for x, y, z in zip(*map(torch.utils._pytree.tree_leaves, (found, wanted, truth)), strict=True):
        assert (x - z).norm() <= 1.05 * (y - z).norm()
        assert x.stride() == y.stride()
