"""An attention mask that is the same in every call is not handed over: attention knows it by name.

::

    before:  keep = torch.arange(8)[:, None] >= torch.arange(8)
             F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    after:   F.scaled_dot_product_attention(q, k, v, is_causal=True)

Models of transformers hand over a dense mask under torch.compile, however plain it is; a kernel
that knows it to be causal computes half, and reads none. The mask is computed here, when the graph
is compiled, and compared with what ``is_causal`` means, element by element. One that depends on an
input, a parameter or a symbolic size is left alone: nothing is guessed. Layers under activation
checkpointing are looked into, and a mask that they are handed is looked up outside; so is one that
a part of a model was handed by an earlier part, where DistributedDataParallel cuts it apart.

Once the mask is gone, keys and values that were repeated for groups of queries are handed over
unrepeated, where the kernels take that (``enable_gqa``).
"""

import contextlib
from typing import Any

import torch
from torch.fx import GraphModule, Node

from backbay.graph import handed
from backbay.graph.aliases import Memory
from backbay.graph.checkpoints import with_bodies
from backbay.graph.constant import NotConstantError, constant_graph, constant_value
from backbay.graph.match import NearMiss
from backbay.graph.put import exchange
from backbay.graph.values import propagate, value_of
from backbay.kit.passes import PassContext, graph_pass
from backbay.passes import attention, grouped_heads
from backbay.passes.dead_code import remove_dead_code

MOST_BYTES = 2**31
"""Of a tensor that is made to compute a mask: 32,768 queries and keys, and two sequences."""


@graph_pass(level="torch", sources=(attention, grouped_heads))
def constant_masks(graph_module: GraphModule, context: PassContext) -> int:
    """Take constant masks away from attention; works on Dynamo's graph.

    ::

        before:  F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(8, 8).tril() > 0)
        after:   F.scaled_dot_product_attention(q, k, v, is_causal=True)
    """
    handed.forget_written(graph_module.graph)
    known: dict[Any, str] = {}
    total = 0
    for one in with_bodies(graph_module):
        count = 0
        for node in attention.calls(one):
            try:
                count += _rewritten(graph_module, node, known)
            except NotConstantError as error:
                context.near.append(NearMiss("constant_masks", node, str(error)))
        if count:
            remove_dead_code.run(one, context)  # what made the masks
            one.recompile()
        total += count
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _hand_over(graph_module)
    return total


def _rewritten(graph_module: GraphModule, node: Node, known: dict[Any, str]) -> bool:
    given = attention.arguments(node)
    mask = given.pop("attn_mask", None)
    if isinstance(mask, Node):
        key = (mask, *_lengths(given))
        if key not in known:
            value = constant_value(graph_module, mask, most_bytes=MOST_BYTES)
            known[key] = kind_of(value, *_lengths(given))
        given["is_causal"] = known[key] == "causal"
    elif mask is not None:
        return False
    single = grouped_heads.unrepeated(node, given)
    if single is None and mask is None:
        return False
    _put(node, given if single is None else {**given, **single, "enable_gqa": True})
    return True


def _hand_over(graph_module: GraphModule) -> None:
    """Note the constants that this part of a model, which is cut apart, makes for other parts."""
    for node in graph_module.graph.output_node().all_input_nodes:
        if isinstance(value_of(node), torch.Tensor):
            with contextlib.suppress(NotConstantError):
                made = constant_graph(graph_module, node, most_bytes=MOST_BYTES)
                handed.hand_over(value_of(node), made)


def _lengths(given: dict[str, Any]) -> tuple[int, int]:
    """Give how many queries and keys there are.

    Raises:
        NotConstantError: that is not known before the graph runs.
    """
    lengths = tuple(value_of(given[x]).shape[-2] for x in ("query", "key"))
    if not all(isinstance(x, int) for x in lengths):
        raise NotConstantError("how many queries and keys there are is a symbol")
    return lengths


def kind_of(mask: Any, queries: int, keys: int) -> str:
    """Tell what a mask is: ``causal``, or ``none`` where it hides nothing.

    Args:
        mask: (..., queries, keys), or what broadcasts to it; boolean (true: is looked at) or
            floating-point (added to the scores).
        queries: how many queries attention has.
        keys: how many keys.

    Raises:
        NotConstantError: it is neither.
    """
    if not isinstance(mask, torch.Tensor) or mask.dim() < 1:
        raise NotConstantError("the mask is no tensor of queries and keys")
    seen = _looked_at(mask)
    if bool(seen.all()):
        return "none"
    if queries != keys:
        raise NotConstantError("the mask hides something, and there are more keys than queries")
    causal = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    if seen.shape[-2:] == causal.shape and not bool((seen != causal).any()):
        return "causal"
    raise NotConstantError(f"the mask is neither causal nor empty: it {_described(seen)}")


def _looked_at(mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype == torch.bool:
        return mask
    lowest = mask == torch.finfo(mask.dtype).min  # what a model adds for minus infinity
    seen = mask == 0
    if not bool((seen | lowest | mask.isneginf()).all()):
        raise NotConstantError("the mask is a bias: it adds other numbers than zero")
    return seen


def _described(seen: torch.Tensor) -> str:
    share = seen.float().mean().item()
    return f"lets {share:.0%} of all pairs through"


def _put(node: Node, given: dict[str, Any]) -> None:
    """Call attention with other arguments.

    Raises:
        NotConstantError: the caller would see that.
    """
    tensors = tuple(given.pop(x) for x in ("query", "key", "value"))
    with node.graph.inserting_before(node):
        made = node.graph.create_node(node.op, node.target, tensors, given)
    propagate(made, node)
    if value_of(made).stride() != value_of(node).stride() and Memory(node.graph).returned(node):
        node.graph.erase_node(made)
        raise NotConstantError("the caller gets its result, which would be laid out otherwise")
    exchange(node, made)
