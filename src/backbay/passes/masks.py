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
from backbay.graph.checkpoints import with_bodies
from backbay.graph.constant import NotConstantError, constant_graph
from backbay.graph.layouts import Layouts
from backbay.graph.match import NearMiss
from backbay.graph.values import value_of
from backbay.kit.passes import PassContext, graph_pass
from backbay.passes import attention, grouped_heads, mask_kinds
from backbay.passes.dead_code import remove_dead_code
from backbay.passes.mask_kinds import Masks, Window


@graph_pass(level="torch", sources=(attention, grouped_heads, mask_kinds))
def constant_masks(graph_module: GraphModule, context: PassContext) -> int:
    """Take constant masks away from attention; works on Dynamo's graph.

    ::

        before:  F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(8, 8).tril() > 0)
        after:   F.scaled_dot_product_attention(q, k, v, is_causal=True)
    """
    handed.forget_written(graph_module.graph)
    masks, layouts = Masks(graph_module), Layouts()
    total = 0
    for one in with_bodies(graph_module):
        count = 0
        for node in attention.calls(one):
            try:
                count += _rewritten(node, masks, layouts)
            except NotConstantError as error:
                context.near.append(NearMiss("constant_masks", node, str(error)))
        if count:
            remove_dead_code.run(one, context)  # what made the masks
            one.recompile()
        total += count
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _hand_over(graph_module)
    return total


def _rewritten(node: Node, masks: Masks, layouts: Layouts) -> bool:
    given = attention.arguments(node)
    kind = masks.kind(given)
    if isinstance(kind, Window):
        raise NotConstantError(f"the mask is neither causal nor empty: it is {kind}")
    given.pop("attn_mask", None)
    if kind is not None:
        given["is_causal"] = kind == "causal"
    single = grouped_heads.unrepeated(node, given)
    if single is None and kind is None:
        return False
    _put(node, given if single is None else {**given, **single, "enable_gqa": True}, layouts)
    return True


def _hand_over(graph_module: GraphModule) -> None:
    """Note the constants that this part of a model, which is cut apart, makes for other parts."""
    for node in graph_module.graph.output_node().all_input_nodes:
        if isinstance(value_of(node), torch.Tensor):
            with contextlib.suppress(NotConstantError):
                made = constant_graph(graph_module, node, most_bytes=mask_kinds.MOST_BYTES)
                handed.hand_over(value_of(node), made)


def _put(node: Node, given: dict[str, Any], layouts: Layouts) -> None:
    """Call attention with other arguments.

    Raises:
        NotConstantError: the caller would see that.
    """
    tensors = tuple(given.pop(x) for x in ("query", "key", "value"))
    if not attention.replaced(node, attention.target_of(node), tensors, given, layouts):
        raise NotConstantError("the caller gets its result, which would be laid out otherwise")
