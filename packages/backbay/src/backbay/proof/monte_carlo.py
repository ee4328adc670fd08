"""Further draws of rounding noise: eager, with the last bits of what it computes or reads moved.

Each operator's floating-point results are moved by one unit in the last place, up or down, each
with a chance of 1/24. That adds the variance of one rounding (1/12 of a unit squared), so a run
scatters as one in which everything had been rounded once more, and otherwise. The idea is Monte
Carlo arithmetic (D. S. Parker, 1997); a plain eager run shows one such outcome only.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from backbay.proof.draws import is_random

_CHANCE = 1 / 24
_CHANCE_OF_FEW = 1 / 3
_FEW = 64
"""A statistic of few elements is shared by all that is computed from it: were it moved as seldom,
most draws would not show what its rounding does."""
_STEP = 0.6
"""Of epsilon times the value: between 0.6 and 1.2 units in the last place, which rounds to one."""
_LARGEST_EXACT = 256
"""Whole numbers up to here are in most models exact (masks, counts), which no rounding touches."""

_EXACT = frozenset(
    "aten::" + name
    for name in (
        "clone",
        "copy_",
        "cat",
        "stack",
        "index",
        "index_select",
        "index_put",
        "index_put_",
        "gather",
        "scatter",
        "embedding",
        "where",
        "masked_fill",
        "masked_fill_",
        "neg",
        "abs",
        "relu",
        "relu_",
        "threshold_backward",
        "max",
        "min",
        "amax",
        "amin",
        "maximum",
        "minimum",
        "clamp",
        "clamp_min",
        "topk",
        "sort",
        "constant_pad_nd",
        "max_pool2d_with_indices",
        "triu",
        "tril",
        "flip",
        "roll",
        "repeat",
        "fill_",
        "zero_",
        "sgn",
        "sign",
        "floor",
        "ceil",
        "round",
    )
)
"""Operators that move or choose values, and round nothing."""


class _Moving(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no stub
    """Can move last bits; seeded."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def _move(self, tensor: torch.Tensor) -> None:
        if torch.finfo(tensor.dtype).bits < 16:  # noqa: PLR2004 (float8 is storage, not arithmetic)
            return
        pick = torch.rand(tensor.shape, generator=self._generator(tensor), device=tensor.device)
        chance = _CHANCE if tensor.numel() >= _FEW else _CHANCE_OF_FEW
        sign = (pick < chance).to(torch.int8) - (pick > 1 - chance).to(torch.int8)
        info = torch.finfo(tensor.dtype)
        size = tensor.abs()
        exact = (size <= _LARGEST_EXACT) & (tensor == tensor.trunc())
        sign.masked_fill_(exact | ~(size < info.max / 2), 0)
        tensor.add_(tensor * sign, alpha=_STEP * info.eps)

    def _generator(self, tensor: torch.Tensor) -> torch.Generator:
        device = tensor.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


class MonteCarloArithmetic(_Moving):  # type: ignore[no-untyped-call]
    """Moves the last bits of what operators give, while it is active; seeded."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        # Floats computed from integers alone (a position's bucket, a mask) lie on boundaries where
        # one moved bit is another choice, for every element at once; they stay.
        self._from_integers: Any = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = _tensors((args, kwargs))
        if all(not x.is_floating_point() or x in self._from_integers for x in given):
            self._from_integers.update((x, True) for x in _tensors(result))
            return result
        if is_random(func) or func.is_view or func._schema.name in _EXACT:  # noqa: SLF001
            return result
        if func._schema.name == "aten::_to_copy" and not _coarser(result, given[0]):  # noqa: SLF001
            return result
        # Some operators give their argument's memory and are no views: _unsafe_view, unsafe_chunk.
        taken = set() if func._schema.is_mutable else {_memory(x) for x in given}  # noqa: SLF001
        for tensor in _tensors(result):
            if tensor.is_floating_point() and _memory(tensor) not in taken | {None}:
                self._move(tensor)
        return result


class Reweighed(_Moving):  # type: ignore[no-untyped-call]
    """Puts copies in the place of parameters and buffers, whose last bits have moved; seeded.

    Compilers fold a batch norm, or a norm's weight, into the weights beside it, and round what
    comes of it to their dtype. That is honest, and shifts a whole channel, where eager's rounding
    differs from element to element.
    """

    def __init__(self, state: Iterable[torch.Tensor], seed: int) -> None:
        super().__init__(seed)
        self._moved: Any = WeakTensorKeyDictionary()
        for tensor in state:
            self._moved[tensor] = tensor.detach().clone()
            self._move(self._moved[tensor])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func._schema.is_mutable:  # noqa: SLF001
            return func(*args, **(kwargs or {}))
        given = pytree.tree_map_only(
            torch.Tensor, lambda x: self._moved.get(x, x), (args, kwargs or {})
        )
        return func(*given[0], **given[1])


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else None


def _coarser(result: torch.Tensor, given: torch.Tensor) -> bool:
    if not (result.is_floating_point() and given.is_floating_point()):
        return False
    return torch.finfo(result.dtype).eps > torch.finfo(given.dtype).eps
