"""What a convolution of images or volumes in Dynamo's graph is called with."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from backbay.graph.rewrite import bound
from backbay.graph.values import is_ordinary, value_of
from backbay.kit.passes import NotApplicable

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ATEN = torch.ops.aten
IMAGES: tuple[Any, ...] = (torch.conv2d, _ATEN.conv2d.default)
"""What models call, and what passes put in."""
VOLUMES: tuple[Any, ...] = (torch.conv3d, _ATEN.conv3d.default)
"""Likewise."""


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
            NotApplicable: it is another call than described above.
        """
        dimensions = 2 if node.target in IMAGES else 3
        given = bound(node, _NAMES)
        x, weight, bias = given["input"], given["weight"], given.get("bias")
        for each in (node, *node.all_input_nodes):
            if not is_ordinary(value_of(each)):
                raise NotApplicable(f"{each} is not an ordinary tensor that is known")
        if value_of(x).dim() != 2 + dimensions:
            raise NotApplicable("its input is no batch")
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


def _numbers(value: Any, dimensions: int) -> list[int]:
    if isinstance(value, int):
        return [value] * dimensions
    if isinstance(value, str) or not all(isinstance(x, int) for x in value):
        raise NotApplicable(f"its stride, padding or dilation is {value!r}, not in numbers")
    return list(value) * (dimensions // len(value))
