"""What a foreign engine gave, as a caller gets it: values, strides, and memory of its own."""

import numpy as np
import pytest
import torch
from numpy_engine import Numpy, engine

from backbay import compile_log
from backbay.kit.exchange import aligned, as_tensor, laid_out, overlapping, shared_array

aten = torch.ops.aten


def test_results_have_eagers_strides():
    def turned(x):
        return (x * 2).t(), (x + 1).t().contiguous().t()

    x = torch.randn(4, 6)
    for made, wanted in zip(torch.compile(turned, backend=engine())(x), turned(x), strict=True):
        torch.testing.assert_close(made, wanted)
        assert made.stride() == wanted.stride()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dense", [False, True])
def test_inputs_are_handed_over_as_the_program_says(dense, dynamic):
    class Strided(Numpy):
        dense_inputs = dense

        def build(self, program):
            run = super().build(program)

            def checked(*tensors):
                said = [tuple(map(int, x.stride())) for x in program.inputs]
                assert [x.stride() for x in tensors] == said
                assert all(x.is_contiguous() for x in tensors) is dense
                return run(*tensors)

            return checked

    def turned(x, y):
        return (x.t() * 2, x + y)

    call = torch.compile(turned, backend=Strided(), dynamic=dynamic)
    for size in (4, 6):
        given = torch.randn(size, 3).t(), torch.randn(3, 1).expand(3, size)
        for made, wanted in zip(call(*given), turned(*given), strict=True):
            torch.testing.assert_close(made, wanted)
            assert made.stride() == wanted.stride()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_views_that_are_returned_are_copies_of_the_engines(dynamic):
    def viewing(x):
        n, wide = x.shape[0], x * 2
        return x[n // 2 :], x.narrow(0, n - 2, 2).t(), wide, *wide.split([2, 4], 1), wide.t() + 1

    backend = engine(supports=None)
    call = torch.compile(viewing, backend=backend, dynamic=dynamic)
    for rows in (6, 9):
        x = torch.randn(rows, 6)
        made, wanted = call(x), viewing(x)
        torch.testing.assert_close(made, wanted)
        assert [y.storage_offset() for y in made] == [y.storage_offset() for y in wanted]
        assert made[0].data_ptr() == x[rows // 2].data_ptr()
        assert made[4].untyped_storage().data_ptr() == made[2].untyped_storage().data_ptr()
    assert all(x.owned == x.nodes for x in compile_log.records())
    run = {n.target for p in backend.programs for n in p.graph_module.graph.nodes}
    assert run >= {aten.mul.Tensor, aten.add.Tensor, aten.permute.default}


def test_what_is_returned_is_kept_when_the_engine_writes_over_its_own():
    class Reusing(Numpy):
        shares_results = True

        def build(self, program):
            run, own = super().build(program), {}

            def reused(*tensors):
                made = run(*tensors)
                for number, one in enumerate(made):
                    np.copyto(own.setdefault(number, one), one)
                return [own[number] for number in range(len(made))]

            return reused

    call = torch.compile(lambda x: x * 2, backend=Reusing())
    first = call(torch.ones(3))
    call(torch.zeros(3))
    assert first.tolist() == [2.0] * 3


def test_results_share_no_memory_with_inputs_or_each_other():
    class Passing(Numpy):
        supports = None

        def build(self, program):
            return lambda x: [x, x]

    call = torch.compile(lambda x: (x.clone(), x.clone() * 1), backend=Passing())
    x = torch.ones(4)
    first, second = call(x)
    assert len({y.data_ptr() for y in (x, first, second)}) == 3


def test_a_result_lies_in_a_part_of_an_input():
    class Slicing(Numpy):
        supports = None

        def build(self, program):
            return lambda x: [x[1:]]

    call, x = torch.compile(lambda x: x[1:].clone(), backend=Slicing()), torch.arange(4.0)
    made = call(x)
    made.zero_()
    assert x.tolist() == [0, 1, 2, 3]


def test_memory_that_overlaps_is_missed_or_seen_where_there_is_none():
    whole = torch.zeros(40)
    grid = whole.view(8, 5)
    given = [whole[10:20], whole[15:17], whole[:0]]
    made = [whole[20:30], whole[16:], whole[9:11], whole[29:31], whole[:10], grid[6:, 1:3]]
    assert overlapping(given, made) == {1, 2, 3}
    assert overlapping([grid[:2, 1:3]], [whole[7:8], whole[8:9], whole[0:1]]) == {0}
    assert overlapping([], [whole, whole, torch.empty(0), torch.empty(0)]) == {1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros(4, np.float32), r"gave shape \[4\] where the graph has \[3\]"),
        (np.zeros(3), r"gave torch.float64 where the graph has torch.float32"),
    ],
)
def test_another_shape_or_dtype_is_taken(given, said):
    class Strange(Numpy):
        def build(self, program):
            return lambda *tensors: [given]

    with pytest.raises(Exception, match=said):
        torch.compile(lambda x: x * 2, backend=Strange())(torch.ones(3))


def test_a_wrong_number_of_results_is_an_error():
    class Short(Numpy):
        def build(self, program):
            return lambda *tensors: []

    with pytest.raises(Exception, match="gave 0 results where the graph has 1"):
        torch.compile(lambda x: x * 2, backend=Short())(torch.ones(3))


def test_bfloat16_goes_through_an_array_and_back():
    x = torch.randn(3, 4).bfloat16()
    assert torch.equal(as_tensor(shared_array(x), torch.bfloat16), x)
    with pytest.raises(TypeError, match=r"gave torch\.float64 where the graph has torch\.float32"):
        as_tensor(np.zeros(2), torch.float32)


def test_a_part_of_a_tensor_is_copied_to_where_a_runtime_wants_it():
    whole = torch.arange(40.0)
    for part in (whole[3:], whole.view(5, 8).t()):
        made = aligned(part)
        assert torch.equal(made, part)
        assert made.is_contiguous()
        assert made.data_ptr() % 64 == 0
    assert aligned(whole).data_ptr() == whole.data_ptr()


def test_a_layout_with_expanded_dimensions_is_made():
    x = torch.randn(1, 4).expand(3, 4)
    made = laid_out(x.contiguous(), x.stride())
    assert made.stride() == x.stride() == (0, 1)
    assert torch.equal(made, x)
