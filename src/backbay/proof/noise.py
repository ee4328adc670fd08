"""How far honest results scatter around the truth, tensor by tensor.

Eager's own error is one draw of rounding noise. One draw is a poor measure where a tensor has few
elements, where its true value is zero and all that is left is cancellation, or where rounding flips
a discrete choice. So several draws are taken (see ``tremble.py``), and what they say of one tensor
is moderated by what they say of all tensors of the same proof, as moderated variance does
(G. K. Smyth, 2004, "Linear models and empirical Bayes methods").
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

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
    size: float
    """Root-mean-square of the truth."""
    elements: int
    """How many finite elements the tensor has."""

    def widened(self, other: "Noise") -> "Noise":
        """Take another draw into account."""
        return replace(
            self,
            rms=max(self.rms, other.rms),
            peak=max(self.peak, other.peak),
            mean=max(self.mean, other.mean),
        )


def noise_of(draw: torch.Tensor, truth: torch.Tensor) -> Noise:
    """Measure one draw: a result in working precision, against float64 truth of the same shape."""
    wanted, got = _flat(truth), _flat(draw)
    finite = torch.isfinite(wanted) & torch.isfinite(got)
    wanted, error = wanted[finite], (got - wanted)[finite]
    if not error.numel():
        return Noise(rms=0.0, peak=0.0, mean=0.0, size=0.0, elements=0)
    return Noise(
        rms=rms(error),
        peak=error.abs().max().item(),
        mean=abs(error.mean().item()),
        size=rms(wanted),
        elements=error.numel(),
    )


def moderated(noises: Mapping[str, Noise]) -> dict[str, Noise]:
    """Let each tensor's noise borrow from all others': its size where it has few elements.

    The mean error of n independent errors is rms / sqrt(n). Errors of one run are not independent
    (one rounded statistic shifts a whole row); by how much the means exceed that is pooled too.
    """
    relative = [n.rms / n.size for n in noises.values() if n.elements and n.size]
    pooled = statistics.median(relative) if relative else 0.0
    excess = [n.mean * math.sqrt(n.elements) / n.rms for n in noises.values() if n.rms]
    together = math.sqrt(statistics.fmean(x * x for x in excess)) if excess else 1.0
    return {name: _moderated(noise, pooled, together) for name, noise in noises.items()}


def _moderated(noise: Noise, pooled: float, together: float) -> Noise:
    if not noise.elements:
        return noise
    own, prior = noise.elements, PRIOR_ELEMENTS
    borrowed = (own * noise.rms**2 + prior * (pooled * noise.size) ** 2) / (own + prior)
    spread = max(noise.rms, math.sqrt(borrowed))
    return replace(
        noise, rms=spread, mean=max(noise.mean, together * spread / math.sqrt(noise.elements))
    )


def rms(values: torch.Tensor) -> float:
    """Root mean square of a tensor with at least one element."""
    return math.sqrt(values.square().mean().item())


def _flat(value: torch.Tensor) -> torch.Tensor:
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return value.detach().to(torch.float64).flatten()
