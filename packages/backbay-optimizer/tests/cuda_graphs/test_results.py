"""What the caller gets of a recording: layout and sharing as recorded, in memory of its own."""

import pytest
import torch

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


def test_nothing_is_something():
    recorded = [torch.empty(0, 3), torch.empty(3, 0).t(), torch.empty(0)]
    assert_shapes(Results(recorded, []).make([]), recorded)
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
    [torch.randn(3).expand(2, 3), torch.eye(2).to_sparse(), torch.nn.Parameter(torch.ones(2))],
    ids=["expanded", "sparse", "a subclass"],
)
def test_what_can_not_be_made_again_is_made(value):
    with pytest.raises(NotCopied):
        Results([value], [])


def test_an_input_of_another_type_is_made():
    x = torch.randn(4)
    with pytest.raises(NotCopied):
        Results([x.view(torch.int32)], [x])
