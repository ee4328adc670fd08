"""Is a tensor right? The comparison rule of every proof, as pure functions on tensors.

A result is held against float64 truth and against eager's own error, never against a tolerance
chosen for a model: a result may be as wrong as honest arithmetic in the working precision makes
it, and no more. Five tests must all hold: of each element; of all together; of the middle one,
which a few flipped choices do not move; and of what honest errors average out and faults do not,
the mean and the scale.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from backbay.proof.noise import Noise, along, dense, middle, noise_of, rms

ELEMENT = 8.0
"""One element's error may be this many times the noise: out of 1e9 normal draws, none is."""
PEAK = 2.0
"""...or this many times the largest error seen in any draw, where errors have heavy tails."""
RMS = 2.0
"""The root-mean-square error may be this many times the noise's, and so may the middle one."""
FEW = 4.0
"""...and by so much more for one element, falling as 1/sqrt(n) like the scatter of an rms."""
MEAN = 3.0
"""The mean error, and the error of scale, may be this many times the noise's."""
CHANCE = 4.0
"""A mean of n independent errors may be this many times their rms / sqrt(n)."""
FLOOR, FLOOR_IN_FULL = 0.25, 2.0
"""Noise is never taken to be below this many epsilons of the truth's mean size."""
MEAN_ELEMENTS = 64
"""Fewer elements than this say nothing about their mean that the other tests do not."""


FULL_PRECISION = 1e-5
"""A working precision whose epsilon is below this is full (float32, float64)."""
GENEROUS_UNTIL = 3e-5
"""Between honest float32 noise (some 1e-7 of a tensor's size) and the smallest fault that counts
(1e-4) there is room, and honest kernels differ by more than a last bit: some of eager's CPU kernels
add up in float64 where others add in float32. So bounds are up to ``MOST_SLACK`` times as wide,
until noise is this share of the size. Where it is larger (TF32, deep models) they are strict."""
LEAST_SLACK, MOST_SLACK = 2.0, 16.0


Kind = Literal["value", "metadata", "mutation", "gradient"]
"""What a comparison was of: numbers; shape, dtype, layout, sharing of memory, structure; what the
run changed; or gradients, and whether there are any."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one comparison, with its reason."""

    passed: bool
    reason: str
    """One sentence: why it failed, or what it passed."""
    kind: Kind = "value"
    where: str | None = None
    """Which tensor, for example ``output.logits`` or ``gradient of layers.0.weight``."""
    worst: float | None = None
    """Largest absolute difference from the truth."""
    index: tuple[int, ...] | None = None
    """Where in the tensor that is, or the first difference where there is no distance."""
    ulps: float | None = None
    """The largest difference in units in the last place of the working dtype, at that element."""
    ratio: float | None = None
    """Root-mean-square error over eager's own; infinite where only eager is exact."""
    severity: float = 0.0
    """Error over what is allowed, the worst of the tests: above 1 has failed."""

    def raise_if_wrong(self) -> None:
        """Raise AssertionError with the reason, unless passed."""
        if not self.passed:
            raise AssertionError(f"{self.where or 'tensor'}: {self.reason}")


def compare(
    result: torch.Tensor,
    eager: torch.Tensor,
    truth: torch.Tensor,
    *,
    working: torch.dtype | None = None,
    name: str | None = None,
    noise: Noise | None = None,
    strides: bool = True,
) -> Verdict:
    """Compare a result with eager's, against float64 truth.

    Args:
        result: what a backend gave; on any device, where the comparison is made.
        eager: what eager gave from the same inputs, in the same dtype.
        truth: the same computation in float64 (complex128), of eager's shape. Integers and
            booleans are compared with eager alone.
        working: the lowest precision that the model computes in; the result's own dtype if not
            given. A bfloat16 model may return a float32 loss.
        name: which tensor this is, for the verdict.
        noise: how far honest results scatter; eager's own error if not given.
        strides: whether the result must be laid out in memory as eager's is, where both are dense.

    Raises:
        ValueError: ``eager`` and ``truth`` do not belong together, or a dtype cannot be used so.
    """
    _check_reference(eager, truth, working)
    reason = _unlike(result, eager, strides=strides)
    if reason is not None:
        return Verdict(passed=False, reason=reason, where=name, severity=math.inf, kind="metadata")
    if not result.numel():
        return Verdict(passed=True, reason="empty, as eager's", where=name)
    result, eager, truth = (dense(x).to(result.device) for x in (result, eager, truth))
    if not (result.is_floating_point() or result.is_complex()):
        return _exact(result, eager, name)
    precision = working if working is not None else result.dtype
    if result.is_complex():
        whole = (x.detach().resolve_conj() for x in (result, eager, truth))
        result, eager, truth = map(torch.view_as_real, whole)
    return _Comparison(
        result=result.detach().to(torch.float64),
        eager=eager.detach().to(torch.float64),
        truth=truth.detach(),
        noise=noise if noise is not None else noise_of(eager, truth),
        eps=torch.finfo(precision).eps,
        name=name,
    ).verdict()


def _check_reference(eager: torch.Tensor, truth: torch.Tensor, working: torch.dtype | None) -> None:
    if eager.shape != truth.shape:
        raise ValueError(
            f"eager has shape {tuple(eager.shape)} and truth {tuple(truth.shape)}: "
            "they are not results of the same computation"
        )
    wanted = torch.complex128 if eager.is_complex() else torch.float64
    if (eager.is_floating_point() or eager.is_complex()) and truth.dtype != wanted:
        raise ValueError(f"truth of {eager.dtype} must be {wanted}, not {truth.dtype}")
    if working is not None and not (working.is_floating_point or working.is_complex):
        raise ValueError(f"the working dtype must be floating-point, not {working}")


def _unlike(result: torch.Tensor, eager: torch.Tensor, *, strides: bool) -> str | None:
    """Return how a result is not even the same kind of tensor, if so."""
    if result.shape != eager.shape:
        return f"shape is {tuple(result.shape)}, and eager's is {tuple(eager.shape)}"
    if result.dtype != eager.dtype:
        return f"dtype is {result.dtype}, and eager's is {eager.dtype}"
    if result.layout != eager.layout:
        return f"layout is {result.layout}, and eager's is {eager.layout}"
    if strides and result.layout == torch.strided and _laid_out_otherwise(result, eager):
        return f"strides are {result.stride()}, and eager's are {eager.stride()}"
    return None


def _laid_out_otherwise(result: torch.Tensor, eager: torch.Tensor) -> bool:
    # The stride of a dimension of one element moves nothing, and that of an expanded tensor is
    # how eager saved memory, not a layout that anyone may rely on.
    if not result.numel() or not (_dense(result) and _dense(eager)):
        return False
    sizes = zip(result.shape, result.stride(), eager.stride(), strict=True)
    return any(size > 1 and ours != theirs for size, ours, theirs in sizes)


def _dense(value: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(value))


def _exact(result: torch.Tensor, eager: torch.Tensor, name: str | None) -> Verdict:
    wrong = result != eager
    count = int(wrong.sum())
    if not count:
        return Verdict(passed=True, reason="equal to eager's", where=name, ratio=None)
    index = _first(wrong)
    got, wanted = result[index].item(), eager[index].item()
    return Verdict(
        passed=False,
        reason=f"{count} of {result.numel()} elements differ, the first is {got} and not {wanted}",
        where=name,
        index=index,
        severity=math.inf,
    )


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """One floating-point comparison: everything in float64, of one shape, on one device."""

    result: torch.Tensor
    eager: torch.Tensor
    truth: torch.Tensor
    noise: Noise
    eps: float
    name: str | None

    def verdict(self) -> Verdict:
        if all(map(_is_finite, (self.result, self.eager, self.truth))):
            return self._measured(None)
        kinds = [_kind(x) for x in (self.result, self.eager, self.truth)]
        # Where eager overflowed and the truth did not, a finite result is the better one.
        alien = (kinds[0] != kinds[1]) & (kinds[0] != kinds[2])
        if alien.any():
            return self._alien(alien)
        counted = (kinds[0] == 0) & (kinds[2] == 0)
        if not counted.any():
            return Verdict(passed=True, reason="infinite or NaN as eager's", where=self.name)
        return self._measured(counted)

    def _alien(self, alien: torch.Tensor) -> Verdict:
        index = _first(alien)
        got, wanted = self.result[index].item(), self.eager[index].item()
        return Verdict(
            passed=False,
            reason=f"{int(alien.sum())} of {alien.numel()} elements are infinite or NaN where "
            f"eager's are not, or the reverse: the first is {got:.6g} and not {wanted:.6g}",
            where=self.name,
            index=index,
            severity=math.inf,
        )

    def _measured(self, counted: torch.Tensor | None) -> Verdict:
        """Return the verdict on the elements that count; all do where they are not given."""
        seen = self._errors(counted)
        tests = {
            "an element's error": self._element(seen),
            "the root-mean-square error": self._rms(seen),
            "the middle element's error": self._middle(seen),
            "the mean error": self._mean(seen),
            "the error of scale": self._scale(seen),
        }
        test = max(tests, key=lambda name: tests[name])
        severity = tests[test]
        if counted is None:
            distance = seen.error.abs().reshape(self.truth.shape)
        else:
            # Below every distance: where all are zero, the index must still be that of a number.
            distance = torch.where(counted, (self.result - self.truth).abs(), -1.0)
        index = _unravel(int(distance.argmax()), distance.shape)
        ratio = _ratio(rms(seen.error), rms(seen.own))
        passed = severity <= 1.0
        return Verdict(
            passed=passed,
            reason=f"error is {ratio:.3g}x eager's own"
            if passed
            else f"{test} is {severity:.3g}x what is allowed, and {ratio:.3g}x eager's overall",
            where=self.name,
            worst=distance[index].item(),
            index=index,
            ulps=self._ulps(distance[index].item(), self.truth[index].item(), seen),
            ratio=ratio,
            severity=severity,
        )

    def _errors(self, counted: torch.Tensor | None) -> "_Errors":
        error, own = self.result - self.truth, self.eager - self.truth
        if counted is None:
            return _Errors(error.flatten(), own.flatten(), self.truth.flatten())
        own = own[counted].nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return _Errors(error[counted], own, self.truth[counted])

    @property
    def _is_full(self) -> bool:
        return self.eps < FULL_PRECISION

    @property
    def _slack(self) -> float:
        """Return the factor by which bounds are wider than strict ones."""
        noise, size = self.noise.rms, self.noise.size
        if not self._is_full:
            return 1.0
        if size <= noise:  # a truth of zero: there is nothing that could be wrong by 1e-4
            return MOST_SLACK
        return min(max(_ratio(GENEROUS_UNTIL * size, noise), LEAST_SLACK), MOST_SLACK)

    def _factor(self, elements: int) -> float:
        return RMS * self._slack + FEW / math.sqrt(elements)

    def _element(self, seen: "_Errors") -> float:
        # In place: memory that is new for each operator takes longer than what is computed.
        rounding = seen.truth.abs().mul_(0.5 * self.eps)
        noise = torch.maximum(seen.own.abs(), rounding, out=rounding).clamp_min_(self._least(seen))
        allowed = noise.mul_(ELEMENT * self._slack).clamp_min_(PEAK * self.noise.peak)
        # An exact element needs no allowance.
        return float(seen.error.abs().div_(allowed).masked_fill_(seen.error == 0, 0.0).max())

    def _rms(self, seen: "_Errors") -> float:
        factor = self._factor(seen.error.numel())
        return _ratio(rms(seen.error), factor * self._least(seen), equal=0.0)

    def _middle(self, seen: "_Errors") -> float:
        if seen.error.numel() < MEAN_ELEMENTS:
            return 0.0
        factor = self._factor(seen.error.numel())
        noise = max(self.noise.middle, self._floor(seen))
        return _ratio(middle(seen.error, seen.truth), factor * noise, equal=0.0)

    def _mean(self, seen: "_Errors") -> float:
        if seen.error.numel() < MEAN_ELEMENTS:
            return 0.0
        shared = self.noise.shared * seen.mean_size
        allowed = CHANCE * self._chance(seen) + MEAN * self._slack * self.noise.mean + shared
        return _ratio(abs(seen.error.mean().item()), allowed, equal=0.0)

    def _scale(self, seen: "_Errors") -> float:
        if seen.error.numel() < MEAN_ELEMENTS:
            return 0.0
        size = rms(seen.truth)
        # Relative errors weigh as truth squared: few large elements average little out.
        weight = max(1.0, _ratio(rms(seen.truth.square()), size**2))
        chance, shared = CHANCE * weight * self._chance(seen), self.noise.shared * size
        allowed = chance + MEAN * self._slack * self.noise.along + shared
        return _ratio(along(seen.error, seen.truth), allowed, equal=0.0)

    def _chance(self, seen: "_Errors") -> float:
        return self._least(seen) / math.sqrt(seen.truth.numel())

    def _least(self, seen: "_Errors") -> float:
        """Return the noise's size, never below a share of one rounding."""
        return max(self.noise.rms, self._floor(seen))

    def _floor(self, seen: "_Errors") -> float:
        floor = FLOOR_IN_FULL if self._is_full else FLOOR
        return floor * self.eps * seen.mean_size

    def _ulps(self, distance: float, at: float, seen: "_Errors") -> float | None:
        # A truth near zero among large ones has units so small that their number says nothing.
        size = max(abs(at), seen.mean_size, self.noise.rms)
        if not size or math.isinf(size):  # where nothing is off, `at` may be any element
            return None
        return distance / (self.eps * 2.0 ** math.floor(math.log2(size)))


@dataclass(frozen=True)
class _Errors:
    """The elements that count, in one dimension."""

    error: torch.Tensor
    """Of the result, from the truth."""
    own: torch.Tensor
    """Eager's."""
    truth: torch.Tensor

    @cached_property
    def mean_size(self) -> float:
        """The mean of the truth's absolute values."""
        return self.truth.abs().mean().item()


def _is_finite(value: torch.Tensor) -> bool:
    """Return whether all elements are finite; may be False where their sum is not."""
    return math.isfinite(value.sum().item())


def _kind(value: torch.Tensor) -> torch.Tensor:
    """Return 0 for finite elements, 1 for NaN, 2 for plus and 3 for minus infinity."""
    return (value.isnan() + 2 * value.isposinf() + 3 * value.isneginf()).to(torch.int8)


def _ratio(error: float, allowed: float, *, equal: float = 1.0) -> float:
    if allowed:
        return error / allowed
    return math.inf if error else equal


def _first(flags: torch.Tensor) -> tuple[int, ...]:
    return _unravel(int(flags.flatten().to(torch.uint8).argmax()), flags.shape)


def _unravel(position: int, shape: torch.Size) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        position, here = divmod(position, size)
        index.append(here)
    return tuple(reversed(index))
