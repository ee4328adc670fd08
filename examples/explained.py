"""A model with something to explain: ``backbay explain examples/explained.py:gates``.

It gates twice with SiLU, spelled out: once where the rewrite fires, once where it may not. A print
breaks the graph, and a number that the model counts itself makes it compile again at every call.
"""

import torch

from backbay.kit.backend import Backend
from backbay.kit.rewrites import rewrite_silu


class Gates(torch.nn.Module):
    """Two gates, and what gets in the compiler's way."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = torch.nn.Linear(8, 16)
        self.calls = 0

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Gate the floats, and the whole numbers."""
        self.calls += 1
        h = self.lift(x)
        h = h * h.sigmoid()
        weight = counts * counts.sigmoid()
        print("halfway")
        return (h * weight).sum(-1) / self.calls


def gates() -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Return the model and its inputs."""
    return Gates(), (torch.randn(4, 8), torch.arange(64).reshape(4, 16))


class SiluEagerly(Backend):
    """Rewrites SiLU, and runs the rest as it is: nothing to wait for."""

    name = "silu_eagerly"
    passes = (rewrite_silu,)
    codegen = "eager"


silu_eagerly = SiluEagerly()
