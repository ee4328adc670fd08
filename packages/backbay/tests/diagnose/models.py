"""Workloads with one defect each, and one with none: loaded by reference."""

import torch


class Printing(torch.nn.Module):
    """Prints in a loop."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
            print("a layer is done")
        return x


class Reading(torch.nn.Module):
    """Reads a value."""

    def __init__(self):
        super().__init__()
        self.lift = torch.nn.Linear(8, 8)

    def forward(self, x):
        h = self.lift(x)
        scale = h.abs().max().item()
        return (h / scale).sin()


class Drawing(Reading):
    """Reads a value, and draws random numbers."""

    def forward(self, x):
        return super().forward(x) + torch.rand_like(x)


class Caching(torch.nn.Module):
    """Keeps all that it has seen."""

    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(1, 8)

    def forward(self, x):
        self.seen = torch.cat([self.seen, x])
        return self.seen.sum(0)


class Counting(torch.nn.Module):
    """Computes with a Python number that changes at every call."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.lift = torch.nn.Linear(8, 8)

    def forward(self, x):
        self.calls += 1
        return self.lift(x) * self.calls


class Varying(torch.nn.Module):
    """Meets other batches."""

    def __init__(self):
        super().__init__()
        self.lift = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.lift(x).relu()


class Branching(torch.nn.Module):
    """Branches on values: nobody but its author can change that."""

    def forward(self, x):
        if x.sum() > 0:
            return x.sin()
        return x.cos()


class Convolving(torch.nn.Module):
    """Two convolutions, and what is between them."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3)
        self.second = torch.nn.Conv2d(8, 8, 3)

    def forward(self, x):
        return self.second(self.first(x).relu())


class Raising(torch.nn.Module):
    """Raises."""

    def forward(self, x):
        return x.view(7)


def _made(model):
    return model.eval(), (torch.randn(4, 8),)


def printing():
    return _made(Printing())


def reading():
    return _made(Reading())


def drawing():
    return _made(Drawing())


def caching():
    return _made(Caching())


def counting():
    return _made(Counting())


def varying():
    return _made(Varying())


def branching():
    return _made(Branching())


def convolving():
    return Convolving().eval(), (torch.randn(2, 3, 16, 16),)


def raising():
    return _made(Raising())


def clean():
    """One size, one graph: there is nothing to fix."""
    return _made(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
