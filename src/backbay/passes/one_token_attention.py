"""A step of generation attends once for a group of heads, and not to a copy of the cache for each.

::

    before:  F.scaled_dot_product_attention(q, repeat(k), repeat(v), attn_mask=mask)
    after:   F.scaled_dot_product_attention(q.reshape(b, kv_heads, group, d), k, v, mask)
                 .reshape(b, heads, 1, d)

With one query for each head, the heads of a group are as well the queries of one head: they see the
same keys, and the mask is the same for all of them. Where there is a mask, kernels do not take
groups by themselves, and keys and values are repeated in memory at every token.

A block of the kernel that takes masks computes one head of one sequence. With groups there are
fewer, and where too few are left the copies cost less than idle multiprocessors; so it is done from
a number of heads on that was measured. A mask that tells heads apart is left alone.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from backbay.graph.match import NearMiss
from backbay.graph.put import call_before, erase_between, exchange, layout
from backbay.graph.region import between
from backbay.graph.values import is_ordinary, value_of
from backbay.kit.passes import PassContext, graph_pass
from backbay.passes import attention, grouped_heads
from backbay.passes.dead_code import remove_dead_code
from backbay.passes.unfit import UnfitError, must_pay

DEVICES = ("cuda",)
DTYPES = (torch.bfloat16, torch.float16)
BLOCKS = 64
"""Heads of keys, of all sequences together, from which it is faster. Measured on an H200."""

_RANK = 4


@graph_pass(level="torch", sources=(attention, grouped_heads))
def one_token_attention(graph_module: GraphModule, context: PassContext) -> int:
    """Attend to keys and values that are not repeated, where there is one query; for CUDA.

    ::

        before:  F.scaled_dot_product_attention(q, repeat(k), repeat(v), attn_mask=mask)
        after:   F.scaled_dot_product_attention(q.reshape(2, 8, 4, 64), k, v, attn_mask=mask)
    """
    count = 0
    for node in list(attention.calls(graph_module)):
        given = attention.arguments(node)
        single = _one_for_a_group(node, given)
        if single is None:
            continue
        try:
            _check(node, given, single)
            sources = {given["query"], given["attn_mask"], *single.values()}
            must_pay(context, "one_token_attention", between(node, sources))
            _rewrite(node, given, single)
        except UnfitError as error:
            context.near.append(NearMiss("one_token_attention", node, str(error)))
            continue
        count += 1
    if count:
        remove_dead_code.run(graph_module, context)  # what repeated
        graph_module.recompile()
    return count


def _one_for_a_group(node: Node, given: Mapping[str, Any]) -> dict[str, Node] | None:
    """Give key and value of one query with a mask, one for a group; None where it is another."""
    query, mask = (value_of(given.get(x)) for x in ("query", "attn_mask"))
    if not all(is_ordinary(value_of(x)) for x in node.all_input_nodes) or mask is None:
        return None
    if query.dim() != _RANK or type(query.shape[2]) is not int or query.shape[2] != 1:
        return None
    if not given.get("enable_gqa"):
        return grouped_heads.sources(node, given)
    grouped = value_of(given["key"]).shape[1] != query.shape[1]
    return {x: given[x] for x in ("key", "value")} if grouped else None


def _check(node: Node, given: Mapping[str, Any], single: Mapping[str, Node]) -> None:
    query, mask, key = (value_of(x) for x in (given["query"], given["attn_mask"], single["key"]))
    if query.device.type not in DEVICES or query.dtype not in DTYPES:
        raise UnfitError(f"it is for {DTYPES} on CUDA: {query.dtype} on {query.device.type}")
    if value_of(node).requires_grad or given.get("dropout_p", 0.0) or given.get("is_causal"):
        raise UnfitError("its gradient is wanted, it drops elements, or it is causal, too")
    if any(str(n) != "1" for n in mask.shape[-3:-1]):
        raise UnfitError("its mask tells heads apart")
    batch, heads = query.shape[:2]
    if not all(isinstance(n, int) for n in (batch, heads, key.shape[1], query.shape[3])):
        raise UnfitError("how many sequences or heads there are is a symbol")
    if batch * key.shape[1] < BLOCKS:
        raise UnfitError(f"{batch * key.shape[1]} heads of keys leave multiprocessors idle")


def _rewrite(node: Node, given: dict[str, Any], single: Mapping[str, Node]) -> None:
    query, before, attend = given["query"], node.prev, attention.target_of(node)
    batch, heads, _, width = value_of(query).shape
    shared = value_of(single["key"]).shape[1]
    together = call_before(node, torch.reshape, query, (batch, shared, heads // shared, width))
    others = {k: v for k, v in given.items() if k not in {"query", "key", "value", "enable_gqa"}}
    found = call_before(node, attend, together, single["key"], single["value"], **others)
    apart = call_before(node, torch.reshape, found, (batch, heads, 1, value_of(found).shape[3]))
    if layout(value_of(apart)[:, :, 0]) != layout(value_of(node)[:, :, 0]):
        erase_between(before, node)
        raise UnfitError("its result would be laid out otherwise")
    exchange(node, apart)
