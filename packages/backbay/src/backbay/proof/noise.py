"""How far honest results scatter around the truth, tensor by tensor.

Eager's own error is one draw of rounding noise. One draw is a poor measure where a tensor has few
elements, where its true value is zero and all that is left is cancellation, or where rounding flips
a discrete choice. So several draws are taken (see ``monte_carlo.py``), and what they say of one
tensor is moderated by what they say of all tensors of the same proof, as moderated variance does
(G. K. Smyth, 2004, "Linear models and empirical Bayes methods").
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

_MEDIAN_OF = 1 << 20
PRIOR_ELEMENTS = 16
"""How many elements the noise pooled over all tensors weighs, against a tensor's own."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The scatter of honest results of one tensor, over all draws of it; the worst of each."""

    rms: float
    """Root of the mean of the squared errors."""
    peak: float
    """Largest error of one element."""
    mean: float
    """Size of the mean error."""
    along: float
    """Size of the error along the truth: mean(error * truth) / rms(truth). A result that is the
    truth times 1.01 has 0.01 rms(truth) of it, honest noise has next to none."""
    middle: float
    """Error of the middle element: a few flipped choices, however large, do not move it."""
    size: float
    """Root-mean-square of the truth."""
    elements: int
    """How many finite elements the tensor has."""
    shared: float = 0.0
    """Shift of mean and scale that honest results may share, over the truth's size, beside what the
    draws show."""

    def shifted(self, other: "Noise") -> "Noise":
        """Take into account by how much another draw's mean and scale are off."""
        return replace(self, mean=max(self.mean, other.mean), along=max(self.along, other.along))

    def widened(self, other: "Noise") -> "Noise":
        """Take another draw into account, which was rounded twice as often as eager."""
        return self.at_least(other.halved())

    def at_least(self, other: "Noise") -> "Noise":
        """Take another draw into account, which was rounded as eager is."""
        return replace(
            self,
            rms=max(self.rms, other.rms),
            peak=max(self.peak, other.peak),
            mean=max(self.mean, other.mean),
            along=max(self.along, other.along),
            middle=max(self.middle, other.middle),
        )

    def halved(self) -> "Noise":
        """Return the noise of half the variance. Peaks stay: a flipped choice is no variance."""
        half = math.sqrt(0.5)
        return replace(
            self,
            rms=half * self.rms,
            mean=half * self.mean,
            along=half * self.along,
            middle=half * self.middle,
        )


def noise_of(draw: torch.Tensor, truth: torch.Tensor) -> Noise:
    """Measure one draw: a result in working precision, against float64 truth of the same shape."""
    wanted, got = _flat(truth), _flat(draw)
    finite = torch.isfinite(wanted) & torch.isfinite(got)
    wanted, error = wanted[finite], (got - wanted)[finite]
    if not error.numel():
        return Noise(rms=0.0, peak=0.0, mean=0.0, along=0.0, middle=0.0, size=0.0, elements=0)
    size = rms(wanted)
    return Noise(
        rms=rms(error),
        peak=error.abs().max().item(),
        mean=abs(error.mean().item()),
        along=along(error, wanted),
        middle=middle(error, wanted),
        size=size,
        elements=error.numel(),
    )


def moderated(noises: Mapping[str, Noise]) -> dict[str, Noise]:
    """Let each tensor's noise borrow from all others': its size where it has few elements.

    The mean of n independent errors is rms / sqrt(n). Errors of one run are not independent (one
    rounded statistic shifts a whole row); by how much means exceed that is pooled too.
    """
    known = [x for x in noises.values() if x.rms]
    pooled = _Pooled(
        relative=statistics.median([x.rms / x.size for x in known if x.size] or [0.0]),
        mean=_excess([x.mean / _chance(x) for x in known]),
        along=_excess([x.along / _chance(x) for x in known]),
    )
    return {name: _moderated(noise, pooled) for name, noise in noises.items()}


@dataclass(frozen=True, kw_only=True)
class _Pooled:
    """What all tensors of one proof say together."""

    relative: float
    """Noise over size, of the middle tensor."""
    mean: float
    """How far mean errors exceed those of independent errors."""
    along: float
    """Likewise, of the errors along the truth."""


def _chance(noise: Noise) -> float:
    """Return the mean error that independent errors would have."""
    return noise.rms / math.sqrt(noise.elements)


def _excess(ratios: list[float]) -> float:
    return math.sqrt(statistics.fmean([x * x for x in ratios] or [1.0]))


def _moderated(noise: Noise, pooled: _Pooled) -> Noise:
    if not noise.elements:
        return noise
    own, prior = noise.elements, PRIOR_ELEMENTS
    borrowed = (own * noise.rms**2 + prior * (pooled.relative * noise.size) ** 2) / (own + prior)
    wider = replace(noise, rms=max(noise.rms, math.sqrt(borrowed)))
    return replace(
        wider,
        mean=max(noise.mean, pooled.mean * _chance(wider)),
        along=max(noise.along, pooled.along * _chance(wider)),
    )


def along(error: torch.Tensor, truth: torch.Tensor) -> float:
    """Measure how much of an error is a wrong scale of the truth, in the error's own unit."""
    size = rms(truth)
    return abs((error * truth).mean().item()) / size if size else 0.0


def middle(error: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the median size of the errors where the truth is not zero.

    Of very many, an evenly spaced part is looked at. (Most of an embedding's gradient is zero.)
    """
    kept = error[truth != 0].abs()
    kept = kept[:: kept.numel() // _MEDIAN_OF + 1]
    return kept.median().item() if kept.numel() else 0.0


def rms(values: torch.Tensor) -> float:
    """Root mean square of a tensor with at least one element."""
    return math.sqrt(values.square().mean().item())


def dense(value: torch.Tensor) -> torch.Tensor:
    """Return a sparse or otherwise packed tensor as the numbers that it stands for."""
    return value if value.layout == torch.strided else value.detach().to_dense()


def _flat(value: torch.Tensor) -> torch.Tensor:
    value = dense(value)
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return value.detach().to(torch.float64).flatten()
