"""How results of calls would be laid out, without a value for each: fake values are slow."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from backbay.graph.rewrite import layout
from backbay.graph.values import computed, is_ordinary


class Layouts:
    """What calls of one graph would give; of calls alike, one is made.

    What is asked of it must depend on nothing but its arguments' layouts, and the state in which
    that is: whether gradients are recorded, and autocast.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(
        self, function: Callable[..., torch.Tensor], *arguments: Any, **keywords: Any
    ) -> tuple[Any, ...] | None:
        """Return the layout of what a function would give, and whether it has a gradient.

        None where that is not known: a tensor among the arguments is of a subclass, or none is.

        Args:
            function: from fake values to one.
            arguments: fake values, and what `repr` tells apart.
            keywords: likewise.
        """
        leaves, structure = pytree.tree_flatten((arguments, keywords))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if not tensors or not all(map(is_ordinary, tensors)):
            return None
        device = tensors[0].device.type
        casts = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        state = (torch.is_grad_enabled(), torch.get_autocast_dtype(device) if casts else None)
        given = [kind(x) if isinstance(x, torch.Tensor) else repr(x) for x in leaves]
        key = (function, *state, str(structure), *given)
        if key not in self._known:
            found = computed(lambda args, named: function(*args, **named), arguments, keywords)
            self._known[key] = None if found is None else kind(found)
        known: tuple[Any, ...] | None = self._known[key]
        return known


def kind(value: torch.Tensor) -> tuple[Any, ...]:
    """Return a tensor's layout, and whether it has a gradient."""
    return *layout(value), value.requires_grad
