"""What a two-dimensional convolution of Dynamo's graph is called with, and whether it is learnt."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from backbay.graph.values import is_ordinary, value_of
from backbay.passes.unfit import UnfitError

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_RANK = 4


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A call of ``conv2d``: of a batch, with padding in numbers, in inference."""

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
        given: dict[str, Any] = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
        x, weight, bias = given["input"], given["weight"], given.get("bias")
        for each in (node, *node.all_input_nodes):
            if not is_ordinary(value_of(each)):
                raise UnfitError(f"{each} is not an ordinary tensor that is known")
        if value_of(node).requires_grad:
            raise UnfitError("its gradient is wanted")
        if value_of(x).dim() != _RANK:
            raise UnfitError("its input is no batch")
        return cls(
            node=node,
            x=x,
            weight=weight,
            bias=bias,
            stride=_pair(given.get("stride", 1)),
            padding=_pair(given.get("padding", 0)),
            dilation=_pair(given.get("dilation", 1)),
            groups=given.get("groups", 1),
        )

    @property
    def how(self) -> tuple[list[int], list[int], list[int], int]:
        """Stride, padding, dilation and groups."""
        return self.stride, self.padding, self.dilation, self.groups


def found_in(graph: Graph) -> Iterator[Node]:
    """Give the calls of ``conv2d``, in their order."""
    yield from graph.find_nodes(op="call_function", target=torch.conv2d)


def _pair(value: Any) -> list[int]:
    if isinstance(value, int):
        return [value, value]
    if isinstance(value, str) or not all(isinstance(x, int) for x in value):
        raise UnfitError(f"its stride, padding or dilation is {value!r}, not in numbers")
    return list(value) * (2 // len(value))
