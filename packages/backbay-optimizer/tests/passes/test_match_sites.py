"""Passes whose gain depends on shapes ask at each match site, and leave alone what does not pay."""

import sys

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.testing._internal.two_tensor import TwoTensor

from backbay.graph.region import between, inputs_of, taken_out
from backbay.kit.passes import PassContext
from backbay_optimizer.backend import backbay
from backbay_optimizer.passes.match_sites import MatchSites

N = 8


def channels_last(*shape):
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def convolution():
    x, weight = torch.randn(1, 128, 2, 2), torch.randn(128, 128, 3, 3)
    return lambda x, w: F.conv2d(x + 1, w, padding=1).sin(), (x, weight)


def patches():
    inputs = torch.randn(1, 3, 8, 8), torch.randn(5, 3, 4, 4)
    return lambda x, w: F.conv2d(x + 1, w, stride=4).sin(), inputs


def normed():
    def program(x, w, z, *norm):
        y = F.batch_norm(F.conv2d(x * 2, w), *norm, training=False)
        y += z
        return F.relu(y, inplace=True).sum()

    numbers = [torch.rand(N) + 0.5 for _ in range(4)]
    return program, (channels_last(2, N, 4, 4), channels_last(N, N, 1, 1), z_of(2), *numbers)


def z_of(batch):
    return channels_last(batch, N, 4, 4)


def linear():
    def program(x, w, b):
        y = torch.addmm(b, x.view(-1, N), w).view(*x.shape[:-1], N)
        return F.gelu(y, approximate="tanh") @ w

    return program, (torch.randn(2, 3, N), torch.randn(N, N), torch.randn(N))


def row():
    def program(x, w, b):
        return F.linear(x + 1, w, b) * 2

    return program, (torch.randn(1, N), torch.randn(N, N), torch.randn(N))


def token():
    def repeated(x):
        return x[:, :, None].expand(2, 2, 3, 5, N).reshape(2, 6, 5, N)

    def program(q, k, v, keep):
        return F.scaled_dot_product_attention(q, repeated(k + 1), repeated(v), attn_mask=keep) + 1

    key, value = torch.randn(2, 2, 2, 5, N)
    return program, (torch.randn(2, 6, 1, N), key, value, torch.ones(1, 1, 1, 5) > 0)


def written_out():
    def program(q, k, v, bias):
        scores = torch.matmul(q + 1, k.transpose(2, 3)) * 0.5 + bias
        return torch.matmul(F.softmax(scores, dim=-1), v) + 1

    return program, (*torch.randn(3, 2, 2, 3, N), torch.randn(3, 3))


SITES = {
    "eager_convolutions": (convolution, 1),
    "space_to_depth": (patches, 1),
    "fused_attention": (written_out, 5),
    "fused_convolutions": (normed, 4),
    "linear_epilogues": (linear, 3),
    "one_row_linears": (row, 1),
    "one_token_attention": (token, 7),
}
"""Rewrites, to a program with one site, and how many calls it has."""
REWRITES = {x.name: x for x in backbay.passes}


@pytest.fixture
def _anywhere(lift):
    """Let passes for CUDA rewrite on the CPU, in single precision, and what is small."""
    changed = {"BLOCKS": 1, "FEWEST_BLOCKS": {"inference": 1}, "RESULTS_OF_PATCHES": 0}
    changed |= dict.fromkeys(("LAUNCH", "FOLDING"), -(2**20))
    for name in SITES:
        known = changed.keys() & vars(sys.modules[f"backbay_optimizer.passes.{name}"]).keys()
        constants = {x: changed[x] for x in known}
        lift(REWRITES[name], DEVICES=("cpu",), DTYPES=(torch.float32,), **constants)


@pytest.mark.usefixtures("_anywhere")
@pytest.mark.parametrize("name", SITES)
def test_a_site_alone_is_another_than_in_its_graph(look, name):
    rewrite, (made, calls) = REWRITES[name], SITES[name]
    program, inputs = made()
    sites = MatchSites(keep=True)
    with torch.no_grad(), sites.asked():
        assert look(program, *inputs, passes=[rewrite]).changes[name] == 1
    (site,) = sites.found.values()
    assert site.rewrite == name
    assert site.name.partition("@")[0] == name
    assert sum(n.op.startswith("call") for n in site.region.graph.nodes) == calls
    with torch.no_grad():
        assert rewrite.run(site.region, PassContext()) == 1

    off = MatchSites([site.name])
    with torch.no_grad(), off.asked():
        seen = look(program, *inputs, passes=[rewrite])
    assert not seen.changes.total()
    assert seen.near == ["it was timed here, and is slower than what Inductor makes of it"]
    with torch.no_grad(), MatchSites([f"{name}@elsewhere"]).asked():
        assert look(program, *inputs, passes=[rewrite]).changes[name] == 1


@pytest.mark.usefixtures("_anywhere")
def test_a_rule_over_a_whole_graph_refuses_a_site_that_is_timed(look, monkeypatch):
    program, inputs = normed()
    sites = MatchSites(keep=True)
    with torch.no_grad(), sites.asked():
        look(program, *inputs, passes=[REWRITES["fused_convolutions"]])
    (site,) = sites.found.values()
    monkeypatch.setattr(
        sys.modules["backbay_optimizer.passes.fused_convolutions"], "FOLDING", 2**30
    )
    with torch.no_grad():
        assert REWRITES["fused_convolutions"].run(site.region, PassContext()) == 0
        assert REWRITES["fused_convolutions"].run(site.region, PassContext(alone=True)) == 1


def test_a_part_of_a_graph_has_other_inputs_and_results():
    def program(x, y):
        a = x + 1
        b = a * y
        c = b - a
        return b, c.sin()

    whole = torch.fx.symbolic_trace(program)
    x, y, a, b, c, _, _ = whole.graph.nodes
    part = taken_out([c, b])
    assert [n.name for n in part.graph.nodes if n.op == "placeholder"] == [a.name, y.name]
    given = torch.tensor(3.0), torch.tensor(5.0)
    assert [v.item() for v in part(*given)] == [15, 12]
    assert between(c, {a}) == [b, c]
    assert between(c, {b}) == [a, c]
    assert between(c, {x, y}) == between(c, ()) == [a, b, c]


@pytest.mark.usefixtures("_anywhere")
@pytest.mark.parametrize("name", SITES)
def test_a_subclass_is_taken_for_an_ordinary_tensor(look, name):
    program, inputs = SITES[name][0]()
    wrapped = [TwoTensor(x.clone(), x.clone()) if x.is_floating_point() else x for x in inputs]
    with torch.no_grad():
        seen = look(program, *wrapped, passes=[REWRITES[name]])
        expected = program(*inputs)
    assert not seen.changes[name]
    torch.testing.assert_close(seen.result.a, expected)


def test_a_part_gives_what_nobody_asked_for():
    whole = torch.fx.symbolic_trace(lambda x, y: ((x + 1) * y).sin())
    x, y, a, b, _, _ = whole.graph.nodes
    assert inputs_of([b, a]) == [x, y]
    assert [v.item() for v in taken_out([a, b], [b, a])(torch.tensor(3.0), torch.tensor(5.0))] == [
        20,
        4,
    ]
