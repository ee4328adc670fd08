"""The comparison rule, one bug at a time."""

import math

import pytest
import torch

from backbay.proof import Noise, compare
from backbay.proof.noise import moderated, noise_of
from backbay.proof.oracle import _first, _unravel


@pytest.fixture
def truth():
    return torch.randn(32, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def eager(truth):
    return truth.float() * (1 + 1e-7)


def test_right_result_passes(truth, eager):
    verdict = compare(truth.float(), eager, truth, name="output")
    assert verdict.passed
    assert verdict.where == "output"
    assert verdict.severity <= 1
    assert verdict.ratio < 1
    assert verdict.ulps <= 0.5
    verdict.raise_if_wrong()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda x: x * 1.001, "error"),
        (lambda x: x + 1e-4, "error"),
        (lambda x: x.bfloat16().float(), "error"),
        (lambda x: x.roll(1, -1), "error"),
        (lambda x: x[:-1], "shape is (31, 48), and eager's is (32, 48)"),
        (lambda x: x.double(), "dtype is torch.float64, and eager's is torch.float32"),
        (lambda x: x.t().contiguous().t(), "strides are (1, 32), and eager's are (48, 1)"),
        (lambda x: x.clone().fill_(torch.nan), "1536 of 1536 elements are infinite or NaN"),
    ],
)
def test_wrong_result_fails_with_its_reason(truth, eager, fault, reason):
    verdict = compare(fault(truth.float()), eager, truth)
    assert not verdict.passed
    assert reason in verdict.reason
    assert verdict.severity > 1
    with pytest.raises(AssertionError, match="tensor: "):
        verdict.raise_if_wrong()


def test_one_wrong_element_is_found_where_it_is(truth, eager):
    result = truth.float()
    result[5, 7] += 0.01
    verdict = compare(result, eager, truth)
    assert not verdict.passed
    assert verdict.index == (5, 7)
    assert verdict.worst == pytest.approx(0.01, rel=1e-3)


def test_an_element_below_the_truth_is_found_where_it_is(truth, eager):
    result = truth.float()
    result[5, 7] -= 0.01
    result[2, 3] += 0.001
    verdict = compare(result, eager, truth)
    assert verdict.index == (5, 7)
    assert verdict.worst == pytest.approx(0.01, rel=1e-4)


def test_an_element_may_be_as_wrong_as_eager_s_own(truth, eager):
    off = eager.clone()
    off[5, 7] += 1e-4
    noise = noise_of(eager, truth)  # which knows nothing of that element
    assert not compare(off, eager, truth, noise=noise).passed
    assert compare(off, off, truth, noise=noise).severity < compare(off, eager, truth).severity / 5


def test_signs_of_the_truth_are_no_part_of_its_size():
    truth = torch.tensor([1.0, -1.0] * 64, dtype=torch.float64)
    result = truth.float()
    result[3] = torch.nextafter(result[3], result.new_tensor(0.0))
    exact = noise_of(truth.float(), truth)
    assert compare(result, truth.float(), truth, noise=exact).passed


def test_scale_below_every_single_element_s_noise_is_caught_in_bfloat16():
    truth = torch.randn(256, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    eager = truth.bfloat16()
    assert compare((truth * 1.00001).bfloat16(), eager, truth).passed
    assert not compare((truth * 1.01).bfloat16(), eager, truth).passed


@pytest.mark.parametrize("wrong", [0.0, torch.inf, -torch.inf])
def test_flushed_nan_fails(truth, eager, wrong):
    truth, eager = truth.clone(), eager.clone()
    truth[0, 0] = eager[0, 0] = torch.nan
    assert compare(eager.clone(), eager, truth).passed
    result = eager.clone()
    result[0, 0] = wrong
    verdict = compare(result, eager, truth)
    assert not verdict.passed
    assert verdict.index == (0, 0)
    assert math.isinf(verdict.severity)


def test_sign_of_infinity_counts(truth, eager):
    truth, eager = truth.clone(), eager.clone()
    truth[1, 1] = eager[1, 1] = torch.inf
    result = eager.clone()
    result[1, 1] = -torch.inf
    assert not compare(result, eager, truth).passed


def test_finite_result_is_right_where_only_eager_overflowed(truth, eager):
    eager, result = eager.clone(), truth.float()
    eager[2, 2] = torch.inf
    assert compare(result, eager, truth).passed
    result[2, 2] = 100.0
    assert not compare(result, eager, truth).passed


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_integers_are_equal_or_wrong(dtype):
    eager = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    assert compare(eager.clone(), eager, eager).passed
    result = eager.clone()
    result[1, 0] = 0
    verdict = compare(result, eager, eager)
    assert not verdict.passed
    assert verdict.index == (1, 0)


def test_complex_imaginary_part_counts():
    truth = torch.randn(64, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    eager = truth.to(torch.complex64)
    assert compare(eager.clone(), eager, truth).passed
    assert not compare(eager.conj().resolve_conj(), eager, truth).passed


def test_empty_tensors_agree_and_their_shapes_count():
    empty = torch.empty(0, 3)
    assert compare(empty, empty, empty.double()).passed
    assert not compare(torch.empty(3, 0), empty, empty.double()).passed


def test_strides_of_one_element_dimensions_and_expanded_tensors_are_free():
    eager = torch.zeros(1, 4)
    assert compare(torch.zeros(4, 1).t(), eager, eager.double()).passed
    expanded = torch.zeros(1, 1).expand(4, 4)
    assert compare(torch.zeros(4, 4), expanded, expanded.double()).passed


def test_strides_can_be_left_out(truth, eager):
    result = truth.float().t().contiguous().t()
    assert compare(result, eager, truth, strides=False).passed


@pytest.mark.parametrize(
    ("eager", "truth", "working", "message"),
    [
        (torch.zeros(3), torch.zeros(4).double(), None, "shape"),
        (torch.zeros(3), torch.zeros(3), None, "must be torch.float64"),
        (torch.zeros(3, dtype=torch.complex64), torch.zeros(3).double(), None, "complex128"),
        (torch.zeros(3), torch.zeros(3).double(), torch.int32, "floating-point"),
    ],
)
def test_arguments_that_make_no_verdict_raise(eager, truth, working, message):
    with pytest.raises(ValueError, match=message):
        compare(torch.zeros(3), eager, truth, working=working)


def test_working_precision_is_not_the_result_s_own():
    truth = torch.ones(4096, dtype=torch.float64)
    eager = truth.float() * 1.002
    result = truth.float() * 0.998
    assert compare(result, eager, truth, working=torch.bfloat16).passed


def test_lucky_eager_scalar_does_not_reject_a_unit_in_the_last_place():
    truth = torch.tensor(1.0, dtype=torch.float64)
    result = torch.tensor(1.0 + 3e-7)
    assert compare(result, truth.float(), truth).passed
    assert not compare(torch.tensor(1.0 + 1e-4), truth.float(), truth).passed


def test_zero_truth_and_exact_eager_leave_no_allowance():
    zero = torch.zeros(8)
    assert compare(zero, zero, zero.double()).passed
    verdict = compare(zero + 1e-9, zero, zero.double())
    assert not verdict.passed
    assert math.isinf(verdict.ratio)


def test_flipped_choices_do_not_hide_a_wrong_scale():
    truth = torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    flipped = truth.float()
    flipped[::100] = 0.0
    noise = noise_of(flipped, truth)
    assert compare(flipped.roll(100), flipped, truth, noise=noise).passed is False
    other = truth.float()
    other[3::100] = 0.0
    assert compare(other, truth.float(), truth, noise=noise).passed
    assert not compare(truth.float() * 1.001, truth.float(), truth, noise=noise).passed


def test_noise_of_few_elements_borrows_from_the_others():
    many = Noise(rms=1e-3, peak=4e-3, mean=1e-5, along=1e-5, middle=7e-4, size=1.0, elements=10_000)
    lucky = Noise(rms=0.0, peak=0.0, mean=0.0, along=0.0, middle=0.0, size=2.0, elements=1)
    after = moderated({"weight": many, "loss": lucky})
    assert after["loss"].rms == pytest.approx(2e-3, rel=0.1)
    assert after["weight"].rms == pytest.approx(1e-3, rel=0.01)


def test_positions_are_counted_in_rows():
    assert _unravel(17, torch.Size((3, 4, 5))) == (0, 3, 2)
    assert _first(torch.tensor([[False, False], [True, True]])) == (1, 0)
    assert _unravel(0, torch.Size(())) == ()
