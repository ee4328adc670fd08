"""Replace SiLU that is spelled out by one operator.

::

    before:  x * torch.sigmoid(x)    x / (1 + torch.exp(-x))    x * (1 / (1 + torch.exp(-x)))
    after:   torch.nn.functional.silu(x)

Methods, operators and functions are the same; so is the order of factors and terms. ``x`` must be
of a floating-point dtype: ``silu`` takes no other.

The rewrite is not bit for bit. Spelled out, each step is rounded to the dtype, in bfloat16 to three
digits; ``silu`` computes in float32 and rounds once. So results come nearer to the truth. Where
``exp(-x)`` overflows, for very negative ``x``, the gradient of the quotient is NaN in eager and
that of ``silu`` is right.
"""

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.match import Pattern, is_floating_point
from backbay.kit.passes import rewrite_pass

_SPELLINGS = {
    "x * sigmoid(x)": lambda x: x * torch.sigmoid(x),
    "x / (1 + exp(-x))": lambda x: x / (torch.exp(-x) + 1),
    "x * (1 / (1 + exp(-x)))": lambda x: x * (1 / (torch.exp(-x) + 1)),
    "x * reciprocal(1 + exp(-x))": lambda x: x * torch.reciprocal(torch.exp(-x) + 1),
}


def _silu(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


rewrite_silu = rewrite_pass(
    *(
        Pattern(
            match=spelling,
            replacement=_silu,
            conditions=(is_floating_point(),),
            tolerance=1e-6,
            example=lambda: (torch.empty(2, 3),),
            name=f"SiLU as {name}",
        )
        for name, spelling in _SPELLINGS.items()
    ),
    name="rewrite_silu",
    summary="SiLU that is spelled out is one operator",
)
"""Turn SiLU that is spelled out into ``torch.nn.functional.silu``; for Dynamo's graph, and with
``.at("aten")`` for ATen graphs of inference. (In training the gradient uses ``sigmoid(x)`` too.)"""
