"""Models with one defect each, for ``diagnose_models.py``: loaded by reference, as a user's."""

from typing import Any

import torch

import backbay

torch.set_float32_matmul_precision("high")  # else that is a defect of each of them, on a GPU
WIDTH, ROWS = (1024, 4096) if torch.cuda.is_available() else (256, 64)
"""On a GPU as much as keeps it busy longer than the host."""


class Printing(torch.nn.Module):
    """Prints in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the last layer gives."""
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
            print("a layer is done")
        return x


class Reading(torch.nn.Module):
    """Reads a value in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input, lifted and scaled."""
        h = torch.nn.functional.gelu(self.lift(x))
        scale = h.abs().max().item()
        return (h / scale).sin()


class Caching(torch.nn.Module):
    """Keeps all that it has seen, and begins with a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = torch.nn.Linear(WIDTH, WIDTH)
        self.seen = torch.zeros(16, WIDTH)

    def _apply(self, fn: Any, recurse: bool = True) -> "Caching":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # torch's own
        self.seen = fn(self.seen)  # no buffer: its size changes
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of everything so far."""
        self.seen = torch.cat([self.seen, self.lift(x)])
        return self.seen.mean(0)


class Counting(torch.nn.Module):
    """Computes with a Python number that changes at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.lift = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input, lifted and scaled."""
        self.calls += 1
        return torch.nn.functional.gelu(self.lift(x)) / self.calls


class Varying(torch.nn.Module):
    """Meets another batch at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input, lifted."""
        return torch.nn.functional.gelu(self.lift(x))


class Convolving(torch.nn.Module):
    """Convolutions, whose weights and images have channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(64, 256, 3, padding=1)
        self.second = torch.nn.Conv2d(256, 256, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an image of as many pixels."""
        y: torch.Tensor = self.second(self.first(x).relu())
        return y


def printing() -> backbay.Workload:
    """Return a model that prints."""
    return _rows(Printing())


def reading() -> backbay.Workload:
    """Return a model that reads a value."""
    return _rows(Reading())


def caching() -> backbay.Workload:
    """Return a model with a cache that grows."""
    return _rows(Caching())


def counting() -> backbay.Workload:
    """Return a model with a number that changes."""
    return _rows(Counting())


def varying() -> backbay.Workload:
    """Return a model with the batches that it meets."""
    further: tuple[tuple[Any, dict[str, Any]], ...] = tuple(
        ((torch.randn(ROWS + x, WIDTH),), {}) for x in (3, 9)
    )
    return backbay.Workload(Varying().eval(), (torch.randn(ROWS, WIDTH),), further=further)


def convolving() -> backbay.Workload:
    """Return a model of images."""
    return backbay.Workload(Convolving().eval(), (torch.randn(32, 64, 56, 56),))


def _rows(model: torch.nn.Module) -> backbay.Workload:
    return backbay.Workload(model.eval(), (torch.randn(ROWS, WIDTH),))
