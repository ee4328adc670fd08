"""``backend="backbay"``: Inductor, after rewrites of the graph that it lacks.

Each rewrite is a pass that changes nothing unless it is sure to be right, and can be switched off
by its name::

    torch.compile(model, backend="backbay", options={"constant_masks": False})

Operators that passes put in are PyTorch's own: Inductor lowers, fuses and caches them as ever.
"""

from backbay.kit.backend import Backend
from backbay.passes import (
    constant_masks,
    eager_convolutions,
    early_selection,
    fused_convolutions,
    linear_epilogues,
)
from backbay.registry import Option


class Optimizing(Backend):
    """Rewrites what Inductor leaves on the table, then Inductor."""

    name = "backbay"
    # Masks first: who is causal may be cut.
    passes = (
        constant_masks,
        early_selection,
        eager_convolutions,
        fused_convolutions,
        linear_epilogues,
    )
    options = (
        Option(
            name="constant_masks",
            type="bool",
            default=True,
            help="attention without masks that are causal, or hide nothing, in every call",
        ),
        Option(
            name="early_selection",
            type="bool",
            default=True,
            help="rows that are cut away at the end are not computed",
        ),
        Option(
            name="eager_convolutions",
            type="bool",
            default=True,
            help="on a CPU, convolutions of more weights than activations are as eager's",
        ),
        Option(
            name="fused_convolutions",
            type="bool",
            default=True,
            help="on CUDA, convolution, batch norm, sum and ReLU are one call, in inference",
        ),
        Option(
            name="linear_epilogues",
            type="bool",
            default=True,
            help="on CUDA, a linear layer with its ReLU or GELU by tanh is one call, in inference",
        ),
    )


backbay = Optimizing()
