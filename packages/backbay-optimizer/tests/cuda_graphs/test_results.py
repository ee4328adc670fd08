"""What the caller gets of a recording: layout and sharing as recorded, in memory of its own."""

import pytest
import torch

from backbay_optimizer.cuda_graphs import results as results_module
from backbay_optimizer.cuda_graphs.results import NotCopied, Results


def memory(tensors):
    """Return where each tensor's memory is, as the first tensor that is there."""
    owners = memory_of(tensors)
    return [owners.index(x) for x in owners]


def memory_of(tensors):
    return [x.untyped_storage().data_ptr() for x in tensors]


def assert_alike(made, recorded):
    assert memory(made) == memory(recorded)
    for one, other in zip(made, recorded, strict=True):
        assert one.dtype == other.dtype
        assert (one.shape, one.stride()) == (other.shape, other.stride())
        assert one.storage_offset() == other.storage_offset()
        assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes()
        assert torch.equal(one, other)


def test_results_are_laid_out_otherwise():
    base, alone = torch.randn(6, 8), torch.randn(4, 5)
    recorded = [
        base,
        base[2:],
        base.t(),
        base.view(torch.int32),
        alone.t(),
        torch.randn(4, 8)[:, 3],  # a part of its memory
        torch.randn(4, 6, 3)[:, -1],
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3).double(),
        torch.ones(5, dtype=torch.bool),
        torch.tensor(2.0),
    ]
    results = Results(recorded, [])
    for _ in range(2):
        base.add_(1)
        made = results.make([])
        assert_alike(made, recorded)
        assert not set(memory_of(made)) & set(memory_of(recorded))


def test_a_result_twice_is_two():
    one = torch.randn(3)
    made = Results([one, one, None, 7], []).make([])
    assert made[0] is made[1]
    assert made[2:] == [None, 7]


def test_an_input_is_copied():
    buffer, parameter = torch.randn(4, 6), torch.randn(6)
    recorded = [buffer, buffer[1:], parameter, parameter[2:]]
    x = torch.randn(5, 6)[1:]
    made = Results(recorded, [buffer, parameter]).make([x, parameter])
    assert made[0] is x
    assert made[2] is parameter
    assert torch.equal(made[1], x[1:])
    assert made[1].data_ptr() == x[1:].data_ptr()
    assert made[3].data_ptr() == parameter[2:].data_ptr()


def test_a_view_of_an_input_begins_where_that_did_in_its_own_memory():
    recorded, own = torch.randn(8)[2:6], torch.randn(9)[3:7]
    (made,) = Results([recorded[1:]], [recorded]).make([own])
    assert made.data_ptr() == own[1:].data_ptr()
    assert torch.equal(made, own[1:])


def test_nothing_is_something():
    recorded = [torch.empty(0, 3), torch.empty(3, 0).t(), torch.empty(0)]
    assert_shapes(Results(recorded, []).make([]), recorded)
    expanded = [torch.empty(0, 1).expand(0, 3)]
    assert_shapes(Results(expanded, []).make([]), expanded)
    empty = torch.empty(0, dtype=torch.int32)
    assert_shapes(Results(recorded, [empty]).make([empty]), recorded)


def test_two_results_of_one_storage_are_apart():
    base = torch.randn(6)
    recorded = [base[:4], base[2:]]
    assert_alike(Results(recorded, []).make([]), recorded)


def assert_shapes(made, recorded):
    assert [(x.shape, x.stride()) for x in made] == [(x.shape, x.stride()) for x in recorded]


def test_inference_mode_makes_ordinary_tensors():
    results = Results([torch.randn(3), torch.randn(4, 4)[:, 1]], [])
    with torch.inference_mode():
        assert all(x.is_inference() for x in results.make([]))
    assert not any(x.is_inference() for x in results.make([]))


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3).expand(2, 3),
        torch.eye(2).to_sparse(),
        torch.nn.Parameter(torch.ones(2)),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
    ],
    ids=["expanded", "sparse", "a subclass", "conjugated", "negated"],
)
def test_what_can_not_be_made_again_is_made(value):
    with pytest.raises(NotCopied):
        Results([value], [])


def test_an_input_of_another_type_is_made():
    x = torch.randn(4)
    with pytest.raises(NotCopied):
        Results([x.view(torch.int32)], [x])


def test_what_is_saved_is_copied_or_known_to_nobody():
    x, weight = torch.randn(3), torch.randn(3)
    activation, other, returned = torch.randn(4, 2), torch.randn(6), torch.randn(5)
    recorded = [returned, x, activation, activation.t(), weight, other[2:], returned, 7, weight[1:]]
    results = Results(recorded, [x, weight], saved=7)
    recorded.clear()  # as code's own variables are when it has run
    own = torch.randn(3)
    made = results.make([own, weight])
    assert made[1] is own
    assert made[4] is weight
    assert made[7] == 7
    assert made[8].data_ptr() == weight[1:].data_ptr()
    assert made[6] is made[0]  # saved and returned: one tensor, and the caller's
    assert made[0].data_ptr() != returned.data_ptr()
    assert [x.data_ptr() for x in made[2:4]] == [activation.data_ptr()] * 2
    assert made[5].data_ptr() == other[2:].data_ptr()
    assert results.kept.addresses == {activation.data_ptr(), other[2:].data_ptr()}
    assert made[2]._version == 0
    made[2].add_(1)
    assert results.make([own, weight])[2]._version == 0


def test_who_has_what_was_saved_is_not_seen():
    results = Results([torch.randn(4, 2), torch.randn(3)], [], saved=1)
    assert not results.kept.is_alive()
    shown, saved = results.make([])
    assert results.kept.is_alive()
    view = saved[1:]
    del saved
    assert results.kept.is_alive()
    del view
    assert not results.kept.is_alive()
    kept = results.make([])[1].untyped_storage()  # its Python object is the one that is held
    assert not results.kept.is_alive()
    assert kept.nbytes() == 12
    assert shown.shape == (4, 2)


def test_a_gradient_is_left_in_memory_of_the_forward():
    forward = Results([torch.randn(4)], [], saved=1)
    (saved,) = forward.make([])
    given = [saved, torch.randn(4)]
    backward = Results([given[0], given[0][1:], given[1]], given, ours=[0])
    forward.kept.share(backward.sources)
    given.clear()
    del saved
    assert not forward.kept.is_alive()  # but for what the backward reads from
    mine = torch.randn(4)
    made = backward.make([forward.make([])[0], mine])
    assert made[2] is mine
    assert made[0].data_ptr() not in forward.kept.addresses
    assert made[1].untyped_storage().data_ptr() == made[0].untyped_storage().data_ptr()
    del made
    assert not forward.kept.is_alive()


def test_a_view_that_is_saved_is_taken_for_something_that_is_alive():
    with torch.no_grad():  # as compiled code runs: a view has what it is one of there, too
        results = Results([torch.randn(4, 2).t()], [], saved=1)
        assert not results.kept.is_alive()
        made = results.make([])
    assert results.kept.is_alive()
    del made
    assert not results.kept.is_alive()


def test_a_constant_of_the_code_is_taken_for_something_that_is_alive():
    constant = torch.randn(3)  # which the code has, too
    results = Results([constant], [], saved=1)
    assert not results.kept.is_alive()
    made = results.make([])
    assert results.kept.is_alive()
    assert torch.equal(made[0], constant)


def test_who_has_the_very_tensor_that_a_backward_reads_is_not_seen():
    forward = Results([torch.randn(4)], [], saved=1)
    (saved,) = forward.make([])
    backward = Results([saved], [saved], ours=[0])
    forward.kept.share(backward.sources)
    assert forward.kept.is_alive()
    del saved
    assert not forward.kept.is_alive()


def test_a_result_with_holes_has_all_copied_one_by_one(monkeypatch):
    counted, copy_all = [], results_module.copy_all
    monkeypatch.setattr(
        results_module, "copy_all", lambda *x: counted.append(len(x[0])) or copy_all(*x)
    )
    recorded = [torch.randn(3, 4), torch.randn(3, 8)[:, :4], torch.randn(5)]
    assert_alike(Results(recorded, []).make([]), recorded)
    assert sorted(counted) == [1, 2]


@pytest.mark.parametrize("current", [0, 1])
def test_a_result_is_made_on_another_device_than_its_own(monkeypatch, current):
    recorded, made = [torch.randn(3, 4).t(), torch.randn(5)], []
    quick = results_module._EMPTY["cpu"]
    monkeypatch.setitem(results_module._EMPTY, "cpu", lambda *x: made.append(x) or quick(*x))
    results = Results(recorded, [])
    results._device = 1
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    assert_alike(results.make([]), recorded)
    assert len(made) == (2 if current == 1 else 0)
