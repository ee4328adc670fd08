"""What a convolution of images or volumes in Dynamo's graph is called with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from backbay.graph.values import is_ordinary, value_of
from backbay.passes.unfit import UnfitError

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ATEN = torch.ops.aten
_TARGETS: Mapping[int, tuple[Any, ...]] = {
    2: (torch.conv2d, _ATEN.conv2d.default),
    3: (torch.conv3d, _ATEN.conv3d.default),
}
"""By how many dimensions are convolved over: what models call, and what passes put in."""


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A call of ``conv2d`` or ``conv3d``: of a batch, with padding in numbers."""

    node: Node
    x: Node
    weight: Node
    bias: Node | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @classmethod
    def of(cls, node: Node) -> "Convolution":
        """Read a call.

        Raises:
            UnfitError: it is another call than described above.
        """
        dimensions = next(n for n, targets in _TARGETS.items() if node.target in targets)
        given: dict[str, Any] = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
        x, weight, bias = given["input"], given["weight"], given.get("bias")
        for each in (node, *node.all_input_nodes):
            if not is_ordinary(value_of(each)):
                raise UnfitError(f"{each} is not an ordinary tensor that is known")
        if value_of(x).dim() != 2 + dimensions:
            raise UnfitError("its input is no batch")
        return cls(
            node=node,
            x=x,
            weight=weight,
            bias=bias,
            stride=_numbers(given.get("stride", 1), dimensions),
            padding=_numbers(given.get("padding", 0), dimensions),
            dilation=_numbers(given.get("dilation", 1), dimensions),
            groups=given.get("groups", 1),
        )

    @property
    def how(self) -> tuple[list[int], list[int], list[int], int]:
        """Stride, padding, dilation and groups."""
        return self.stride, self.padding, self.dilation, self.groups


def is_convolution(node: Node, dimensions: int = 2) -> bool:
    """Tell whether a node convolves over so many dimensions."""
    return node.op == "call_function" and node.target in _TARGETS[dimensions]


def found_in(graph: Graph, *dimensions: int) -> list[Node]:
    """Give the calls that convolve over so many dimensions, in their order."""
    return [x for x in graph.nodes if any(is_convolution(x, n) for n in dimensions)]


def _numbers(value: Any, dimensions: int) -> list[int]:
    if isinstance(value, int):
        return [value] * dimensions
    if isinstance(value, str) or not all(isinstance(x, int) for x in value):
        raise UnfitError(f"its stride, padding or dilation is {value!r}, not in numbers")
    return list(value) * (dimensions // len(value))
