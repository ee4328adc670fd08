"""An embedding becomes an operator whose gradient is ours; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import embedding as kernel
from backbay_optimizer.passes.embeddings import embeddings

WORDS, WIDTH = 12, 8


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift(embeddings, DEVICES=("cpu",))
    lift(embeddings, DTYPES=(torch.float32, torch.bfloat16))
    monkeypatch.setattr(kernel, "pays", lambda table, index: None)


@pytest.fixture
def table():
    torch.manual_seed(0)
    return torch.randn(WORDS, WIDTH, requires_grad=True)


@pytest.fixture
def index():
    torch.manual_seed(0)
    return torch.randint(WORDS, (3, 10))


SPELLINGS = {
    "a function": lambda table, index: F.embedding(index, table),
    "with padding": lambda table, index: F.embedding(index, table, 3),
    "with padding from the end": lambda table, index: F.embedding(index, table, padding_idx=-2),
    "whole": lambda table, index: F.embedding(
        index, table, None, None, scale_grad_by_freq=False, sparse=False
    ),
    "of every second token": lambda table, index: F.embedding(index[:, ::2], table),
    "read twice": lambda table, index: F.embedding(index, table) @ table.T,
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_left_or_differs(look, table, index, anywhere, name):
    program = SPELLINGS[name]
    wanted = program(table, index)
    seen = look(lambda x, y: program(x, y), table, index, passes=[embeddings])
    assert seen.changes["embeddings"] == 1
    torch.testing.assert_close(seen.result, wanted, rtol=0, atol=0)
    assert seen.result.stride() == wanted.stride()
    found, other = (torch.autograd.grad(y.sin().sum(), table)[0] for y in (seen.result, wanted))
    torch.testing.assert_close(found, other)


def test_a_table_whose_size_is_a_symbol_is_taken(look, table, index, anywhere):
    seen = look(SPELLINGS["a function"], table, index, passes=[embeddings], dynamic=True)
    assert not seen.changes["embeddings"]
    assert any("is a symbol" in x for x in seen.near), seen.near


def test_what_vmap_computes_beside_it_ends_compilation(look, table, index, anywhere):
    def program(table, index, scales):
        return torch.vmap(lambda scale: F.embedding(index, table) * scale)(scales)

    given = table, index, torch.arange(3.0)
    seen = look(program, *given, passes=[embeddings])
    assert seen.changes["embeddings"] == 1
    torch.testing.assert_close(seen.result, program(*given))


def test_a_batch_that_is_a_symbol_is_left(look, index, anywhere):
    model = nn.Embedding(WORDS, WIDTH)
    seen = look(model, index, passes=[embeddings], dynamic=True)
    assert seen.changes["embeddings"] == 1
    torch.testing.assert_close(seen.result, model(index))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_rewritten_model_is_further_from_the_truth(prove, index, anywhere, dtype):
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)).to(dtype)
    work = Workload(model=model, args=(index,), loss=lambda y: y.float().square().sum())
    assert prove(work, passes=[embeddings])["embeddings"] == 1


LEFT = {
    "of a table that is frozen": (lambda w, i: F.embedding(i, w.detach()), "no gradient"),
    "cut to a norm": (lambda w, i: F.embedding(i, w.clone(), max_norm=1.0), "cut to a norm"),
    "cut to nothing": (lambda w, i: F.embedding(i, w.clone(), max_norm=0.0), "cut to a norm"),
    "sparse": (lambda w, i: F.embedding(i, w, sparse=True), "sparse"),
    "scaled by how often": (lambda w, i: F.embedding(i, w, scale_grad_by_freq=True), "scaled"),
    "of another dtype": (lambda w, i: F.embedding(i, w.half()), "float16"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernels_cannot_take_is_replaced(look, table, index, anywhere, name):
    program, why = LEFT[name]
    seen = look(program, table, index, passes=[embeddings])
    assert not seen.changes["embeddings"]
    assert any(why in x for x in seen.near), seen.near


def test_sums_in_any_order_are_taken_for_the_same_bits(look, table, index, anywhere):
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 (torch's)
    try:
        seen = look(SPELLINGS["a function"], table, index, passes=[embeddings])
    finally:
        torch.use_deterministic_algorithms(False)  # noqa: FBT003
    assert not seen.changes["embeddings"]
    assert any("same bits" in x for x in seen.near)


def test_what_does_not_pay_is_replaced(look, table, index, lift, monkeypatch):
    lift(embeddings, DEVICES=("cpu",))
    lift(embeddings, DTYPES=(torch.float32,))
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    seen = look(SPELLINGS["a function"], table, index, passes=[embeddings])
    assert not seen.changes["embeddings"]
    assert any("on cpu" in x for x in seen.near)
