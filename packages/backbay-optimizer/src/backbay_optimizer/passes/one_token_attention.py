"""Attend once for a group of heads in a step of generation, not to a copy of the cache for each.

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
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from backbay.graph.region import between
from backbay.graph.rewrite import call_before, layout
from backbay.graph.values import are_numbers, is_ordinary, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.passes import attention

BLOCKS = 64
"""Heads of keys, of all sequences together, from which it is faster. Measured on an H200."""

_RANK = 4


@dataclass(frozen=True, slots=True)
class _Site(Call):
    """Attention of one query with a mask."""

    single: dict[str, Node]
    """Key and value, one for a group."""


@dataclass(frozen=True, kw_only=True)
class OneTokenAttention(Rewrite[_Site]):
    """Attend to keys and values that are not repeated, where there is one query; for CUDA."""

    summary = "on CUDA, one query attends to a cache that is not repeated for each head"
    requires = Requires(
        devices=("cuda",),
        because="it was measured on CUDA",
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it was measured in 16 bits",
    )
    targets = attention.TARGETS
    parameters = attention.PARAMETERS
    sources = (attention,)
    removes_dead_code = True  # what repeated

    def site(self, call: Call, context: PassContext) -> _Site | None:  # noqa: ARG002 (of those that ask)
        """Return attention of one query, with a mask and grouped heads."""
        single = _one_for_a_group(call.node, call.given)
        return None if single is None else _Site(call.node, call.given, single)

    def replacement(self, site: _Site, context: PassContext) -> Replacement:  # noqa: ARG002 (of those that ask)
        """Return attention of the groups' queries, one head for each group."""
        node, given, single = site.node, site.given, site.single
        _check(node, given, single)
        query, attend = given["query"], attention.target_of(node)
        covers = between(node, {query, given["attn_mask"], *single.values()})
        batch, heads, _, width = value_of(query).shape
        shared = value_of(single["key"]).shape[1]
        together = call_before(node, torch.reshape, query, (batch, shared, heads // shared, width))
        others = {
            k: v for k, v in given.items() if k not in {"query", "key", "value", "enable_gqa"}
        }
        found = call_before(node, attend, together, single["key"], single["value"], **others)
        single_row = (batch, heads, 1, value_of(found).shape[3])
        return Replacement({node: call_before(node, torch.reshape, found, single_row)}, covers)

    def is_alike(self, old: Node, new: Node) -> bool:
        """Whether nobody can tell layouts apart: the stride of the one query does not count."""
        return layout(value_of(new)[:, :, 0]) == layout(value_of(old)[:, :, 0])


one_token_attention = OneTokenAttention()


def _one_for_a_group(node: Node, given: Mapping[str, Any]) -> dict[str, Node] | None:
    """Return key and value of one query with a mask, one for a group; None where it is another."""
    query, mask = (value_of(given.get(x)) for x in ("query", "attn_mask"))
    if not all(is_ordinary(value_of(x)) for x in node.all_input_nodes) or mask is None:
        return None
    if query.dim() != _RANK or type(query.shape[2]) is not int or query.shape[2] != 1:
        return None
    if not given.get("enable_gqa"):
        return attention.sources(node, given)
    grouped = value_of(given["key"]).shape[1] != query.shape[1]
    return {x: given[x] for x in ("key", "value")} if grouped else None


def _check(node: Node, given: Mapping[str, Any], single: Mapping[str, Node]) -> None:
    query, mask = (value_of(given[x]) for x in ("query", "attn_mask"))
    key, value = (value_of(single[x]) for x in ("key", "value"))
    if value_of(node).requires_grad or given.get("dropout_p", 0.0) or given.get("is_causal"):
        raise NotApplicable("its gradient is wanted, it drops elements, or it is causal, too")
    if any(str(n) != "1" for n in mask.shape[-3:-1]):
        raise NotApplicable("its mask tells heads apart")
    batch, heads = query.shape[:2]
    if not are_numbers((batch, heads, *key.shape[:2], *value.shape[:2], query.shape[3])):
        raise NotApplicable("how many sequences or heads there are is a symbol")
    if key.shape[:2] != value.shape[:2] or key.shape[0] != batch:
        raise NotApplicable("its key and value have other heads, or the query another batch")
    if batch * key.shape[1] < BLOCKS:
        raise NotApplicable(f"{batch * key.shape[1]} heads of keys leave multiprocessors idle")
