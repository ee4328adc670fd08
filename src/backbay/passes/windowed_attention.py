"""Attention with a mask that is a window, the same in every call, computes what lies in it.

::

    before:  back = torch.arange(4096)[:, None] - torch.arange(4096)
             F.scaled_dot_product_attention(q, k, v, attn_mask=(back >= 0) & (back < 512))
    after:   torch.ops.backbay.windowed_attention(q, k, v, 511, 0)

Models with sliding windows or local attention hand over a dense mask, and attention computes and
hides all pairs. The mask is computed when the graph is compiled and compared with a window, element
by element, as `constant_masks` does with those that are causal; it may reach back, ahead or both,
and stand at the end of a longer past. Repeated keys and values are handed over once for a group.

The kernel leaves out blocks of scores, not single ones, and is otherwise slower than the one that
takes masks. So it is used where it leaves out enough of them: how many was measured.
"""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.fx import GraphModule, Node

from backbay.graph.checkpoints import with_bodies
from backbay.graph.constant import NotConstantError
from backbay.graph.layouts import Layouts
from backbay.graph.match import NearMiss
from backbay.graph.values import is_ordinary, value_of
from backbay.kernels import windowed_attention as kernel
from backbay.kit.passes import PassContext, graph_pass
from backbay.passes import attention, grouped_heads, mask_kinds
from backbay.passes.dead_code import remove_dead_code
from backbay.passes.mask_kinds import Masks, Window
from backbay.passes.unfit import UnfitError

DEVICES = ("cuda",)
DTYPES = (torch.bfloat16, torch.float16)
BLOCK = 128
"""Queries, and keys, of a block of scores; the kernel's differ a little with the width of heads."""
MOST = 0.5
"""Of all blocks: the share up to which it is faster. Measured on an H200, ``conditions.py``."""

EIGHTS = 8
"""Of elements in a head: others would have to be padded."""

_IS_HIP = torch.version.hip is not None
_RANK = 4


@graph_pass(level="torch", sources=(attention, grouped_heads, mask_kinds, kernel))
def windowed_attention(graph_module: GraphModule, context: PassContext) -> int:
    """Compute what lies in a constant window, and not what is hidden; for CUDA, in 16 bits.

    ::

        before:  back = torch.arange(4096)[:, None] - torch.arange(4096)
                 F.scaled_dot_product_attention(q, k, v, attn_mask=(back >= 0) & (back < 512))
        after:   torch.ops.backbay.windowed_attention(q, k, v, 511, 0)
    """
    masks, layouts = Masks(graph_module), Layouts()
    total = 0
    for one in with_bodies(graph_module):
        count = 0
        for node in list(attention.calls(one)):
            given = attention.arguments(node)
            window = _window(given, masks)
            if window is None:
                continue
            try:
                _rewrite(node, given, window, layouts)
            except UnfitError as error:
                context.near.append(NearMiss("windowed_attention", node, f"{window}: {error}"))
                continue
            count += 1
        if count:
            remove_dead_code.run(one, context)  # what made the masks
            one.recompile()
        total += count
    return total


def _window(given: Mapping[str, Any], masks: Masks) -> Window | None:
    """Give the window that a mask is; None where it is none: constant_masks says why."""
    with contextlib.suppress(NotConstantError):
        kind = masks.kind(given)
        return kind if isinstance(kind, Window) else None
    return None


def _rewrite(node: Node, given: dict[str, Any], window: Window, layouts: Layouts) -> None:
    if given.get("dropout_p", 0.0):
        raise UnfitError("attention drops elements")
    if value_of(given["query"]).dim() != _RANK:
        raise UnfitError("its tensors have not four dimensions")
    named = {x: given[x] for x in ("query", "key", "value")}
    named |= grouped_heads.sources(node, given) or {}
    _check([value_of(x) for x in named.values()], window)
    scale = {} if given.get("scale") is None else {"scale": given["scale"]}
    arguments = (*named.values(), window.left, window.right)
    if not attention.replaced(node, kernel.OPERATOR, arguments, scale, layouts):
        raise UnfitError("the caller gets its result, which would be laid out otherwise")


def _check(tensors: list[torch.Tensor], window: Window) -> None:
    if not all(map(is_ordinary, tensors)):
        raise UnfitError("its tensors are of a subclass")
    query, key, _ = tensors
    where = query.device.type
    if where not in DEVICES or _IS_HIP:
        raise UnfitError(f"it runs on {where}: the kernel that takes windows is CUDA's")
    if any(x.dtype not in DTYPES or x.dtype != query.dtype for x in tensors):
        raise UnfitError(f"it is of {query.dtype}: the kernel takes 16 bits")
    if query.shape[3] % EIGHTS:
        raise UnfitError(f"its heads are {query.shape[3]} wide, which are no eights")
    share = blocks(window, query.shape[2], key.shape[2])
    if share > MOST:
        raise UnfitError(f"{share:.0%} of the blocks of scores lie in it: too many to pay")
    if where == "cuda" and not can_use_flash_attention(_asked(*tensors)):
        raise UnfitError("FlashAttention does not take these tensors, or is switched off")


def _asked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    grouped = bool(query.shape[1] != key.shape[1])
    asked: Any = SDPAParams  # its stub knows other arguments
    return asked(query, key, value, None, 0.0, False, grouped)  # noqa: FBT003 (it takes no names)


def blocks(window: Window, queries: int, keys: int) -> float:
    """Give the share of all blocks of scores that have a pair in a window."""
    rows, columns = (math.ceil(x / BLOCK) for x in (queries, keys))
    own, total = keys - queries, 0
    for row in range(rows):
        first = max(0, row * BLOCK + own - window.left)
        last = min(keys - 1, min(queries, row * BLOCK + BLOCK) - 1 + own + window.right)
        total += last // BLOCK - first // BLOCK + 1
    return total / (rows * columns)
