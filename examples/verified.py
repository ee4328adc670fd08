"""A backend with a mistake: ``backbay verify examples/verified.py:model --backend ...:swaps_gelu``.

It takes the cheaper GELU, by tanh, for the exact one. The two differ by less than a thousandth: a
model still trains with it, and no test that compares with a tolerance of a hundredth sees it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional


class FeedForward(torch.nn.Module):
    """Widen, bend, narrow."""

    def __init__(self, bend: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.widen, self.narrow = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
        self.bend = bend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform each position by itself."""
        return x + self.narrow(self.bend(self.widen(x)))  # type: ignore[no-any-return]


class Model(torch.nn.Module):
    """Three layers, the second of which bends by GELU."""

    def __init__(self) -> None:
        super().__init__()
        bends = (functional.relu, functional.gelu, functional.silu)
        self.layers = torch.nn.ModuleList(FeedForward(bend) for bend in bends)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Go through all of them."""
        for layer in self.layers:
            x = layer(x)
        return x


def model() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Return the model and its inputs."""
    return Model(), (torch.randn(8, 16),)


def swaps_gelu(
    graph_module: torch.fx.GraphModule, _example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Compile nothing, but take one GELU for the other."""
    for node in graph_module.graph.nodes:
        if node.target is functional.gelu:
            node.kwargs = {"approximate": "tanh"}
    graph_module.recompile()
    return graph_module.forward
