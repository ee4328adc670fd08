"""Where rewrites pay on a GPU, and where not: what their conditions rest on.

    python benchmarks/conditions.py [TABLE ...] [--out FILE]

Tables, bfloat16, median microseconds of calls on cold caches, of CUDA graphs:

pointwise
    Convolutions of one pixel, channels last: cuDNN's fused convolution, which
    ``fused_convolutions`` calls, beside the same as a matrix product of cuBLASLt with bias and ReLU
    in its epilogue.
one_token
    One query that attends to a cache with a mask: keys and values repeated for each head, as models
    write it, beside ``one_token_attention``'s form, where heads of a group are queries of one head.
one_row
    A linear layer of one row: cuBLAS's, which Inductor calls, beside the sum that
    ``one_row_linears`` makes of it.
few_rows
    Linear layers of few rows that read the same: a call of cuBLAS for each, as Inductor makes it,
    and for a gate a kernel of Inductor's for the product, beside ``few_row_linears``' kernels, and
    how long it takes to read the weights.
few_row_steps
    A decoder's layer in a step of generation for a few sequences, as Inductor compiles it, and as
    ``backbay`` does without that pass and with it; CUDA graphs are the table's.
windows
    Attention with a mask that is a window, keys and values repeated, as Inductor runs it, beside
    ``windowed_attention``'s kernel, and the share of all blocks of scores that it computes.
biases
    Attention that is written out with a bias, as Inductor compiles it, beside the two kernels that
    ``fused_attention`` chooses from.
stems, patches
    Strided convolutions as networks for images and volumes begin with, whose kernels overlap or do
    not, as Inductor runs them, beside what ``space_to_depth`` makes of them.
depthwise
    Depthwise convolutions with channels last, and their gradients: cuDNN's, beside
    ``depthwise_convolutions``'s kernels, with what is around them, and how long it takes to move
    the bytes of either. A bias's gradient is a sum of its own beside cuDNN's.
group_norms
    Group norm and SiLU with channels last, of a sum with a convolution's bias, as Inductor compiles
    them, beside ``group_norm_silu``'s kernels, and how long it takes to read and write the images.
group_norms_alone
    Group norm and SiLU whose results have channels first, in either layout of what is read, as
    Inductor compiles them, beside the same kernels. *All* is forward and backward.
embeddings
    The gradient of an embedding's table, as Inductor computes it, beside ``embeddings``'s kernels,
    and how long it takes to read tokens' rows and write the table's.
embedding_groups
    The same of many tables of equal width, which the kernels order together.
embedding_plans
    The same gradient by the kernels, beside how long it takes to fill the table with zeros: how
    many rows of a word are read at once; in how many stages, from how many of its tokens on.
embedding_short_plans
    Likewise of short rows: how many elements of them a program writes at once, by how many warps,
    in as many columns as there are or, where these are fewer, 32.
softmaxes
    Softmax of rows that fit into registers, as Inductor compiles it, beside ``softmaxes``' kernel
    without and with the next rows on their way, of which widths choose one, and how long it takes
    to move the bytes.
batch_norms, max_pools
    Batch norms of training, and maxima over windows, with channels last and their gradients, as
    Inductor compiles them, beside ``batch_norms``' and ``max_pools``' kernels, and how long it
    takes to move the bytes. *All* is forward and backward. Maxima are taken in kernels of all
    sizes and windows here, used or not; 3/2/1 is 3 by 3, with a stride of 2 and a padding of 1.
row_norms, row_norm_blocks
    LayerNorm and RMSNorm in training, alone and in blocks of transformers, forward and backward, as
    Inductor compiles them, beside ``row_norms``' kernel, and how long it takes to move the bytes.
    Blocks are also compiled by ``backbay`` without that pass; CUDA graphs are the table's.
float8_rows
    Rows that are rounded to float8 with a scale for each, alone, behind an RMSNorm, behind the sum
    of a residual branch and a norm, and behind a SiLU that gates another tensor, as Inductor
    compiles them, beside ``float8_rows``' kernel, and how long it takes to move the bytes.
float8_layers
    A feed-forward layer in float8 with the sum and the norm before it, as Inductor compiles it, and
    as ``backbay`` does without that pass and with it; CUDA graphs are the table's.
rotated_heads
    Queries and keys that are normalised head by head and turned by their positions, and queries
    alone, as Inductor compiles them, without and with its combo kernels, beside ``rotated_heads``'
    kernel, and how long it takes to move the bytes.
rotated_heads_layers
    A layer's attention with such queries and keys and the products around it, as Inductor compiles
    it, and as ``backbay`` does without that pass and with it; CUDA graphs are the table's.
epilogues
    Linear layers and convolutions of one pixel with what follows them, as Inductor runs them, with
    its Triton template for some, beside ``product_epilogues``'s kernel, and how long it takes to
    move the bytes. *gelu*: bias and GELU; *scale*: bias, layer scale and residual; *silu* and
    *norm*: a convolution and batch norm, with and without SiLU; *gate*: with a gate before it.
elsewhere
    Kernels cut by their committed plan, and by what a search finds that knows nothing of this GPU:
    from that plan, and from one far from it; which plans these are, and how long that took.
merging
    Linear layers that read the same, forward and backward, one by one and as ``horizontal_fusion``
    makes one of them, where their weights are copied in every call.
"""

import datetime as dt

import torch

from backbay.timing.device import device_name
from speed.command import print_tables
from speed.condition_tables.batch_norms import batch_norms
from speed.condition_tables.biases import biases
from speed.condition_tables.caches import one_token
from speed.condition_tables.convolutions import pointwise
from speed.condition_tables.depthwise import depthwise
from speed.condition_tables.elsewhere import elsewhere
from speed.condition_tables.embeddings import (
    embedding_groups,
    embedding_plans,
    embedding_short_plans,
    embeddings,
)
from speed.condition_tables.epilogues import epilogues
from speed.condition_tables.few_rows import few_row_steps, few_rows
from speed.condition_tables.float8_rows import float8_layers, float8_rows
from speed.condition_tables.group_norms import group_norms, group_norms_alone
from speed.condition_tables.max_pools import max_pools
from speed.condition_tables.merging import merging
from speed.condition_tables.rotated_heads import rotated_heads, rotated_heads_layers
from speed.condition_tables.row_norms import row_norm_blocks, row_norms
from speed.condition_tables.rows import one_row
from speed.condition_tables.softmaxes import softmaxes
from speed.condition_tables.stems import patches, stems
from speed.condition_tables.windows import windows
from speed.surroundings import versions

_ALL = (
    *(pointwise, one_token, one_row, windows, biases, stems, patches, depthwise, epilogues),
    *(merging, batch_norms, max_pools, group_norms, group_norms_alone),
    *(embeddings, embedding_groups, embedding_plans, embedding_short_plans, softmaxes),
    *(row_norms, row_norm_blocks, few_rows, few_row_steps, float8_rows, float8_layers),
    *(rotated_heads, rotated_heads_layers, elsewhere),
)
TABLES = {x.__name__: x for x in _ALL}


def main() -> None:
    """Measure and print."""
    print_tables(__doc__, TABLES, header)


def header() -> str:
    """Return the date, the GPU and versions."""
    names = ", ".join(f"{k} {v}" for k, v in versions().items())
    today = dt.datetime.now(dt.UTC).date()
    return f"{today}; {device_name(torch.device('cuda'))}, {names}; bfloat16."


if __name__ == "__main__":
    main()
