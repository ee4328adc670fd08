"""Backends with one fault each, and a model in which each must be found where it is."""

import ctypes
import operator
import time

import torch
from torch._dynamo.backends.common import aot_autograd


class Attention(torch.nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.wq, self.wk, self.wv = (torch.nn.Linear(width, inner) for _ in range(3))
        self.out = torch.nn.Linear(inner, width)

    def forward(self, x):
        mixed = torch.softmax(self.wq(x) @ self.wk(x).mT, dim=-1) @ self.wv(x)
        return self.out(mixed)


class Gate(torch.nn.Module):
    """Has operators of its own, beside the module that it calls."""

    def __init__(self, width):
        super().__init__()
        self.lift = torch.nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.lift(x))


class Sine(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x)


class Cosine(torch.nn.Module):
    def forward(self, x):
        return torch.cos(x)


class Block(torch.nn.Module):
    def __init__(self, width, inner, middle):
        super().__init__()
        self.attn = Attention(width, inner)
        self.middle = middle

    def forward(self, x):
        return self.middle(x + self.attn(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        waves = torch.nn.Sequential(Sine(), torch.nn.Linear(16, 16), Cosine())
        self.layers = torch.nn.ModuleList([Block(16, 8, Gate(16)), Block(16, 24, waves)])
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def model():
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 6, 16),)


def mean_square(output):
    return output.square().mean()


def bent():
    """Return the least model in which a module other than the first has a tanh."""
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), (torch.randn(3, 4),)


class Opaque(torch.nn.Module):
    @torch._dynamo.disable
    def forward(self, x):
        return x + 1


def nothing_captured():
    return Opaque(), (torch.ones(4),)


class Rounded(torch.nn.Module):
    """Has nothing to train."""

    def forward(self, x):
        return x + 1


class Counting(torch.nn.Module):
    """Writes into an input."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, positions):
        result = self.linear(x) * positions.float()
        positions.add_(1)
        return result


def counting_inputs():
    return Counting(), (torch.randn(3, 4), torch.arange(12).view(3, 4))


def of_whole_numbers():
    return Rounded(), (torch.arange(4),)


def raising():
    raise ZeroDivisionError("the model's own mistake")


def honest(graph_module, example_inputs):
    return graph_module.forward


def _changed(graph_module, target, change):
    """Put another operator after each call of a function."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and node.target is target:
            with graph_module.graph.inserting_after(node):
                new = graph_module.graph.call_function(*change(node))
            node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    graph_module.recompile()
    return graph_module.forward


def wrong_tanh(graph_module, example_inputs):
    """Is off by one part in a thousand after each tanh: only `Gate` has one."""
    return _changed(graph_module, torch.tanh, lambda node: (operator.mul, (node, 1.001)))


def adds_two(graph_module, example_inputs):
    """Counts what it writes by two."""
    for node in graph_module.graph.nodes:
        if node.op == "call_method" and node.target == "add_":
            node.args = (node.args[0], 2)
    graph_module.recompile()
    return graph_module.forward


def _calls(graph_module):
    return {node.target for node in graph_module.graph.nodes if node.op == "call_function"}


def wrong_across(graph_module, example_inputs):
    """Takes the sine for another one where a graph has a cosine, too: no module has both."""
    if not {torch.sin, torch.cos} <= _calls(graph_module):
        return graph_module.forward
    return _changed(graph_module, torch.sin, lambda node: (operator.mul, (node, 1.01)))


def raises_at_tanh(graph_module, example_inputs):
    if torch.tanh in _calls(graph_module):
        raise NotImplementedError("no kernel for tanh")
    return graph_module.forward


def crashes_at_tanh(graph_module, example_inputs):
    if torch.tanh in _calls(graph_module):
        ctypes.string_at(0)
    return graph_module.forward


def hangs(graph_module, example_inputs):
    time.sleep(3600)


def _forward(graph_module, example_inputs):
    return graph_module


def _backward(graph_module, example_inputs):
    """Scale the gradient of the one weight of shape (24, 16) that is a query's."""
    seen = [0]

    def call(*args):
        results = list(graph_module(*args))
        weights = [i for i, x in enumerate(results) if _is_weight(x)]
        for i in weights[:1]:  # parameters come in the order in which they are used
            results[i] = results[i] * 1.01
        seen[0] += 1
        return results

    return call


def _seeding(graph_module, example_inputs):
    """Seed where Dynamo does not put the state back, as it does around forward's compilation."""
    torch.manual_seed(0)
    return graph_module


seeds_when_backward_is_compiled = aot_autograd(fw_compiler=_forward, bw_compiler=_seeding)


def _backward_into_one_buffer(graph_module, example_inputs):
    buffers = {}

    def call(*args):
        results = graph_module(*args)
        for i, value in enumerate(results):
            if value is not None:
                buffers.setdefault(i, torch.empty_like(value)).copy_(value)
        return [None if x is None else buffers[i].view(x.shape) for i, x in enumerate(results)]

    return call


returns_one_buffer_of_gradients = aot_autograd(
    fw_compiler=_forward, bw_compiler=_backward_into_one_buffer
)


def _is_weight(value):
    return isinstance(value, torch.Tensor) and value.shape == (24, 16)


wrong_gradient = aot_autograd(fw_compiler=_forward, bw_compiler=_backward)


def wrong_for_another_batch(graph_module, example_inputs):
    """Is wrong in what it compiles for a size that is a symbol."""
    if not any(isinstance(x, torch.SymInt) for x in example_inputs):
        return graph_module.forward
    return _changed(graph_module, torch.tanh, lambda node: (operator.mul, (node, 1.001)))


def makes_sizes_constant(graph_module, example_inputs):
    for value in example_inputs:
        if isinstance(value, torch.SymInt):
            int(value)
    return graph_module.forward


def freezes_parameters(graph_module, example_inputs):
    """Goes on with the parameters of its first call; gradients reach those that there are."""
    first = {}

    def call(*args):
        given = list(args)
        for i, value in enumerate(args):
            if isinstance(value, torch.nn.Parameter):
                stale = first.setdefault(i, value.detach().clone())
                given[i] = stale + (value - value.detach())
        return graph_module(*given)

    return call
