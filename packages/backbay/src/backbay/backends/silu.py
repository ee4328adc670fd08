"""``backend="backbay_silu"``: SiLU, spelled out or not, by our Triton kernel; then Inductor.

The tutorials' Triton backend, made right: every spelling, in inference and in training, the kernel
only where it can take the tensor, and the whole rest of the graph kept. It is an example, not a
gain: Inductor's own SiLU is as fast, and fuses with its neighbours.
"""

from backbay.kit.backend import Backend
from backbay.kit.rewrites import rewrite_silu, silu_to_kernel


class Silu(Backend):
    """Rewrites SiLU, and computes it by our kernel on a GPU."""

    name = "backbay_silu"
    passes = (rewrite_silu, silu_to_kernel)


backbay_silu = Silu()
