"""Other sizes of an operator's sample: one of its sizes grown, wherever it occurs.

Sizes are only grown, by repeating what is there: an index into a dimension stays inside it.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from backbay.proof.tree import leaves, mapped
from backbay_conformance.case import NotRunnable
from backbay_conformance.levels.opinfo import Sample

GROWTHS = (1, 3)
"""By how much; with the sample's own size that makes three sizes."""
TRIED = 24
"""How many samples of an operator are tried: many begin with a scalar, or fix a size elsewhere."""
Grow = Callable[[torch.Tensor, int], torch.Tensor]


def resizable(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield those of the first samples of an operator that eager takes at three sizes."""
    for sample in itertools.islice(samples, TRIED):
        with contextlib.suppress(NotRunnable):
            series(sample)
            yield sample


def series(sample: Sample) -> list[Sample]:
    """Return the sample at three sizes, all of which eager takes.

    Raises:
        NotRunnable: eager takes it at this size only.
    """
    for grow in _ways(sample):
        grown = [_resized(sample, grow, extra) for extra in GROWTHS]
        if all(_taken(x) for x in grown):
            return [sample, *grown]
    raise NotRunnable("eager takes its sample at one size only")


def _ways(sample: Sample) -> Iterator[Grow]:
    named = leaves((sample.args, sample.kwargs), "inputs")
    tensors = [x for _, x in named if isinstance(x, torch.Tensor)]
    shapes = [tuple(x.shape) for x in tensors if x.layout == torch.strided and x.dim()]
    # Sizes 0 and 1 are constants to Dynamo, and sizes that are equal are one symbol to it.
    counts = Counter(size for shape in shapes for size in shape if size > 1)
    for size, _ in counts.most_common():
        yield _everywhere(size)
    if shapes and shapes[0][0] > 1:
        leading = shapes[0][0]
        yield lambda x, extra: _grown(x, 0, extra) if x.dim() and x.shape[0] == leading else x


def _everywhere(size: int) -> Grow:
    def grow(value: torch.Tensor, extra: int) -> torch.Tensor:
        for dim in [i for i, x in enumerate(value.shape) if x == size]:
            value = _grown(value, dim, extra)
        return value

    return grow


def _grown(value: torch.Tensor, dim: int, extra: int) -> torch.Tensor:
    size = value.shape[dim]
    index = torch.arange(size + extra, device=value.device) % size
    return value.index_select(dim, index)


def _resized(sample: Sample, grow: Grow, extra: int) -> Sample:
    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        with torch.no_grad():
            try:
                return grow(value, extra).requires_grad_(value.requires_grad)
            except RuntimeError as error:  # float8 and its like have few kernels
                raise NotRunnable(f"its inputs cannot be resized: {error}") from error

    args, kwargs = mapped(one, (sample.args, sample.kwargs))
    return replace(sample, args=args, kwargs=kwargs)


def _taken(sample: Sample) -> bool:
    """Whether eager takes it, on copies: an operator may write to its inputs."""
    args, kwargs = mapped(
        lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x,
        (sample.args, sample.kwargs),
    )
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            sample.function(*args, **kwargs)
    except Exception:  # noqa: BLE001 (whatever it raises, it does not take it)
        return False
    return True
