"""A further draw of rounding noise: eager, with its composite operators taken apart.

A compiler may compute a normalisation or an optimizer's average from smaller operators, each of
which rounds to the working precision where eager's kernel computes in float32 throughout. That is
honest, and where one rounded constant (0.9, 1/n) meets every element it moves a whole tensor's mean
or scale. By how much depends on the model, so it is measured, with PyTorch's own decompositions.
"""

import functools
from typing import Any

from torch._decomp import core_aten_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

from backbay.proof.draws import is_random

_decompositions = functools.cache(core_aten_decompositions)


class Decomposing(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no stub
    """Runs operators as torch's core ATen decompositions have them, while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._table = _decompositions()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # What draws random numbers stays whole: its draws are replayed by name.
        decomposition = None if is_random(func) or func.is_view else self._table.get(func)
        if decomposition is None:
            return func(*args, **kwargs)
        with self:
            result = decomposition(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result
