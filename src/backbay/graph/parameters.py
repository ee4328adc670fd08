"""Which inputs of Dynamo's graph are parameters and buffers of the model, and are only read."""

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from backbay.graph.aliases import Memory
from backbay.graph.values import storages, value_of


def is_parameter(node: Node, memory: Memory) -> bool:
    """Tell whether a node is a parameter or buffer that the graph does not write.

    A plain tensor, that is, whose sizes are numbers: no distributed one, no other subclass.
    """
    # Dynamo's own mark: torch has no public one for what it holds constant from call to call.
    marks = node.meta.get("tensor_dict") or {}
    if node.op != "placeholder" or not marks.get("_dynamo_static_input_type"):
        return False
    return is_plain(value_of(node)) and not memory.mutated(node) and storages(node) is not None


def is_plain(value: object) -> bool:
    """Tell whether a fake value is a tensor with memory of its own kind, in sizes known by now."""
    if type(value) is not FakeTensor or value.layout != torch.strided:
        return False
    return all(isinstance(x, int) for x in (*value.shape, *value.stride(), value.storage_offset()))
