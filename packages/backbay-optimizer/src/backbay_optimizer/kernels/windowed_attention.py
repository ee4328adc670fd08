"""Attention that looks at near keys only, by a kernel that leaves out the others.

FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691) takes a window, and computes no block
of scores that lies outside of it. PyTorch has that kernel, forward and backward, as
``aten._flash_attention_forward``, and reaches it from no function of its own: the operator here
falls apart into it where AOTAutograd traces, in 16 bits on CUDA. Elsewhere it is attention with a
mask, which is the same sum.

Beside it is attention by the memory-efficient kernel, whichever other one PyTorch would take. For
sequences of a few dozen, and where the gradient of the bias is wanted, it is the fastest that
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

_ATEN = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)
_library: Any = Library("backbay", "FRAGMENT")  # type: ignore[no-untyped-call] # torch has no stub
_library.define(
    "windowed_attention(Tensor query, Tensor key, Tensor value, int left, int right, *, "
    "float? scale=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def seen(queries: int, keys: int, left: int, right: int, *, device: torch.device) -> Tensor:
    """Return a window as a mask: (queries, keys), true where a key is looked at."""
    own = keys - queries
    whole = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return whole.tril(own + right).triu(own - left)


def _attended(
    query: Tensor, key: Tensor, value: Tensor, left: int, right: int, *, scale: float | None = None
) -> Tensor:
    queries, keys = query.shape[2], key.shape[2]
    if not query.is_cuda or query.dtype not in _HALF:
        mask = seen(queries, keys, left, right, device=query.device)
        grouped = bool(query.shape[1] != key.shape[1])  # a symbol is asked, and guarded
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, enable_gqa=grouped
        )
    found = _ATEN._flash_attention_forward.default(  # noqa: SLF001 (its name)
        *(x.transpose(1, 2) for x in (query, key, value)),
        None,
        None,
        queries,
        keys,
        0.0,
        False,  # noqa: FBT003 (is_causal: the window says so)
        False,  # noqa: FBT003 (return_debug_mask)
        scale=scale,
        window_size_left=left,
        window_size_right=right,
    )
    result: Tensor = found[0].transpose(1, 2)
    return result


_library.impl("windowed_attention", _attended, "CompositeImplicitAutograd")

OPERATOR = torch.ops.backbay.windowed_attention.default
"""Of query (batch, heads, queries, width), key and value (batch, shared heads, keys, width): the
attention (batch, heads, queries, width), where query ``i`` sees the keys ``j`` with
``-left <= j - (i + keys - queries) <= right``. ``scale`` is by default ``width ** -0.5``."""


# The memory-efficient kernel

_library.define(
    "efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? bias=None, *, "
    "float? scale=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _attended_efficiently(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, *, scale: Any = None
) -> Tensor:
    # With math for what the kernel does not take: another machine may run what was compiled here.
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


_library.impl("efficient_attention", _attended_efficiently, "CompositeImplicitAutograd")

EFFICIENT = torch.ops.backbay.efficient_attention.default
"""Of query (batch, heads, queries, width), key and value (batch, heads, keys, width), and a bias of
their dtype that broadcasts to (batch, heads, queries, keys): the attention, shaped like the query.
``scale`` is by default ``width ** -0.5``."""
