"""What a mask of attention is, element by element: nothing hidden, causal, or a window."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from backbay.graph.constant import NotConstantError, constant_value
from backbay.graph.values import are_numbers, value_of
from backbay.kit.passes import NotApplicable, PassContext
from backbay_optimizer.kernels import windowed_attention as kernel

MOST_BYTES = 2**31
"""Of a tensor that is made to compute a mask: 32,768 queries and keys, and two sequences."""
HIDDEN = -1e15
"""What is added to a score hides it up to this number: no score is near, and its exponential is
zero. In float32, which scores are added up in, nothing is left of a score beside it."""


@dataclass(frozen=True)
class Window:
    """Each query looks at keys near its own place; the last query's place is that of the last key.

    Query ``i`` of ``q`` sees key ``j`` of ``k`` where ``-left <= j - (i + k - q) <= right``.
    """

    left: int
    right: int

    def __str__(self) -> str:
        return f"a window of {self.left} keys back and {self.right} ahead"

    def seen(self, queries: int, keys: int, device: torch.device) -> torch.Tensor:
        """Return the mask: (queries, keys), true where a key is looked at."""
        return kernel.seen(queries, keys, self.left, self.right, device=device)


Kind = Literal["none", "causal"] | Window


def kind_in(context: PassContext, given: Mapping[str, Any]) -> Kind | None:
    """Return what the mask is that attention is given; None where it is given none.

    Each mask of a graph is computed once.

    Args:
        context: of the pass that asks.
        given: arguments of ``scaled_dot_product_attention`` by name.

    Raises:
        NotApplicable: it may be another one in another call, or is of no kind.
    """
    mask = given.get("attn_mask")
    if mask is None:
        return None
    if not isinstance(mask, Node):
        raise NotApplicable("the mask is no tensor of the graph")
    queries, keys = (value_of(given[x]).shape[-2] for x in ("query", "key"))
    if not are_numbers((queries, keys)):
        raise NotApplicable("how many queries and keys there are is a symbol")
    whole = context.whole
    assert whole is not None

    def computed() -> Kind | NotConstantError:
        try:
            value = constant_value(whole, mask, most_bytes=MOST_BYTES)
            return kind_of(value, queries, keys)
        except NotConstantError as error:
            return error

    found = context.kept(("mask", mask, queries, keys), computed)
    if isinstance(found, NotConstantError):
        raise NotApplicable(str(found))
    return found


def kind_of(mask: Any, queries: int, keys: int) -> Kind:
    """Return what a mask is: ``none`` where it hides nothing, ``causal``, or a window.

    Args:
        mask: (..., queries, keys), or what broadcasts to it; boolean (true: is looked at) or
            floating-point (added to the scores).
        queries: how many queries attention has.
        keys: how many keys.

    Raises:
        NotConstantError: it is none of these.
    """
    if not isinstance(mask, torch.Tensor) or mask.dim() < 1:
        raise NotConstantError("the mask is no tensor of queries and keys")
    seen = _looked_at(mask)
    if bool(seen.all()):
        return "none"
    window = _window(seen, queries, keys)
    if window is None:
        share = seen.float().mean().item()
        raise NotConstantError(
            f"the mask is neither causal nor empty: it lets {share:.0%} of all pairs through"
        )
    is_causal = queries == keys == window.left + 1 and window.right == 0
    return "causal" if is_causal else window


def _looked_at(mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype == torch.bool:
        return mask
    highest = max(HIDDEN, torch.finfo(mask.dtype).min)  # what a model adds for minus infinity
    seen = mask == 0
    if not bool((seen | (mask <= highest)).all()):
        raise NotConstantError("the mask is a bias: it adds other numbers than zero")
    return seen


def _window(seen: torch.Tensor, queries: int, keys: int) -> Window | None:
    """Read a window from the first and the last row, and compare the others with it."""
    if seen.shape[-2:] != (queries, keys) or queries > keys:
        return None
    rows = seen.reshape(-1, queries, keys)[0]
    first, last = (rows[x].nonzero().flatten().tolist() for x in (0, -1))
    if not first or not last:
        return None
    window = Window(left=keys - 1 - last[0], right=first[-1] - (keys - queries))
    if window.right < 0 or bool((seen != window.seen(queries, keys, seen.device)).any()):
        return None
    return window
