"""What a pattern is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DTYPE = torch.bfloat16
TINY = "tiny"
"""The shape that every pattern has, for machines without a GPU."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A function and what it is called with."""

    function: Callable[..., Any]
    inputs: Sequence[Tensor]
    """Those that require gradients get them where the pattern trains."""
    cotangent: Tensor | None = None
    """What backward starts from; drawn if it is not given, and one for a loss."""
    alternative: Callable[..., Any] | None = None
    """The same by what torch has ready: what a rewrite could put in its place, without a kernel."""
    alternative_inputs: Sequence[Tensor] | None = None
    """Where the alternative takes others: weights that were merged or folded beforehand."""
    flops: int | None = None
    """Where the usual count has more in it than must be computed, as for causal attention."""
    bytes_moved: int | None = None
    """Where an operand need not be read whole, as an embedding's."""


Make = Callable[..., Program]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A piece of a model, at a few shapes."""

    name: str
    make: Make
    """From a shape's numbers to the program, on the default device."""
    shapes: Mapping[str, tuple[int, ...]]
    tiny: tuple[int, ...]
    train: bool = False
    """Whether forward and backward are timed, together."""
    alternative: bool = False
    """Whether torch has something ready that could stand in its place."""

    def sizes(self, *, tiny: bool) -> list[str]:
        """Return the names of the shapes to run."""
        return [TINY] if tiny else list(self.shapes)


def program(pattern: Pattern, size: str, *, device: torch.device, seed: int) -> Program:
    """Build a pattern at a shape: the same seed gives the same bits."""
    torch.manual_seed(seed)
    with device:
        made = pattern.make(*(pattern.tiny if size == TINY else pattern.shapes[size]))
        if not pattern.train or made.cotangent is not None:
            return made
        with torch.no_grad():
            output = made.function(*made.inputs)
        drawn = torch.randn_like(output) if output.dim() else torch.ones_like(output)
    return Program(
        function=made.function,
        inputs=made.inputs,
        cotangent=drawn,
        alternative=made.alternative,
        alternative_inputs=made.alternative_inputs,
        flops=made.flops,
        bytes_moved=made.bytes_moved,
    )


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    """Draw bfloat16 numbers."""
    return (scale * torch.randn(shape)).to(DTYPE)


def leaf(*shape: int, scale: float = 1.0) -> Tensor:
    """Draw bfloat16 numbers that get a gradient."""
    return normal(*shape, scale=scale).requires_grad_()


def weight(*shape: int) -> Tensor:
    """Draw a matrix or kernel that keeps the size of what it is multiplied with."""
    fan_in = torch.Size(shape[1:]).numel()
    return kept(normal(*shape, scale=fan_in**-0.5))


def around_one(width: int) -> Tensor:
    """Draw the weight of a norm."""
    return kept((1 + 0.1 * torch.randn(width)).to(DTYPE))


def kept(tensor: Tensor) -> Tensor:
    """Return a tensor that stays where it is, as a module's do.

    CUDA graphs do not copy it, and what is made of it can be hoisted.
    """
    torch._dynamo.mark_static_address(tensor, guard=False)  # noqa: SLF001 (torch.compiler has none)
    return tensor


def on_cuda() -> bool:
    """Whether programs are built for a GPU; some of torch's operators are only there."""
    return torch.get_default_device().type == "cuda"
