"""Medians, their ratios and differences, and their confidence intervals, by the bootstrap.

The percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, ch. 13)
assumes no distribution of times. Rounds are resampled, not samples: what disturbs a round disturbs
every backend in it, so that a ratio of two backends is taken within the same rounds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from backbay.timing.interval import Interval

RESAMPLES = 4000
CONFIDENCE = 0.95

Values = npt.NDArray[np.float64]
Rounds = npt.NDArray[np.int64]


def median(samples: Sequence[float]) -> "tuple[float, Interval]":
    """Return the median of one sample a round, and its confidence interval."""
    values = np.asarray(samples, dtype=np.float64)
    medians = np.median(values[_resampled_rounds(len(values))], axis=1)
    return float(np.median(values)), _interval(medians)


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> "tuple[float, Interval]":
    """Return the ratio of two medians, and its confidence interval; samples pair up by round.

    Raises:
        ValueError: the two were not measured in the same rounds.
    """
    above, below, rounds = _paired(numerator, denominator)
    ratios = np.median(above[rounds], axis=1) / np.median(below[rounds], axis=1)
    return float(np.median(above) / np.median(below)), _interval(ratios)


def ratio_apart(
    numerator: Sequence[float], denominator: Sequence[float]
) -> "tuple[float, Interval]":
    """Return the ratio of two medians that were measured in other rounds, beside nothing.

    Raises:
        ValueError: one of them has no samples.
    """
    above, below = (np.asarray(x, dtype=np.float64) for x in (numerator, denominator))
    if not len(above) or not len(below):
        raise ValueError("there are no samples")
    tops = np.median(above[_resampled_rounds(len(above))], axis=1)
    bottoms = np.median(below[_resampled_rounds(len(below), seed=1)], axis=1)
    return float(np.median(above) / np.median(below)), _interval(tops / bottoms)


def ratio_beside(
    numerator: Sequence[float],
    beside_numerator: Sequence[float],
    denominator: Sequence[float],
    beside_denominator: Sequence[float],
) -> "tuple[float, Interval]":
    """Return the ratio of two medians that were measured in other rounds, each beside a third.

    It is the ratio of what each is in terms of the third; the rounds of both are resampled.
    """
    above, third, rounds = _paired(numerator, beside_numerator)
    below, again, others = _paired(denominator, beside_denominator, seed=1)
    tops = np.median(above[rounds], axis=1) / np.median(third[rounds], axis=1)
    bottoms = np.median(below[others], axis=1) / np.median(again[others], axis=1)
    value = np.median(above) / np.median(third) / (np.median(below) / np.median(again))
    return float(value), _interval(tops / bottoms)


def difference(minuend: Sequence[float], subtrahend: Sequence[float]) -> "tuple[float, Interval]":
    """Return the difference of two medians, and its confidence interval; samples pair up by round.

    Raises:
        ValueError: the two were not measured in the same rounds.
    """
    above, below, rounds = _paired(minuend, subtrahend)
    differences = np.median(above[rounds], axis=1) - np.median(below[rounds], axis=1)
    return float(np.median(above) - np.median(below)), _interval(differences)


def _paired(
    one: Sequence[float], other: Sequence[float], seed: int = 0
) -> tuple[Values, Values, Rounds]:
    if len(one) != len(other):
        raise ValueError(f"{len(one)} rounds against {len(other)}: they do not pair up")
    first, second = (np.asarray(x, dtype=np.float64) for x in (one, other))
    return first, second, _resampled_rounds(len(one), seed)


def _resampled_rounds(count: int, seed: int = 0) -> Rounds:
    # A fixed seed: the same samples always give the same interval.
    return np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, count))


def _interval(values: Values) -> "Interval":
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(values, [tail, 100.0 - tail])
    return float(low), float(high)
