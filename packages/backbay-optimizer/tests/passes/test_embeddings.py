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
    for name in ("small", "unfit_table"):
        monkeypatch.setattr(kernel, name, lambda *_: None)


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


def all_read(index, *tables):
    found = [F.embedding((index + i) % len(x), x, i - 1) for i, x in enumerate(tables)]
    return torch.cat(found, -1)


def read_one_by_one(index, *tables):
    total = F.embedding(index % len(tables[0]), tables[0]).sum(-1)
    for x in tables[1:]:
        total = total + F.embedding(index % len(x), x).sum(-1)
    return total


def cast_between(index, first, *others):
    found = F.embedding(index, first)
    with torch.autocast("cpu", torch.bfloat16):
        return torch.cat([found, *(F.embedding(index % len(x), x) for x in others)], -1)


def found_by_what_was_found(index, first, *others):
    found = F.embedding(index, first)
    at = found.detach().abs().sum(-1).long()
    return found.sum() + sum(F.embedding(at % len(x), x).sum() for x in others)


def tables_of_what_was_found(index, first, *others):
    found = F.embedding(index.flatten(), first)
    return torch.cat([F.embedding(index % len(x), x) for x in (found, *others)], -1)


SEVERAL = {  # and of how many calls they are
    "all read": (all_read, 1),
    "read one by one": (read_one_by_one, 3),
    "cast between": (cast_between, 2),
    "found by what was found": (found_by_what_was_found, 3),
    "found in what was found": (tables_of_what_was_found, 2),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_tables_are_not_put_together_or_differ(look, index, anywhere, name):
    program, calls = SEVERAL[name]
    tables = [torch.randn(n, WIDTH, requires_grad=True) for n in (WORDS, 7, 20)]
    wanted = program(index, *tables)
    seen = look(program, index, *tables, passes=[embeddings])
    assert seen.changes["embeddings"] == calls
    torch.testing.assert_close(seen.result, wanted)
    pair = (torch.autograd.grad(y.sum(), tables) for y in (seen.result, wanted))
    torch.testing.assert_close(*pair)


def tokens_are_written(table, index):
    index = index.clone()
    found = F.embedding(index, table)
    index.zero_()
    return torch.cat([found, F.embedding(index, table)], -1)


def a_table_is_written(table, index):
    table = table.clone()
    found = F.embedding(index, table)
    table.mul_(2)
    return torch.cat([found, F.embedding(index, table)], -1)


def the_first_of_three_is_written(table, index):
    first = table.clone()
    found = [F.embedding(index, first), F.embedding(index, table)]
    first.mul_(2)
    return torch.cat([*found, F.embedding(index, table)], -1)


@pytest.mark.parametrize(
    "program", [tokens_are_written, a_table_is_written, the_first_of_three_is_written]
)
def test_what_is_written_between_is_read_afterwards(look, table, index, anywhere, program):
    seen = look(program, table, index, passes=[embeddings])
    assert seen.changes["embeddings"] == 2
    torch.testing.assert_close(seen.result, program(table, index), rtol=0, atol=0)


def test_tables_of_another_width_or_dtype_are_put_together(look, index, anywhere):
    widths = (8, 4, 8, 4, 8)
    tables = [torch.randn(WORDS, n, requires_grad=True) for n in widths]
    tables[4] = tables[4].detach().bfloat16().requires_grad_()

    def program(*tables):
        return [F.embedding(index, x) for x in tables]

    seen = look(program, *tables, passes=[embeddings])
    assert seen.changes["embeddings"] == 3
    for found, wanted in zip(seen.result, program(*tables), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_a_table_that_is_read_twice_lacks_a_gradient(look, table, index, anywhere):
    def program(table):
        return F.embedding(index, table), F.embedding(index // 2, table), F.embedding(index, table)

    seen = look(program, table, passes=[embeddings])
    assert seen.changes["embeddings"] == 1
    for some in ([0], [1, 2], [0, 1, 2]):
        pair = (
            torch.autograd.grad(sum(y[i].sin().sum() for i in some), table, retain_graph=True)
            for y in (seen.result, program(table))
        )
        torch.testing.assert_close(*pair)


def test_a_table_that_no_gradient_reaches_gets_zeros(look, index, anywhere):
    tables = [torch.randn(WORDS, WIDTH, requires_grad=True) for _ in range(2)]

    def program(first, second):
        return F.embedding(index, first), F.embedding(index, second)

    seen = look(program, *tables, passes=[embeddings])
    assert seen.changes["embeddings"] == 1
    (seen.result[0].detach().sum() + seen.result[1].sin().sum()).backward()
    assert tables[0].grad is None
    (wanted,) = torch.autograd.grad(F.embedding(index, tables[1]).sin().sum(), tables[1])
    torch.testing.assert_close(tables[1].grad, wanted)


def test_large_tables_are_put_together(look, index, anywhere, monkeypatch):
    monkeypatch.setattr(kernel, "PAYS_FROM", WORDS * WIDTH)
    tables = [torch.randn(n, WIDTH, requires_grad=True) for n in (WORDS, 7, 20, 9)]
    seen = look(lambda *x: all_read(index, *x), *tables, passes=[embeddings])
    assert seen.changes["embeddings"] == 3


def test_more_tables_than_were_measured_are_put_together(look, index, anywhere, monkeypatch):
    monkeypatch.setattr(kernel, "MOST_TOGETHER", 2)
    tables = [torch.randn(WORDS, WIDTH, requires_grad=True) for _ in range(5)]
    seen = look(lambda *x: all_read(index, *x), *tables, passes=[embeddings])
    assert seen.changes["embeddings"] == 3


def test_small_tables_count_alone_or_for_each_reader(look, index, lift, monkeypatch):
    lift(embeddings, DEVICES=("cpu",))
    lift(embeddings, DTYPES=(torch.float32,))
    monkeypatch.setattr(kernel, "unfit_table", lambda *_: None)
    monkeypatch.setattr(kernel, "PAYS_FROM", 3 * WORDS * WIDTH)
    for count, changes in ((3, 1), (2, 0)):
        tables = [torch.randn(WORDS, WIDTH, requires_grad=True) for _ in range(count)]
        seen = look(lambda *x: all_read(index, *x), *tables, passes=[embeddings])
        assert seen.changes["embeddings"] == changes
    assert any("below" in x for x in seen.near)
    seen = look(lambda x, y: all_read(index, x, y, x), *tables, passes=[embeddings])
    assert seen.changes["embeddings"] == 0


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
