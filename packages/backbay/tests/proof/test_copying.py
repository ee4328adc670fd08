"""Copies of inputs lie in memory as the original does."""

import math

import pytest
import torch

from backbay.errors import ProofImpossible
from backbay.proof import Step, Workload, compare, make_golden
from backbay.proof.bank import elsewhere, varied
from backbay.proof.copying import copied, copied_together

MEMORY = torch.arange(400.0)
SHAPES = {
    "offset": MEMORY[7:19],
    "gaps": MEMORY.as_strided((3, 4), (40, 3), 5),
    "transposed": MEMORY[:12].view(3, 4).t(),
    "expanded": MEMORY[3:7].expand(5, 4),
    "empty": MEMORY[3:3],
    "scalar": MEMORY[9],
    "bfloat16": MEMORY.bfloat16().as_strided((2, 2), (7, 3), 1),
    "integers": MEMORY.long()[4::5],
    "conjugate": torch.complex(MEMORY, MEMORY)[2::3].conj(),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_copy_closes_gaps_or_shares_memory(name):
    value = SHAPES[name]
    found = copied(value)
    assert torch.equal(found, value)
    assert found.dtype == value.dtype
    assert not found._is_view()
    assert (
        found.untyped_storage().data_ptr() != value.untyped_storage().data_ptr() or name == "empty"
    )
    if name != "conjugate":
        assert found.stride() == value.stride()


def test_a_twin_of_another_dtype_closes_gaps():
    value = SHAPES["gaps"]
    found = copied(value, torch.float64)
    assert (found.dtype, found.stride(), found.storage_offset()) == (torch.float64, (40, 3), 5)
    assert torch.equal(found, value.double())


def test_what_lies_beside_a_tensor_is_lost():
    """as_strided reads there."""
    found = copied(MEMORY[7:19:2])
    assert torch.equal(found.as_strided((400,), (1,), 0), MEMORY)


def test_a_slice_brings_its_data_set_along():
    large = torch.ones(1 << 18)
    found = copied(large[1 << 17 :: 1 << 16])
    assert torch.equal(found, torch.ones(2))
    assert not found.as_strided((1 << 17,), (1,), 0).any()


def test_training_runs_on_an_input_without_its_gaps():
    value = MEMORY.as_strided((3, 4), (40, 3), 5)
    seen = []

    class Model(torch.nn.Module):
        def forward(self, x):
            seen.append((x.stride(), x.storage_offset()))
            return x.sin()

    make_golden(Workload(Model(), (value,)), train=True)
    assert set(seen) == {((40, 3), 5)}


def test_an_input_that_needs_no_gradient_is_given_one():
    one, other = torch.ones(3, requires_grad=True), torch.ones(3)
    workload = Workload(torch.nn.Identity(), (one, other), grad_as_given=True)
    given = [x.requires_grad for _, x in Step(workload, train=True).inputs]
    assert given == [True, False]


@pytest.mark.parametrize("function", [lambda x: x.unsafe_chunk(2), lambda x: torch.kron(x, x)])
def test_noise_is_written_into_an_input(function):
    """Some operators give their argument's memory without being views."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    golden = make_golden(Workload(Model(), (torch.randn(4, 5),)), train=True)
    assert golden.eager.changed == {}


def test_a_proof_of_whole_numbers_misses_a_wrong_one():
    class Model(torch.nn.Module):
        def forward(self, x):
            return x * 3

    workload = Workload(Model(), (torch.arange(5),))
    golden = make_golden(workload, train=False)
    assert golden.judge(golden.eager).passed
    wrong = {"output": torch.arange(5) * 3 + 1}
    outcome = type(golden.eager)(**{**vars(golden.eager), "tensors": wrong})
    assert not golden.judge(outcome).passed


def test_an_exact_result_that_begins_with_infinity_cannot_be_compared():
    value = torch.tensor([math.inf, 0.0, 1.0])
    assert compare(value, value, value.double()).passed


def test_a_kernel_that_is_wrong_under_a_dispatch_mode_is_the_reference():
    """Torch's pinv of a complex matrix, issue 198118."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.pinv(x)

    x = torch.randn(4, 4, dtype=torch.complex64)
    with pytest.raises(ProofImpossible, match="eager gives something else where a dispatch mode"):
        make_golden(Workload(Model(), (x,)), train=False)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_result_cannot_be_proven(layout):
    dense = torch.eye(4) * 3

    class Model(torch.nn.Module):
        def forward(self, x):
            return (x * 2).to_sparse(layout=layout)

    golden = make_golden(Workload(Model(), (dense,)), train=False)
    assert golden.judge(golden.eager).passed
    wrong = {"output": (dense * 2.01).to_sparse(layout=layout)}
    outcome = type(golden.eager)(**{**vars(golden.eager), "tensors": wrong})
    assert not golden.judge(outcome).passed


def test_what_is_expanded_keeps_others_from_having_other_values():
    expanded, dense = torch.randn(8, 1).expand(8, 16), torch.randn(8, 16)
    workload = Workload(torch.nn.Bilinear(16, 16, 4), (expanded, dense))
    other = varied(workload, 1, integers=True)
    assert torch.equal(other.args[0], expanded)
    assert other.args[0].stride() == expanded.stride()
    assert not torch.equal(other.args[1], dense)


def test_inputs_that_are_partly_the_same_memory_are_copied_apart():
    memory = torch.arange(1 << 16).float()
    one, other, apart, half = memory[5001:5009], memory[5005:5013], memory[:7], memory[20:28].half()
    found = copied_together([one, other, apart, half, one])
    assert found.keys() == {id(one), id(other)}
    for value in (one, other):
        assert torch.equal(found[id(value)], value)
        assert found[id(value)].untyped_storage().nbytes() < 1 << 10
        assert (found[id(value)].data_ptr() - memory.data_ptr()) % 64 == 5001 * 4 % 64 + (
            0 if value is one else 16
        )
    found[id(one)].zero_()
    assert found[id(other)].tolist() == [0, 0, 0, 0, 5009, 5010, 5011, 5012]
    assert one.sum() > 0


def test_inputs_that_share_memory_are_given_values_that_they_cannot_both_have():
    memory = torch.randn(12)
    workload = Workload(lambda a, b, c: a + b, (memory[:8], memory[4:], torch.randn(4)))
    for other in (elsewhere(workload), varied(workload, 1, integers=True)):
        a, b, _ = other.args
        assert torch.equal(a, memory[:8])
        assert a[4:].data_ptr() == b.data_ptr()
        assert a.data_ptr() != memory.data_ptr()
    assert not torch.equal(varied(workload, 1, integers=True).args[2], workload.args[2])
