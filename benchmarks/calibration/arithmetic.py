"""Honest ways to add up: every one of them a kernel that somebody ships."""

from collections.abc import Callable

import torch

Sum = Callable[[torch.Tensor, int], torch.Tensor]
"""Sum over one dimension."""


class Arithmetic:
    """Matrix products and sums as eager computes them; subclasses compute them otherwise."""

    def matmul(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Multiply (..., m, k) by (..., k, n)."""
        return left @ right

    def total(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Sum over one dimension."""
        return value.sum(dim)

    def mean(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Average over one dimension, which is kept with size one."""
        return (self.total(value, dim) / value.shape[dim]).unsqueeze(dim)


class Reversed(Arithmetic):
    """Adds up in the opposite order."""

    def matmul(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Multiply, the inner dimension back to front."""
        return left.flip(-1) @ right.flip(-2)

    def total(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Sum, last first."""
        return value.flip(dim).sum(dim)


class SplitK(Arithmetic):
    """Adds up partial sums, each rounded to the working dtype, as a GPU's split-K kernel may."""

    parts = 4

    def matmul(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Multiply slices of the inner dimension, and add the products."""
        slices = zip(left.chunk(self.parts, -1), right.chunk(self.parts, -2), strict=True)
        return torch.stack([_wide(x @ y) for x, y in slices]).sum(0).to(left.dtype)

    def total(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Sum slices, and add the sums."""
        return torch.stack([x.sum(dim) for x in value.chunk(self.parts, dim)]).sum(0)


class Sequential(Arithmetic):
    """Adds one by one, where eager adds in a tree: the worst order that is still honest."""

    def total(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Sum from first to last, in float32 at least."""
        wide = _wide(value)
        total = torch.zeros_like(wide.select(dim, 0))
        for part in wide.unbind(dim):
            total = total + part
        return total.to(value.dtype)


class Atomics(Arithmetic):
    """Adds by scattering into one place, as a GPU's atomics do: in no particular order."""

    def total(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Sum by index_add, whose order is not defined on a GPU."""
        wide = _wide(value).movedim(dim, 0)
        index = torch.zeros(wide.shape[0], dtype=torch.int64, device=value.device)
        return torch.zeros_like(wide[:1]).index_add(0, index, wide)[0].to(value.dtype)


def _wide(value: torch.Tensor) -> torch.Tensor:
    """Return a value in the precision that kernels add up in: float32 at least."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


HONEST: dict[str, Callable[[], Arithmetic]] = {
    "reversed order": Reversed,
    "split-K": SplitK,
    "sequential sums": Sequential,
    "atomics": Atomics,
}
