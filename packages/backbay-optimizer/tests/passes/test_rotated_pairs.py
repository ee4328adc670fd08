"""Queries and keys are normalised and turned at once where nothing keeps them apart."""

import pytest
import torch
from turned_heads import (
    D,
    H,
    given,
    heads,
    lift_all,
    normed,
    rms_norm,
    rotate_half,
    turned,
)

from backbay_optimizer.passes.rotated_heads import rotated_heads


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift_all(lift, monkeypatch)


def queries_and_keys(x, w, c, s):
    q, k = heads(x), heads(x[..., : 2 * D])
    q, k = rms_norm(q, w).transpose(1, 2), rms_norm(k, 2 * w).transpose(1, 2)
    return turned(q, c, s), turned(k, c, s)


def of_several_angles(x, w, c, s):
    q, k = queries_and_keys(x, w, c, s)
    return q, turned(normed(x, w), s, c), k


def of_layers(x, w, c, s):
    for _ in range(2):
        q, k = queries_and_keys(x, w, c, s)
        x = (q + k.mean(1, keepdim=True)).transpose(1, 2).flatten(2) @ torch.eye(H * D).to(q.dtype)
    return x


def read_before_keys_are_turned(x, w, c, s):
    q = turned(normed(x, w), c, s)
    y = q.transpose(1, 2).flatten(2) @ torch.eye(H * D).to(q.dtype)
    return q, turned(normed(y, w), c, s)


def of_several_offsets(x, w, c, s):
    q = turned(rms_norm(heads(x), w, 1.0).transpose(1, 2), c, s)
    return q, turned(normed(x, w), c, s)


def by_angles(of_keys):
    def program(x, w, c, s):
        q = turned(normed(x, w), c, s)
        return q, turned(normed(x, w), *of_keys(c, s))

    return program


def three(x, w, c, s):
    return *queries_and_keys(x, w, c, s), turned(normed(x, w), c, s)


def keys_is_written(x, w, c, s):
    v = w * 2
    q, k = (normed(x, y) for y in (w, v))
    k = turned(k, c, s)
    v.zero_()
    return turned(q, c, s), k


def first_is_written(x, w, c, s):
    v = w * 1
    q = turned(normed(x, v), c, s)
    v.zero_()
    return q, turned(normed(x, w), c, s)


def written_between_both(x, w, c, s):
    w = w * 1
    q = turned(normed(x, w), c, s)
    w.mul_(2)
    return q, turned(normed(x, w), c, s)


def of_views(x, w, c, s):
    def once(x, w):
        y = rms_norm(x, w).transpose(1, 2)
        return y * c.unsqueeze(1) + rotate_half(y) * s.unsqueeze(dim=1)

    return once(heads(x), w), once(heads(x[..., : 2 * D]), 2 * w)


def of_several_batches(x, w, c, s):
    q = turned(normed(x, w), c, s)
    return q, turned(rms_norm(heads(x[:1]), w).transpose(1, 2), c, s)


PAIRS = {
    "one layer's": (queries_and_keys, [2]),
    "turned by views of the same": (of_views, [2]),
    "those of layers": (of_layers, [2, 2]),
    "turned by others in between": (of_several_angles, [2, 1]),
    "one more than two": (three, [2, 1]),
    "turned by exchanged angles": (by_angles(lambda c, s: (s, c)), [1, 1]),
    "turned by other sines": (by_angles(lambda c, s: (c, c)), [1, 1]),
    "with the first's weight written in between": (first_is_written, [1, 1]),
    "with keys' weight written between their turns": (keys_is_written, [1, 1]),
    "read in between": (read_before_keys_are_turned, [1, 1]),
    "of several offsets": (of_several_offsets, [1, 1]),
    "with a weight that is written in between": (written_between_both, [1, 1]),
    "of several batches": (of_several_batches, [1, 1]),
}
"""With how many tensors each call is of."""


@pytest.mark.parametrize("name", PAIRS)
def test_queries_and_keys_are_apart_or_others_are_together(look, anywhere, name):
    program, calls = PAIRS[name]
    inputs = given()
    seen = look(program, *inputs, passes=[rotated_heads])
    operator = torch.ops.backbay.rotated_heads.default
    nodes = [n for g in seen.graphs for n in g.graph.nodes if n.target is operator]
    assert [len(n.args[0]) for n in nodes] == calls, seen.near
    wanted, found = program(*inputs), seen.result
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=4e-2)
    truth = program(*(t.double() for t in inputs))
    for x, y, z in zip(*map(torch.utils._pytree.tree_leaves, (found, wanted, truth)), strict=True):
        assert (x - z).norm() <= 1.05 * (y - z).norm()
        assert x.stride() == y.stride()
