"""A result that is returned detached, too: if it is a view, what AOTAutograd returns is wrong.

    before:  y = (x * 2).t(); return y, y.detach()
    after:   y = (x * 2).t().clone(); return y, y.detach()

It makes the second of the two from the first, by all the views that led to it: ``y`` is transposed
once more (``docs/upstream.md``). A rewrite may make a view of what was none: slices of a merged
product, or an image with its channels last.
"""

import operator
from collections.abc import Iterator

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from backbay.graph.aliases import Memory
from backbay.graph.rewrite import call_before, layout
from backbay.graph.values import computed, refresh, storages, value_of, wants_gradient

_TORCHS_OWN = {"aten", "prims"}


def copy_detached(graph: Graph) -> int:
    """Copy such results of one of Dynamo's graphs; return how many.

    A result keeps sharing memory with what else is returned. One that shares it with an input, that
    is written in place, or that another result does not come from, is left as it is; and one with
    gaps, or whose numbers share memory, since a copy has neither.
    """
    found = list(_found(graph))
    for node in found:
        copied = call_before(node.next, torch.clone, node)
        node.replace_all_uses_with(copied)
        copied.args = (node,)
        refresh(node, copied)
    return len(found)


def _found(graph: Graph) -> Iterator[Node]:
    (output,) = graph.find_nodes(op="output")
    returned = [x for x in output.all_input_nodes if isinstance(value_of(x), torch.Tensor)]
    detached = {_piece(x) for x in returned if not wants_gradient(x)}
    for node in returned:
        if not wants_gradient(node) or _piece(node) not in detached or not _may_be_view(node):
            continue
        others = {x for x in returned if _shares(node, x)}
        is_free = others <= _reached(node) and _is_only_read(graph, node)
        if is_free and _is_laid_out_as_its_copy(graph, node):
            yield node


def _piece(node: Node) -> tuple[frozenset[int] | None, str]:
    """Return which piece of memory a tensor is, and in which form."""
    value = value_of(node)  # as text: comparing symbols would guard on the answer
    form = f"{value.shape} {value.stride()} {value.storage_offset()} {value.dtype}"
    return storages(node), form


def _shares(one: Node, other: Node) -> bool:
    own, theirs = storages(one), storages(other)
    return own is not None and theirs is not None and not own.isdisjoint(theirs)


def _may_be_view(node: Node) -> bool:
    """Return whether a value is a view, or of an operator that compilers may see through."""
    made = node.args[0] if node.target is operator.getitem else node
    target = made.target if isinstance(made, Node) else None
    others = isinstance(target, OpOverload) and target.namespace not in _TORCHS_OWN
    return bool(value_of(node)._is_view()) or others  # noqa: SLF001 (its only home)


def _is_laid_out_as_its_copy(graph: Graph, node: Node) -> bool:
    """Return whether nobody can tell a copy by its strides, or by what lies around it."""
    value = value_of(node)
    if layout(computed(torch.clone, value)) != layout(value):
        return False
    bytes_read, bytes_there = value.numel() * value.element_size(), value.untyped_storage().nbytes()
    # As text: comparing symbols would guard on the answer.
    if (str(value.storage_offset()), str(bytes_read)) == ("0", str(bytes_there)):
        return True
    return not any("as_strided" in str(x.target) for x in graph.nodes)


def _reached(node: Node) -> set[Node]:
    found, waiting = {node}, [node]
    while waiting:
        further = [x for x in waiting.pop().users if x not in found]
        found.update(further)
        waiting += further
    return found


def _is_only_read(graph: Graph, node: Node) -> bool:
    held = [*graph.find_nodes(op="placeholder"), *graph.find_nodes(op="get_attr")]
    return not Memory(graph).mutated(node) and not any(_shares(node, x) for x in held)
