"""Cases, and backends that fail them in one way each, for repros to be made of."""

import ctypes
import operator
import time

import torch

from backbay_conformance.case import Collection

contract = Collection("contract", "repro")


def thirty(x, y):
    for number in range(9):
        x = torch.cos(x) + y / (number + 1)
        y = torch.sin(y) - x
    z = torch.tanh(x)
    for _ in range(8):
        z = torch.relu(z + 1) * 0.9
    return z, y


@contract.case()
def tanh_in_the_middle_is_wrong(subject):
    subject.agrees(thirty, torch.randn(4, 6), torch.randn(4, 6))


@contract.case(needs={"training"})
def gradient_of_tanh_is_wrong(subject):
    subject.agrees(thirty, torch.randn(4, 6), torch.randn(4, 6), train=True)


@contract.case()
def second_call_gives_what_the_first_gave(subject):
    def double(x):
        return x * 2

    call = subject.compile(double)
    call(torch.ones(3))
    with subject.must("fail_behaviour", "second call"):
        assert torch.equal(call(torch.zeros(3)), torch.zeros(3))


Tensors = tuple[torch.Tensor, ...]


@contract.agrees(lambda s: (torch.linspace(-1, 1, 5, device=s.device), torch.ones(5)), calls=2)
def program_of_two_inputs(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    """Name in its signature what its file does not have."""
    return torch.tanh(x) + y, y * 2


def long(x):
    for number in range(30):
        x = torch.sin(x) + torch.cos(x) / (number + 1)
    return torch.tanh(x)


@contract.case()
def a_long_graph_is_wrong(subject):
    subject.agrees(long, torch.randn(4, 6))


CASES = {x.id: x for x in contract}


def honest(graph_module, example_inputs):
    return graph_module.forward


def _has_tanh(graph_module):
    return any(node.target is torch.tanh for node in graph_module.graph.nodes)


def wrong_tanh(graph_module, example_inputs):
    for node in list(graph_module.graph.nodes):
        if node.target is torch.tanh:
            with graph_module.graph.inserting_after(node):
                new = graph_module.graph.call_function(operator.mul, (node, 1.01))
            node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    graph_module.recompile()
    return graph_module.forward


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient * 1.01


def _wrong_backward(x):
    return _WrongBackward.apply(x)


def wrong_gradient_of_tanh(graph_module, example_inputs):
    for node in list(graph_module.graph.nodes):
        if node.target is torch.tanh:
            with graph_module.graph.inserting_after(node):
                new = graph_module.graph.call_function(_wrong_backward, (node,))
            node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
    graph_module.recompile()
    return graph_module.forward


def raises_at_tanh(graph_module, example_inputs):
    if _has_tanh(graph_module):
        raise NotImplementedError("no kernel for tanh in a graph of 12 nodes")
    return graph_module.forward


def crashes_at_tanh(graph_module, example_inputs):
    if _has_tanh(graph_module):
        ctypes.string_at(0)
    return graph_module.forward


def remembers(graph_module, example_inputs):
    found = []

    def call(*args):
        if not found:
            found.append(graph_module(*args))
        return found[0]

    return call


def slowly_wrong_tanh(graph_module, example_inputs):
    time.sleep(0.5)
    return wrong_tanh(graph_module, example_inputs)
