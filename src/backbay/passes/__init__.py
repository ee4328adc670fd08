"""Passes to build backends from; each file says what it changes, and when it does not.

``remove_dead_code``, ``common_subexpressions``, ``fold_scalar_chain`` and ``fold_constants`` work
on Dynamo's graph, and with ``.at("aten")`` on the functional graphs of AOTAutograd.
"""

from backbay.passes.common_subexpressions import common_subexpressions
from backbay.passes.constants import fold_constants
from backbay.passes.dead_code import remove_dead_code
from backbay.passes.eager_convolutions import eager_convolutions
from backbay.passes.early_selection import early_selection
from backbay.passes.folded_strides import folded_strides
from backbay.passes.fused_attention import fused_attention
from backbay.passes.fused_convolutions import fused_convolutions
from backbay.passes.gelu import rewrite_gelu
from backbay.passes.linear_epilogues import linear_epilogues
from backbay.passes.masks import constant_masks
from backbay.passes.merged_linears import merged_linears
from backbay.passes.one_row_linears import one_row_linears
from backbay.passes.one_token_attention import one_token_attention
from backbay.passes.parameter_hoist import parameter_hoist
from backbay.passes.scalar_chain import fold_scalar_chain
from backbay.passes.silu import rewrite_silu
from backbay.passes.silu_kernel import silu_to_kernel
from backbay.passes.windowed_attention import windowed_attention

__all__ = [
    "common_subexpressions",
    "constant_masks",
    "eager_convolutions",
    "early_selection",
    "fold_constants",
    "fold_scalar_chain",
    "folded_strides",
    "fused_attention",
    "fused_convolutions",
    "linear_epilogues",
    "merged_linears",
    "one_row_linears",
    "one_token_attention",
    "parameter_hoist",
    "remove_dead_code",
    "rewrite_gelu",
    "rewrite_silu",
    "silu_to_kernel",
    "windowed_attention",
]
