"""Attention by the memory-efficient kernel, whichever other one PyTorch would take.

For sequences of a few dozen, and where the gradient of the bias is wanted, it is the fastest that
PyTorch has on a Hopper GPU, and not its first choice. The kernel is xFormers' (Lefaudeux et al.,
2022, https://github.com/facebookresearch/xformers), after Rabe and Staats, 2021
(https://arxiv.org/abs/2112.05682).
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.nn.attention import SDPBackend, sdpa_kernel

_library: Any = Library("backbay", "FRAGMENT")  # type: ignore[no-untyped-call] # torch has no stub
_library.define(
    "efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? bias=None, *, "
    "float? scale=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _attended(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, *, scale: Any = None
) -> Tensor:
    # With math for what the kernel does not take: another machine may run what was compiled here.
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


_library.impl("efficient_attention", _attended, "CompositeImplicitAutograd")

OPERATOR = torch.ops.backbay.efficient_attention.default
"""Of query (batch, heads, queries, width), key and value (batch, heads, keys, width), and a bias of
their dtype that broadcasts to (batch, heads, queries, keys): the attention, shaped like the query.
``scale`` is by default ``width ** -0.5``."""
