"""Backends with one planted fault each, and workloads that show them."""

import ctypes
import time

import torch
from torch._dynamo.backends.common import aot_autograd


def honest(graph_module, example_inputs):
    return graph_module.forward


def scaled(graph_module, example_inputs):
    """Every floating output is off by one part in a thousand."""

    def call(*args):
        return tuple(_scale(output) for output in graph_module(*args))

    return call


def one_thread(graph_module, example_inputs):
    """Right, and has all in its process compute with one thread."""
    torch.set_num_threads(1)
    return graph_module.forward


def as_told(graph_module, example_inputs, *, mode=None, options=None):
    """Wrong by default, right if both its mode and its options ask for it."""
    right = (mode, options) == ("careful", {"factor": 1})
    return graph_module.forward if right else scaled(graph_module, example_inputs)


def detached(graph_module, example_inputs):
    """The right values, cut off from the autograd graph."""

    def call(*args):
        return tuple(
            output.detach() if isinstance(output, torch.Tensor) else output
            for output in graph_module(*args)
        )

    return call


def _scale(value):
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value * 1.001
    return value


def _forward_as_it_is(graph_module, example_inputs):
    return graph_module


def _backward_scaled(graph_module, example_inputs):
    def call(*args):
        return [_scale(gradient) for gradient in graph_module(*args)]

    return call


wrong_gradient = aot_autograd(fw_compiler=_forward_as_it_is, bw_compiler=_backward_scaled)


def flushes_nan(graph_module, example_inputs):
    def call(*args):
        return tuple(torch.nan_to_num(output) for output in graph_module(*args))

    return call


def raises(graph_module, example_inputs):
    raise NotImplementedError("no kernel for this graph")


def hangs(graph_module, example_inputs):
    time.sleep(3600)


def segfaults(graph_module, example_inputs):
    ctypes.string_at(0)


def dies_when_called_often(graph_module, example_inputs):
    """Right for a few calls, then takes its process down: only timing meets it."""
    calls = 0

    def call(*args):
        nonlocal calls
        calls += 1
        if calls > 24:
            ctypes.string_at(0)
        return graph_module(*args)

    return call


def nothing_captured(*args):
    """A workload that Dynamo skips whole: there is no graph to compile."""
    return Opaque(), (torch.ones(4),)


class Opaque(torch.nn.Module):
    @torch._dynamo.disable
    def forward(self, x):
        return x + 1


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


class Log(torch.nn.Module):
    def forward(self, x):
        return torch.log(x)


def small():
    return Small(), (torch.randn(64, 16),)


class Layered(torch.nn.Module):
    """A stem, four blocks of which the first is wider than the others, and a head."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Linear(16, 24)
        sizes = [(24, 16), (16, 16), (16, 16), (16, 16)]
        self.layers = torch.nn.ModuleList(Block(*size) for size in sizes)
        self.head = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Block(torch.nn.Module):
    def __init__(self, features, out):
        super().__init__()
        self.linear = torch.nn.Linear(features, out)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))


def layered():
    return Layered(), (torch.randn(64, 16),)


def plain_function():
    model = Small()

    def called(x, scale=1.0):
        return model(x) * scale

    return called, (torch.randn(64, 16),)


class Counting(Small):
    """Dynamo guards on the number, and compiles again when it is another one."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 if self.calls > 0 else 2)


def counting():
    return Counting(), (torch.randn(64, 16),)


class Broken(Small):
    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def broken():
    return Broken(), (torch.randn(64, 16),)


def with_nan():
    return Log(), (torch.randn(64, 16),)


def with_dropout():
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.3))
    return model, (torch.randn(64, 16),)


def raising():
    raise ZeroDivisionError("the model's own mistake")


def not_a_model():
    return 3


def with_batch_norm():
    """Training changes its buffers: every proof must start from the same ones."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8))
    return model, (torch.randn(64, 16),)


def different_each_time():
    generator = torch.Generator()
    generator.seed()
    return Small(), (torch.randn(64, 16, generator=generator),)


class Counter(torch.nn.Module):
    """What it returns depends on the calls before, as a cache of keys and values has it."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x):
        self.seen.add_(x.mean(0))
        return self.linear(x + self.seen)


def with_state():
    return Counter(), (torch.randn(64, 16),)


def folds_buffers(graph_module, example_inputs):
    """Takes what buffers held when it compiled for constants; it still changes them."""
    first = [
        x.detach().clone() if isinstance(x, torch.Tensor) and not x.requires_grad else None
        for x in example_inputs
    ]

    def call(*args):
        folded = [
            x if old is None or x.dim() != 1 else old.clone()
            for x, old in zip(args, first, strict=True)
        ]
        results = graph_module(*folded)
        for x, other in zip(args, folded, strict=True):
            if x is not other:
                x.copy_(other)
        return results

    return call
