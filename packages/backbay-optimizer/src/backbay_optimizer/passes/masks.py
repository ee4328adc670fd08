"""Replace attention masks that are the same in every call by what attention knows by name.

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
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from backbay.graph.constant import NotConstantError, constant_graph, forget_written, hand_over
from backbay.graph.layouts import Layouts
from backbay.graph.values import value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Rewrite
from backbay_optimizer.passes import attention, mask_kinds
from backbay_optimizer.passes.mask_kinds import Window


@dataclass(frozen=True, kw_only=True)
class ConstantMasks(Rewrite[Call]):
    """Take constant masks away from attention; works on Dynamo's graph."""

    summary = "attention without masks that are causal, or hide nothing, in every call"
    targets = attention.TARGETS
    parameters = attention.PARAMETERS
    sources = (attention, mask_kinds)
    in_checkpoints = True
    is_timed = False
    removes_dead_code = True  # what made the masks

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Rewrite a graph, which may be a part of a model that is cut apart."""
        forget_written(graph_module.graph)
        count = super().run(graph_module, context)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for node in graph_module.graph.output_node().all_input_nodes:
                if isinstance(value_of(node), torch.Tensor):
                    with contextlib.suppress(NotConstantError):
                        most = mask_kinds.MOST_BYTES
                        made = constant_graph(graph_module, node, most_bytes=most)
                        hand_over(value_of(node), made)
        return count

    def replacement(self, site: Call, context: PassContext) -> Node | None:
        """Return attention without the mask, and with keys that are not repeated."""
        node, given = site.node, dict(site.given)
        kind = mask_kinds.kind_in(context, given)
        if isinstance(kind, Window):
            raise NotApplicable(f"the mask is neither causal nor empty: it is {kind}")
        given.pop("attn_mask", None)
        if kind == "causal":
            given["is_causal"] = True  # with any other mask it is as it was
        single = attention.unrepeated(node, given)
        if single is None and kind is None:
            return None
        if single is not None:
            given |= {**single, "enable_gqa": True}
        tensors = tuple(given.pop(x) for x in ("query", "key", "value"))
        layouts = context.kept(Layouts, Layouts)
        return attention.call_instead(node, attention.target_of(node), tensors, given, layouts)

    def is_alike(self, old: Node, new: Node) -> bool:  # noqa: ARG002 (it has been seen to)
        """Whether a new node may stand for the old one: it may, or was not put in."""
        return True


constant_masks = ConstantMasks()
