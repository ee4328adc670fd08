"""Compute the gradient of an embedding's table by kernels that write each of its rows once.

::

    before:  F.embedding(index, table)
    after:   torch.ops.backbay.embedding(table, index, -1)

Inductor adds with atomics to a table of zeros in float32, which it then rounds: six times the
memory traffic of the table, and three times its memory. Forward is left to Inductor, which fuses
it. Only for training, where there are fewer tokens than words.
"""

from dataclasses import dataclass

import torch
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.rewrite import call_before
from backbay.graph.values import is_ordinary, value_of
from backbay.kit.passes import Call, NotApplicable, PassContext, Requires, Rewrite
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import embedding as kernel

_TABLE = 2
"""Dimensions of a table."""


@dataclass(frozen=True, kw_only=True)
class Embeddings(Rewrite[Call]):
    """Compute the gradient of an embedding's table in Triton."""

    summary = "on CUDA, the gradient of a large embedding's table is written once, by kernels"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it was measured in 16 bits",
    )
    targets = (F.embedding,)
    parameters = (
        *("input", "weight", "padding_idx", "max_norm", "norm_type"),
        *("scale_grad_by_freq", "sparse"),
    )
    sources = (kernel, conditions.device_code(kernel), conditions)

    def replacement(self, site: Call, context: PassContext) -> Node:  # noqa: ARG002 (of those that ask)
        """Return a call of the operator."""
        given = site.given
        index, table = given["input"], given["weight"]
        if not value_of(site.node).requires_grad:
            raise NotApplicable("no gradient is wanted")
        if torch.are_deterministic_algorithms_enabled():
            raise NotApplicable("the same bits are wanted each time, and its sums have any order")
        is_cut = given.get("max_norm") is not None  # 0.0 is a norm, too
        if is_cut or given.get("scale_grad_by_freq") or given.get("sparse"):
            raise NotApplicable("rows are cut to a norm, or the gradient is sparse or scaled")
        rows = value_of(table)
        if not is_ordinary(rows) or rows.dim() != _TABLE or not is_ordinary(value_of(index)):
            raise NotApplicable("it is no table, or its tokens are no tensor")
        if not all(isinstance(n, int) for n in rows.shape):
            raise NotApplicable("a size of its table is a symbol")
        if reason := kernel.pays(rows, value_of(index)):
            raise NotApplicable(reason)
        ignored = given.get("padding_idx")
        ignored = -1 if ignored is None else ignored % rows.shape[0]
        assert callable(kernel.embedding)  # registers it: torch.ops has it only after that
        return call_before(site.node, torch.ops.backbay.embedding.default, table, index, ignored)


embeddings = Embeddings()
