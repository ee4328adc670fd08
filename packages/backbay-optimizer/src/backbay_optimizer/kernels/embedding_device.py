"""Device code of :mod:`backbay_optimizer.kernels.embedding`; importing it imports Triton.

Tokens are ordered by their words in three steps, a kernel each: count the tokens of each word,
where each token learns how many came before it; give each word a place for its tokens, in any order
of words; put each token at its place. Then each row of the table is written by a program that adds
its tokens up. The first programs do so for words that come often, a few columns at a time.
"""

# fmt: off

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit


@jit
def embedding_count_kernel(
    row_ptr, index_ptr, count_ptr, rank_ptr, tokens, words, ignored,  # noqa: ARG001 (see launch)
    block: tl.constexpr,
):
    """How many tokens each word has, and how many of them came before each token."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    word = tl.load(index_ptr + at, mask=at < tokens, other=0)
    real = (at < tokens) & (word != ignored) & (word >= 0) & (word < words)
    rank = tl.atomic_add(count_ptr + word, 1, mask=real, sem="relaxed")
    tl.store(rank_ptr + at, rank, mask=real)


@jit
def embedding_place_kernel(
    count_ptr, begin_ptr, often_ptr, words, often_from: tl.constexpr, block: tl.constexpr
):
    """Where the tokens of each word begin, and which words come often."""
    word = tl.program_id(0) * block + tl.arange(0, block)
    count = tl.load(count_ptr + word, mask=word < words, other=0)
    before = tl.cumsum(count, 0) - count
    base = tl.atomic_add(count_ptr + words, tl.sum(count, 0), sem="relaxed")
    tl.store(begin_ptr + word, base + before, mask=word < words)
    is_often = count > often_from
    slot = tl.atomic_add(
        count_ptr + words + 1 + tl.zeros_like(word), 1, mask=is_often, sem="relaxed"
    )
    tl.store(often_ptr + slot, word, mask=is_often)


@jit
def embedding_order_kernel(
    index_ptr, begin_ptr, rank_ptr, ordered_ptr, tokens, words, ignored, block: tl.constexpr
):
    """Put each token where its word's tokens are."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    word = tl.load(index_ptr + at, mask=at < tokens, other=0)
    real = (at < tokens) & (word != ignored) & (word >= 0) & (word < words)
    to = tl.load(begin_ptr + word, mask=real, other=0) + tl.load(rank_ptr + at, mask=real, other=0)
    tl.store(ordered_ptr + to, at, mask=real)


@jit
def embedding_add_kernel(
    row_ptr, ordered_ptr, count_ptr, begin_ptr, often_ptr, table_ptr, before, words, every, width,
    programs: tl.constexpr, often_from: tl.constexpr, together: tl.constexpr, block: tl.constexpr,
    narrow: tl.constexpr, at_once: tl.constexpr, staged_from: tl.constexpr, stages: tl.constexpr,
    short: tl.constexpr,
):
    """Write rows of a table's gradient: sums of their tokens' gradients, in float32.

    ``before`` words are other tables', and ``every`` one is counted.
    """
    program = tl.program_id(0)
    if program < programs:
        each = tl.cdiv(width, narrow)
        for unit in range(program, tl.load(count_ptr + every + 1) * each, programs):
            number = tl.load(often_ptr + unit // each)
            word = number - before
            if (word >= 0) & (word < words):
                count = tl.load(count_ptr + number)
                from_ptr = ordered_ptr + tl.load(begin_ptr + number)
                to_ptr = table_ptr + word.to(tl.int64) * width
                first = unit % each * narrow
                if count < staged_from:  # a few loads are over before those behind them have begun
                    _add_often(row_ptr, from_ptr, count, to_ptr, width, first, narrow, at_once, 1)
                else:
                    _add_often(
                        row_ptr, from_ptr, count, to_ptr, width, first, narrow, at_once, stages
                    )
    else:
        each = tl.cdiv(width, block)
        first = (program - programs) // each * together
        col = (program - programs) % each * block
        if block <= short:
            _add_at_once(
                row_ptr, ordered_ptr, count_ptr + before, begin_ptr + before, table_ptr, first,
                words, width, col, often_from, together, block,
            )
        else:
            for word in range(first, tl.minimum(first + together, words)):
                count = tl.load(count_ptr + before + word)
                if count <= often_from:
                    _add_few(
                        row_ptr, ordered_ptr + tl.load(begin_ptr + before + word), count,
                        table_ptr + tl.cast(word, tl.int64) * width, width, col, block,
                    )


@jit
def _add_at_once(
    row_ptr, ordered_ptr, count_ptr, begin_ptr, table_ptr, first, words, width, from_col,
    often_from: tl.constexpr, together: tl.constexpr, block: tl.constexpr,
):
    """Add the rows of many words: the first of each, the second of each, and so on."""
    word = first + tl.arange(0, together)
    col = from_col + tl.arange(0, block)
    count = tl.load(count_ptr + word, mask=word < words, other=0)
    mine = (word < words) & (count <= often_from)
    count = tl.where(mine, count, 0)
    from_ptr = ordered_ptr + tl.load(begin_ptr + word, mask=count > 0, other=0)
    inside = (col < width)[None, :]
    total = tl.zeros([together, block], tl.float32)
    for at in range(tl.max(count, 0)):
        real = at < count
        token = tl.load(from_ptr + at, mask=real, other=0).to(tl.int64)
        total += tl.load(
            row_ptr + token[:, None] * width + col[None, :], mask=real[:, None] & inside, other=0.0
        ).to(tl.float32)
    tl.store(
        table_ptr + word.to(tl.int64)[:, None] * width + col[None, :],
        total.to(table_ptr.dtype.element_ty),
        mask=mine[:, None] & inside,
    )


@jit
def _add_few(row_ptr, ordered_ptr, count, to_ptr, width, first, block: tl.constexpr):
    """Add the rows of a word one after the other, two in flight."""
    col = first + tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for at in range(0, count, 2):
        one = tl.load(ordered_ptr + at).to(tl.int64)
        other = tl.load(ordered_ptr + at + 1, mask=at + 1 < count, other=0).to(tl.int64)
        x = tl.load(row_ptr + one * width + col, mask=col < width, other=0.0)
        y = tl.load(
            row_ptr + other * width + col, mask=(col < width) & (at + 1 < count), other=0.0
        )
        total += x.to(tl.float32) + y.to(tl.float32)
    tl.store(to_ptr + col, total.to(to_ptr.dtype.element_ty), mask=col < width)


@jit
def _add_often(
    row_ptr, ordered_ptr, count, to_ptr, width, first,
    block: tl.constexpr, at_once: tl.constexpr, stages: tl.constexpr,
):
    """Add a few columns of a word's rows, many rows at once, while the next are on their way."""
    col = first + tl.arange(0, block)
    row = tl.arange(0, at_once)
    total = tl.zeros([at_once, block], tl.float32)
    for at in tl.range(0, count, at_once, num_stages=stages):
        real = at + row < count
        token = tl.load(ordered_ptr + at + row, mask=real, other=0).to(tl.int64)
        total += tl.load(
            row_ptr + token[:, None] * width + col[None, :],
            mask=real[:, None] & (col < width)[None, :],
            other=0.0,
        ).to(tl.float32)
    tl.store(to_ptr + col, tl.sum(total, 0).to(to_ptr.dtype.element_ty), mask=col < width)
