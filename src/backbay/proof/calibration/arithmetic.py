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
    """Adds up partial sums, each rounded to the working dtype, as a GPU's split-K kernel does."""

    parts = 4

    def matmul(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Multiply slices of the inner dimension, and add the products."""
        slices = zip(left.chunk(self.parts, -1), right.chunk(self.parts, -2), strict=True)
        products = [x @ y for x, y in slices]
        return torch.stack([x.float() if x.element_size() < 4 else x for x in products]).sum(0).to(  # noqa: PLR2004
            left.dtype
        )

    def total(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Sum slices, and add the sums."""
        return torch.stack([x.sum(dim) for x in value.chunk(self.parts, dim)]).sum(0)


class Sequential(Arithmetic):
    """Adds one by one, where eager adds in a tree: the worst order that is still honest."""

    def total(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Sum from first to last, in float32 at least."""
        wide = value.float() if value.element_size() < 4 else value  # noqa: PLR2004
        total = torch.zeros_like(wide.select(dim, 0))
        for part in wide.unbind(dim):
            total = total + part
        return total.to(value.dtype)


class Atomics(Arithmetic):
    """Adds by scattering into one place, as a GPU's atomics do: in no particular order."""

    def total(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Sum by index_add, whose order is not defined on a GPU."""
        value = value.movedim(dim, 0)
        target = torch.zeros_like(value[:1], dtype=torch.float32).to(
            value.dtype if value.element_size() >= 4 else torch.float32  # noqa: PLR2004
        )
        index = torch.zeros(value.shape[0], dtype=torch.int64, device=value.device)
        return target.index_add(0, index, value.to(target.dtype))[0].to(value.dtype)


HONEST: dict[str, Callable[[], Arithmetic]] = {
    "reversed order": Reversed,
    "split-K": SplitK,
    "sequential sums": Sequential,
    "atomics": Atomics,
}
