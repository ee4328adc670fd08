"""Two runs of one thing, compared to the bit."""

from collections.abc import Iterator

import torch

from backbay.proof import Outcome, Workload
from backbay.proof.fingerprint import fingerprint
from backbay_conformance.case import EagerUnstable
from backbay_conformance.subject import in_eager

_FURTHER_RUNS = 3


def check_eager_repeats(workload: Workload, *, train: bool, seed: int) -> None:
    """Make sure that it is not eager's kernels that scatter.

    Raises:
        EagerUnstable: eager does not give the same bits every time.
    """
    first = in_eager(workload, train=train, seed=seed)
    for _ in range(_FURTHER_RUNS):
        found = difference(in_eager(workload, train=train, seed=seed), first)
        if found is not None:
            raise EagerUnstable(f"two eager runs differ: {found}")


def difference(one: Outcome, other: Outcome) -> str | None:
    """Return what of two outcomes is not the same to the bit, if anything."""
    for name, ours, theirs in _pairs(one, other):
        if ours is None or theirs is None:
            if ours is not theirs:
                return f"{name} is there in one run only"
        elif _bits(ours) != _bits(theirs):
            return f"{name} is not the same to the bit"
    if (one.structure, one.plain, one.requires_grad) != (
        other.structure,
        other.plain,
        other.requires_grad,
    ):
        return "another kind of result"
    return None


def _pairs(
    one: Outcome, other: Outcome
) -> Iterator[tuple[str, torch.Tensor | None, torch.Tensor | None]]:
    for kind in ("tensors", "gradients", "changed"):
        ours, theirs = getattr(one, kind), getattr(other, kind)
        for name in ours | theirs:
            yield name, ours.get(name), theirs.get(name)


def _bits(value: torch.Tensor) -> tuple[object, ...]:
    strides = value.stride() if value.layout == torch.strided else ()
    return value.shape, value.dtype, strides, fingerprint(value)
