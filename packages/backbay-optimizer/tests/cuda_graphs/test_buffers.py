"""Memory that inputs are copied into: laid out as they are, with few copies."""

import pytest
import torch

from backbay_optimizer.cuda_graphs import buffers
from backbay_optimizer.cuda_graphs.buffers import Buffers, NotCopied
from backbay_optimizer.cuda_graphs.replayable import unusual


def filled(inputs):
    made = Buffers(inputs, range(len(inputs)))
    assert made.fit(inputs)
    made.fill(inputs)
    return made


def assert_alike(made, inputs):
    for i, x in enumerate(inputs):
        one = made.made[i]
        assert (one.shape, one.stride(), one.dtype) == (x.shape, x.stride(), x.dtype)
        assert torch.equal(one, x)
        assert one.data_ptr() != x.data_ptr() or not x.numel()


def copies(monkeypatch):
    """Count launches, as a device has them."""
    counted, copy_all = [], buffers.copy_all
    monkeypatch.setattr(buffers, "copy_all", lambda *x: counted.append(len(x[0])) or copy_all(*x))
    return counted


def test_inputs_are_laid_out_otherwise(monkeypatch):
    counted = copies(monkeypatch)
    inputs = [
        torch.randn(3, 4),
        torch.randn(5, 4).t(),
        torch.randn(4, 6)[:, ::2],
        torch.randint(0, 9, (7,)),
        torch.empty(0, 3),
        torch.tensor(2.0),
    ]
    assert_alike(filled(inputs), inputs)
    assert sorted(counted) == [1, 1, 4]  # what has holes is not with the others


def test_large_ones_are_copied_with_the_others_or_not_at_all(monkeypatch):
    inputs = [torch.randn(4, 4), torch.randn(3), torch.randn(8, 4), torch.randn(5)]
    together, foreach = [], torch._foreach_copy_
    monkeypatch.setattr(
        torch, "_foreach_copy_", lambda *x: together.append(len(x[0])) or foreach(*x)
    )
    for least, counts in ((1 << 25, [4]), (65, [3]), (64, [2]), (12, [])):
        monkeypatch.setattr(buffers, "ALONE_FROM", least)
        together.clear()
        assert_alike(filled(inputs), inputs)
        assert together == counts


@pytest.mark.parametrize(
    "other", [torch.randn(4, 4).t(), torch.randn(4, 5)], ids=["turned", "large"]
)
def test_what_is_laid_out_otherwise_fits(other):
    assert not filled([torch.randn(4, 4)]).fit([other])


def test_columns_of_one_table_are_copied_one_by_one(monkeypatch):
    counted = copies(monkeypatch)
    table = torch.randint(0, 100, (8, 26))
    inputs = [table[:, i] for i in range(26)]
    made = filled(inputs)
    assert_alike(made, inputs)
    assert not counted
    others = [torch.randint(0, 100, (8, 26))[:, i] for i in range(26)]
    assert not made.fit(others)  # they are not of one table
    assert not made.fit([*inputs[:-1], inputs[0]])
    assert not made.fit(list(reversed(inputs)))
    larger = torch.randint(0, 100, (9, 26))[1:]
    inputs = [larger[:, i] for i in range(26)]
    assert made.fit(inputs)
    made.fill(inputs)
    assert_alike(made, inputs)


def test_where_views_begin_is_moved():
    flat = torch.arange(64, dtype=torch.float32)
    inputs = [flat[1:9], flat[3:17], flat.view(torch.int32)[8:12]]
    made = filled(inputs)
    assert_alike(made, inputs)
    for i, x in enumerate(inputs):
        assert (made.made[i].data_ptr() - x.data_ptr()) % buffers.ALIGNMENT == 0
    made.made[0].zero_()
    assert made.made[1][0] == 0  # they share memory, as the inputs do


def test_all_of_a_large_memory_is_copied_for_two_of_its_ends(monkeypatch):
    counted = copies(monkeypatch)
    memory = torch.randn(1000)
    inputs = [memory[:3], memory[-3:]]
    assert_alike(filled(inputs), inputs)
    assert counted == [2]


def test_an_expanded_input_is_copied():
    with pytest.raises(NotCopied, match="expanded"):
        Buffers([torch.randn(3).expand(2, 3)], [0])
    memory = torch.randn(100)
    with pytest.raises(NotCopied, match="expanded"):
        Buffers([memory[:1].expand(3), memory[-1:]], [0, 1])


def test_two_memories_at_a_distance_are_one():
    memory = bytearray(64)
    apart = [torch.frombuffer(memory, dtype=torch.float32, count=4, offset=x) for x in (0, 16)]
    whole = torch.arange(8, dtype=torch.float32)
    made = Buffers([whole[:4], whole[4:]], [0, 1])
    assert made.fit([whole[:4], whole[4:]])
    assert not made.fit(apart)


@pytest.mark.parametrize("lazily", [torch.conj, lambda x: x.conj().imag])
def test_a_conjugate_is_copied_as_what_it_is_of(lazily):
    x = torch.randn(2, 3, dtype=torch.complex64)
    plain = [x, x.clone()] if lazily is torch.conj else [x.real, x.imag]
    made = filled(plain)
    assert not made.fit([plain[0], lazily(x)])
    assert "conjugated or negated" in unusual([lazily(x)], 0)
