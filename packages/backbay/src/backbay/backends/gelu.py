"""``backend="backbay_gelu"``: GELU that is spelled out becomes one operator, then Inductor.

The third exercise of PyTorch's tutorials on custom backends, made right: every usual spelling, in
inference and in training, and the rest of the graph is kept.
"""

from backbay.kit.backend import Backend
from backbay.kit.rewrites import rewrite_gelu


class Gelu(Backend):
    """Rewrites GELU, tanh form and erf form."""

    name = "backbay_gelu"
    passes = (rewrite_gelu,)


backbay_gelu = Gelu()
