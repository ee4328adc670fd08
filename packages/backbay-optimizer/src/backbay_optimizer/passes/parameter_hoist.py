"""Compute what depends on nothing but parameters and buffers once, apart from the graph.

::

    before:  F.conv2d(x, (w - w.mean()) / w.std())
    after:   (standardised,) = self._hoisted(w); F.conv2d(x, standardised)

The pass has a backend of the kit take the call out of the graph, and call it again only when a
parameter has changed: see `hoisting`. Any other backend just runs it. So a model's weight
standardisation, tables of relative positions, folded batch norms and merged weights cost a
comparison a call.

In inference only. Views stay in the graph; so does what the caller gets or something writes, what
is random, what stands inside autocast, and what is much larger than that it is made of.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from backbay.graph import aliases
from backbay.graph.aliases import Memory, is_parameter, is_plain
from backbay.graph.effects import changes_state, is_pure, is_uninitialised
from backbay.graph.region import between, inputs_of, taken_out
from backbay.graph.values import storages, value_of
from backbay.kit.codegen import Codegen
from backbay.kit.passes import Pass, PassContext
from backbay_optimizer.passes.hoisting import HOISTED, compile_apart, put_call

MOST_GROWTH = 2
"""Times the bytes of its parameters that a result may have: a cast from 16 bits to 32 has that."""
FREE_BYTES = 2**23
"""Of a result, however small its parameters: what an H200 reads, at 4.25 TB/s, in the 2
microseconds that one kernel less saves."""


@dataclass(frozen=True, kw_only=True)
class ParameterHoist(Pass):
    """Put what only parameters decide into a module, which is called first; in inference."""

    summary = (
        "what only parameters decide is computed once, in inference, and anew when the version of "
        "one changes; a write through .data changes none and goes unseen"
    )
    sources = (aliases,)
    hoists = True

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Hoist; return how many results."""
        if torch.is_grad_enabled() or hasattr(graph_module, HOISTED):
            return 0
        context.name, search = context.name or self.name, _Search(graph_module.graph)
        ends = search.ends(context)
        if not ends:
            return 0
        inside = {x for end in ends for x in between(end, ())}
        put_call(graph_module, taken_out(inside, ends), inputs_of(inside), ends)
        for node in reversed(search.known):
            if not node.users and node.op != "placeholder":
                graph_module.graph.erase_node(node)
        graph_module.recompile()
        return len(ends)

    def wrap_codegen(self, generate: Codegen) -> Codegen:
        """Return a code generator that computes what is hoisted beside the graph."""
        return functools.partial(compile_apart, generate)


parameter_hoist = ParameterHoist()


class _Search:
    """What of a graph only parameters decide, and where that ends."""

    def __init__(self, graph: Graph) -> None:
        self._memory = Memory(graph)
        self.known: dict[Node, frozenset[Node]] = {}
        """Every node that no input decides, in order, to the parameters that it is made of."""
        self._owners: dict[int, Node] = {}
        """Each memory that such a node makes, to the first tensor in it: the others view that."""
        for node in _outside_modes(graph):
            self._take(node)

    def _take(self, node: Node) -> None:
        if is_parameter(node, self._memory):
            self.known[node] = frozenset({node})
        elif self._is_decided(node):
            self.known[node] = frozenset().union(*(self.known[x] for x in node.all_input_nodes))
        else:
            return
        if isinstance(value_of(node), torch.Tensor):
            for storage in storages(node) or ():
                self._owners.setdefault(storage, node)

    def _is_decided(self, node: Node) -> bool:
        if node.op not in {"call_function", "call_method"} or not is_pure(node):
            return False
        if is_uninitialised(node) or self._memory.mutated(node):
            return False
        values = pytree.tree_leaves(value_of(node))
        if not values or not all(map(is_plain, values)):
            return False
        is_view = (storages(node) or set()) <= self._owners.keys()
        # A view of a parameter asks for a gradient, also where none is recorded.
        if any(x.requires_grad for x in values) and not is_view:
            return False
        return all(x in self.known for x in node.all_input_nodes)

    def ends(self, context: PassContext) -> list[Node]:
        """Return the nodes that are computed apart; what is behind them stays in the graph."""
        found = dict[Node, None]()
        waiting = [x for x in self.known if any(y not in self.known for y in x.users)]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            reason = self._refusal(node)
            if reason is None:
                found[node] = None
                continue
            if reason:
                context.note(node, reason)
            further = [x for x in node.all_input_nodes if x not in seen]
            waiting += further
            seen.update(further)
        return [x for x in self.known if x in found]

    def _refusal(self, node: Node) -> str | None:
        """Return why a node is not computed apart; None if it is, nothing if that is no loss."""
        value, made_of = value_of(node), self.known[node]
        if not made_of or not isinstance(value, torch.Tensor) or node in made_of:
            return ""
        if any(self._owners[x] is not node for x in storages(node) or ()):
            return ""  # a view
        if self._memory.returned(node):
            return "the caller gets it, or a view of it"
        most = max(MOST_GROWTH * sum(value_of(x).nbytes for x in made_of), FREE_BYTES)
        if value.nbytes > most:
            return f"it has {value.nbytes >> 20} MiB, and pays up to {most >> 20}"
        return None


def _outside_modes(graph: Graph) -> Iterator[Node]:
    """Return the nodes that mean the same at the graph's beginning: outside autocast, say."""
    open_modes = 0
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        if name.startswith(("_enter", "_exit")):
            open_modes += 1 if name.startswith("_enter") else -1
        elif changes_state(node) and name != "_set_grad_enabled":  # here none is recorded anyway
            return
        elif not open_modes:
            yield node
