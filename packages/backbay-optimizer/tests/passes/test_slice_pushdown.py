"""Rows that are selected later are the only ones computed where that is the same, not elsewhere."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.kit.backend import Backend
from backbay.proof import Workload
from backbay_optimizer.passes.masks import constant_masks
from backbay_optimizer.passes.slice_pushdown import slice_pushdown

B, S, D, V = 2, 7, 8, 12


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return torch.randn(V, D), torch.randn(D, D), torch.randn(B, S, D)


def shapes(seen, name):
    return [tuple(x.meta["example_value"].shape) for x in seen.nodes(name)]


def rms(x):
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()


def block(x, w):
    x = x + F.gelu(F.linear(F.layer_norm(x, (D,)), w))
    return x + F.silu(F.linear(rms(x), w))


HEADS = {
    "last token": (lambda x, v, w: F.linear(x, v)[:, -1].float() * 1, 1),
    "last token, kept": (lambda x, v, w: F.linear(x, v)[:, -1:].softmax(-1), 1),
    "last two": (lambda x, v, w: F.linear(x, v)[:, -2:, :] * 2, 2),
    "class token": (lambda x, v, w: F.linear(F.layer_norm(x, (D,)), v)[:, 0].argmax(-1), 1),
    "every other": (lambda x, v, w: (x @ w)[:, ::2].sum(), 4),
    "a method": (lambda x, v, w: x.matmul(w).relu()[..., -1, :] + 1, 1),
    "softmax": (lambda x, v, w: F.linear(x, v).softmax(-1)[:, 3] * 2, 1),
    "a residual stream": (lambda x, v, w: F.linear(block(x, w), v)[:, -1] * 2, 1),
    "a cast and dropout": (
        lambda x, v, w: F.dropout(F.linear(x, v).double(), 0.1, training=False)[:, 2] * 2,
        1,
    ),
    "rows that are all kept before": (lambda x, v, w: F.linear(x[:, 0:], v)[:, -1] * 2, 1),
    "a selection of a selection": (lambda x, v, w: (x @ w)[:, 2:].relu()[:, 0:1].sum() * 2, 5),
    "a selection of a selection, at once": (lambda x, v, w: F.linear(x, v)[:1][:, -1] * 2, 7),
    "and of columns": (lambda x, v, w: (x @ w)[:, -1:][..., :5].sum() * 2, 1),
    "columns that are cut before": (
        lambda x, v, w: F.linear(rms(x)[..., :5], v[:, :5])[:, 1] * 2,
        1,
    ),
    "a table of positions": (lambda x, v, w: F.linear(x + w[:S], v)[:, -1] * 2, 1),
    "a gate of one row": (lambda x, v, w: (F.linear(x, w) * w[0])[:, -1] * 2, 1),
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("head", "rows"), HEADS.values(), ids=HEADS)
def test_rows_that_nobody_reads_are_computed(look, weights, head, rows, train):
    v, w, x = (y.clone().requires_grad_(train) for y in weights)
    seen = look(lambda x: head(x, v, w), x, passes=[slice_pushdown])
    assert seen.changes["slice_pushdown"] == 1
    products = shapes(seen, "linear") + shapes(seen, "matmul")
    assert products
    assert all(shape[1] == rows for shape in products), products
    torch.testing.assert_close(seen.result, head(x, v, w), rtol=1e-5, atol=1e-5)


def both(y, other):
    return y[:, -1] + other(y)


MIXED = {
    "attention along the rows": lambda x, v, w: F.linear(x, w).cumsum(1)[:, -1] * 2,
    "a sum over the rows": lambda x, v, w: F.linear(x, w).sum(1, keepdim=True)[:, -1] * 2,
    "softmax along the rows": lambda x, v, w: F.linear(x, w).softmax(1)[:, -1] * 2,
    "a column": lambda x, v, w: F.linear(x, w)[..., -1] * 2,
    "two different rows": lambda x, v, w: both(F.linear(x, w), lambda y: y[:, 0]),
    "all rows are read as well": lambda x, v, w: both(F.linear(x, w), torch.sum),
    "the largest of all rows": lambda x, v, w: torch.max(F.linear(x, w), dim=1)[0][-1] * 2,
    "the larger of all rows": lambda x, v, w: torch.amax(F.linear(x, w), 1, keepdim=True)[:, 0] * 2,
    "dropout": lambda x, v, w: F.dropout(F.linear(x, w), 0.5)[:, -1] * 0,
    "a custom function": lambda x, v, w: torch.special.entr(F.linear(x, w)).roll(1, 1)[:, -1] * 2,
    "a write": lambda x, v, w: F.linear(x, w).mul_(2)[:, -1] * 2,
    "a selection that is written": lambda x, v, w: F.linear(x, w)[:, -1].add_(1) * 2,
    "an index that the graph computes": lambda x, v, w: F.linear(x, w)[:, x[0, 0].argmax()] * 2,
    "all rows": lambda x, v, w: F.linear(x, w)[:, -S:] * 2,
    "only pointwise work": lambda x, v, w: (x.exp() + 1)[:, -1] * 2,
    "a joined dimension": lambda x, v, w: F.linear(x, w).reshape(-1, D)[-1] * 2,
}


@pytest.mark.parametrize("program", MIXED.values(), ids=MIXED)
def test_rows_that_somebody_reads_are_not_computed(look, weights, program):
    v, w, x = weights
    seen = look(lambda x: program(x, v, w), x, passes=[slice_pushdown])
    assert not seen.changes["slice_pushdown"]
    torch.testing.assert_close(seen.result, program(x, v, w))


def heads(x, w):
    return F.linear(x, w).view(B, S, 2, D // 2).transpose(1, 2).reshape(B, -1, S, D // 2)


def attending(x, v, w, **keywords):
    y = F.scaled_dot_product_attention(heads(x, w), heads(x, v[:D]), heads(x, w), **keywords)
    return F.linear(y.transpose(1, 2).reshape(B, S, D), w)


@pytest.mark.parametrize("causal", [False, True])
def test_a_last_block_attends_for_every_token(look, weights, causal):
    v, w, x = weights

    def program(x):
        y = x + attending(x, v, w, is_causal=causal)
        return F.linear(block(y, w), v)[:, -1] * 2

    seen = look(program, x, passes=[slice_pushdown])
    assert seen.changes["slice_pushdown"] == 1
    assert shapes(seen, "scaled_dot_product_attention") == [(B, 2, 1, D // 2)]
    rows = [shape[1] for shape in shapes(seen, "linear")]
    assert sorted(rows) == [1, 1, 1, 1, 1, S, S]  # but for keys and values
    torch.testing.assert_close(seen.result, program(x))


def test_a_causal_token_before_the_last_looks_too_far(look, weights):
    v, w, x = weights
    program = lambda x: attending(x, v, w, is_causal=True)[:, 3] * 2  # noqa: E731
    seen = look(program, x, passes=[slice_pushdown])
    assert shapes(seen, "scaled_dot_product_attention") == [(B, 2, S, D // 2)]
    torch.testing.assert_close(seen.result, program(x))


def test_a_mask_is_not_cut_with_its_queries(look, weights):
    v, w, x = weights
    torch.manual_seed(1)
    mask = torch.rand(B, 1, S, S) > 0.3
    program = lambda x, mask: attending(x, v, w, attn_mask=mask)[:, 2:4] * 2  # noqa: E731
    seen = look(program, x, mask, passes=[slice_pushdown])
    assert shapes(seen, "scaled_dot_product_attention") == [(B, 2, 2, D // 2)]
    torch.testing.assert_close(seen.result, program(x, mask))


def test_a_constant_mask_keeps_the_last_token_from_being_alone(look, weights):
    v, w, x = weights
    rows = torch.arange(S)

    def program(x):
        mask = torch.arange(S)[:, None] >= torch.arange(S)
        return attending(x, v, w, attn_mask=mask)[:, -1] * 2

    seen = look(program, x, passes=[constant_masks, slice_pushdown])
    assert rows.numel() == S
    assert shapes(seen, "scaled_dot_product_attention") == [(B, 2, 1, D // 2)]
    torch.testing.assert_close(seen.result, program(x))


LAID_OUT = {
    "the last token": lambda x, v: F.linear(x, v)[:, -1],
    "two tokens": lambda x, v: F.linear(x, v)[:, -2:],
    "every second token": lambda x, v: F.linear(x, v)[:, ::2],
    "the first sequence": lambda x, v: F.linear(x, v)[0],
    "transposed": lambda x, v: F.linear(x, v).transpose(0, 1)[-1],
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", LAID_OUT.values(), ids=LAID_OUT)
def test_what_the_caller_gets_is_laid_out_otherwise(weights, program, train, reports):
    v, _, x = (y.clone().requires_grad_(train) for y in weights)
    torch.compiler.reset()
    declared = {"passes": (slice_pushdown,), "codegen": "inductor"}
    backend = type("Cutting", (Backend,), declared)()
    result = torch.compile(program, backend=backend)(x, v)
    assert sum(report.changes for report in reports) == 1
    torch.testing.assert_close(result, program(x, v), rtol=1e-5, atol=1e-5, check_stride=True)
    if train:
        result.square().sum().backward()
        wanted = torch.autograd.grad(program(x, v).square().sum(), (x, v))
        torch.testing.assert_close((x.grad, v.grad), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("sequences", "copies"), [(B, 1), (1, 0)])
def test_each_sequence_is_a_product_of_its_own(look, weights, sequences, copies):
    v, _, x = weights
    seen = look(lambda x: F.linear(x, v)[:, -1] * 2, x[:sequences], passes=[slice_pushdown])
    (product,) = seen.nodes("linear")
    assert product.args[0].meta["example_value"].is_contiguous()
    assert seen.calls("contiguous") == copies


SHARED = {
    "two cuts of one value": lambda x, v: (y := F.linear(x, v)) is not None and (y[:, -1], y[:, 0]),
    "a cut and the whole": lambda x, v: (y := F.linear(x, v)) is not None and (y[:, -1], y),
    "repeated rows": lambda x, v: F.linear(x, v).unsqueeze(2).expand(B, S, 3, -1)[:, -1],
}


@pytest.mark.parametrize("program", SHARED.values(), ids=SHARED)
def test_memory_that_the_caller_may_share_is_made_anew(look, weights, program):
    v, _, x = weights
    seen = look(lambda x: program(x, v), x, passes=[slice_pushdown])
    assert not seen.changes["slice_pushdown"]
    torch.testing.assert_close(seen.result, program(x, v))


def test_one_sequence_is_laid_out_as_ever(look, weights):
    v, _, x = weights
    program = lambda x: F.linear(x, v)[:, -1]  # noqa: E731
    seen = look(program, x[:1], passes=[slice_pushdown])
    assert seen.changes["slice_pushdown"] == 1
    torch.testing.assert_close(seen.result, program(x[:1]), check_stride=False)


def test_sizes_that_are_symbols(look, weights):
    v, w, x = weights
    program = lambda x: F.linear(block(x, w), v)[:, -1] * 2  # noqa: E731
    seen = look(program, x, passes=[slice_pushdown], dynamic=True)
    assert seen.changes["slice_pushdown"] == 1
    assert all(shape[1] == 1 for shape in shapes(seen, "linear"))
    torch.testing.assert_close(seen.result, program(x))


def test_autocast_is_forgotten(look, weights):
    v, w, x = weights

    def program(x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(block(x, w), v)[:, -1] * 2

    seen = look(program, x, passes=[slice_pushdown])
    assert seen.changes["slice_pushdown"] == 1
    assert {n.meta["example_value"].dtype for n in seen.nodes("linear")} == {torch.bfloat16}
    assert seen.result.dtype == torch.bfloat16
    torch.testing.assert_close(seen.result, program(x))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(V, D), nn.LayerNorm(D)
        self.inner, self.head = nn.Linear(D, D), nn.Linear(D, V)

    def forward(self, ids):
        x = self.embedding(ids)
        x = x + F.gelu(self.inner(self.norm(x)))
        return self.head(self.norm(x))[:, -1].log_softmax(-1)


@pytest.mark.parametrize("codegen", ["eager", "aot_eager"])
def test_gradients_of_rows_that_are_left_out(prove, codegen):
    torch.manual_seed(0)
    workload = Workload(Last(), (torch.randint(0, V, (B, S)),))
    assert prove(workload, passes=[slice_pushdown], codegen=codegen)["slice_pushdown"] == 1


def cut_without_gradients(x, v, w):
    y = F.linear(x, v)
    with torch.no_grad():
        cut = y[:, -1:]
    return (cut * w[0, 0]).sum()


def cut_without_gradients_for_the_caller(x, v, w):
    y = F.linear(x, v)
    with torch.no_grad():
        cut = y[:, :1]
    return cut, w.sum()


@pytest.mark.parametrize("program", [cut_without_gradients, cut_without_gradients_for_the_caller])
def test_a_selection_that_no_gradient_passes_has_one(look, weights, program):
    v, w, x = weights
    given = [t.requires_grad_() for t in (x, v, w)]
    seen = look(program, *given, passes=[slice_pushdown])
    assert not seen.changes["slice_pushdown"]
    assert any("no gradient passes it" in near for near in seen.near)
    wanted = program(*given)
    torch.testing.assert_close(seen.result, wanted)
    sums = [x if isinstance(x, torch.Tensor) else x[1] for x in (seen.result, wanted)]
    gradients = [torch.autograd.grad(x, given, allow_unused=True) for x in sums]
    assert [x is None for x in gradients[0]] == [x is None for x in gradients[1]]
