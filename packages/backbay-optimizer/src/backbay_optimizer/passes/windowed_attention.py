"""Compute what lies in a window, where attention has one for a mask that is always the same.

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

import math
from dataclasses import dataclass

import torch
from torch.backends.cuda import can_use_flash_attention
from torch.fx import Node

from backbay.graph.layouts import Layouts
from backbay.graph.values import is_ordinary, value_of
from backbay.kit.passes import EIGHTS, Call, NotApplicable, PassContext, Requires, Rewrite
from backbay_optimizer.kernels import windowed_attention as kernel
from backbay_optimizer.passes import attention, mask_kinds
from backbay_optimizer.passes.mask_kinds import Window

BLOCK = 128
"""Queries, and keys, of a block of scores; the kernel's differ a little with the width of heads."""
MOST = 0.5
"""Of all blocks: the share up to which it is faster. Measured on an H200, ``conditions.py``."""

_RANK = 4


@dataclass(frozen=True, slots=True)
class _Site(Call):
    """Attention with a window."""

    window: Window


@dataclass(frozen=True, kw_only=True)
class WindowedAttention(Rewrite[_Site]):
    """Compute what lies in a constant window, and not what is hidden; for CUDA, in 16 bits."""

    summary = "on CUDA, attention with a constant window computes what lies in it"
    requires = Requires(
        devices=("cuda",),
        because="the kernel that takes windows is CUDA's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="the kernel takes 16 bits",
    )
    targets = attention.TARGETS
    parameters = attention.PARAMETERS
    sources = (attention, mask_kinds, kernel)
    in_checkpoints = True
    is_timed = False
    removes_dead_code = True  # what made the masks

    def site(self, call: Call, context: PassContext) -> _Site | None:
        """Return attention with a window; why a mask is none, constant_masks says."""
        try:
            kind = mask_kinds.kind_in(context, call.given)
        except NotApplicable:
            return None
        return _Site(call.node, call.given, kind) if isinstance(kind, Window) else None

    def about(self, site: _Site) -> str:
        """Return which window it is."""
        return f"{site.window}: "

    def replacement(self, site: _Site, context: PassContext) -> Node:
        """Return a call of the kernel that takes windows."""
        node, given, window = site.node, site.given, site.window
        if given.get("dropout_p", 0.0):
            raise NotApplicable("attention drops elements")
        if value_of(given["query"]).dim() != _RANK:
            raise NotApplicable("its tensors have not four dimensions")
        if given.get("is_causal"):
            raise NotApplicable("it is causal, beside its window")
        named = {x: given[x] for x in ("query", "key", "value")}
        named |= attention.sources(node, given) or {}
        self._check([value_of(x) for x in named.values()], window)
        scale = {} if given.get("scale") is None else {"scale": given["scale"]}
        arguments = (*named.values(), window.left, window.right)
        layouts = context.kept(Layouts, Layouts)
        return attention.call_instead(node, kernel.OPERATOR, arguments, scale, layouts)

    def is_alike(self, old: Node, new: Node) -> bool:  # noqa: ARG002 (it has been seen to)
        """Whether a new node may stand for the old one: it may, or was not put in."""
        return True

    def _check(self, tensors: list[torch.Tensor], window: Window) -> None:
        if not all(map(is_ordinary, tensors)):
            raise NotApplicable("its tensors are of a subclass")
        query, key, _ = tensors
        for one in tensors:
            self.requires.check(one)
        if any(x.dtype != query.dtype for x in tensors):
            raise NotApplicable(f"it is of {query.dtype}, and not all of it: the kernel takes one")
        if query.shape[3] % EIGHTS:
            raise NotApplicable(f"its heads are {query.shape[3]} wide, which are no eights")
        share = blocks(window, query.shape[2], key.shape[2])
        if share > MOST:
            raise NotApplicable(f"{share:.0%} of the blocks of scores lie in it: too many to pay")
        if query.device.type == "cuda" and not can_use_flash_attention(attention.asked(*tensors)):
            raise NotApplicable("FlashAttention does not take these tensors, or is switched off")


windowed_attention = WindowedAttention()


def blocks(window: Window, queries: int, keys: int) -> float:
    """Return the share of all blocks of scores that have a pair in a window."""
    rows, columns = (math.ceil(x / BLOCK) for x in (queries, keys))
    own, total = keys - queries, 0
    for row in range(rows):
        first = max(0, row * BLOCK + own - window.left)
        last = min(keys - 1, min(queries, row * BLOCK + BLOCK) - 1 + own + window.right)
        total += last // BLOCK - first // BLOCK + 1
    return total / (rows * columns)
