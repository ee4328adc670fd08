"""Rows of a table, and the gradient of the table, in Triton.

The gradient by a table of many words is mostly zeros: a few thousand tokens ask for rows, some of
them often. What must move is the gradient of each token, read once, and each row of the table's,
written once. Adding with atomics to a table in float32, which is then rounded, moves six times the
table instead; and to sort tokens takes several passes over them. Here tokens are put into the order
of words by counting (H. H. Seward's sort, in Knuth, The Art of Computer Programming 3, 5.2), and
each row is written once, by a program that adds its tokens up in float32.

A word that many tokens ask for, such as a comma, is cut by columns, and not by tokens: a program
for each piece adds all of them, many at once. In which order the tokens of a word are added is not
the same each time, as with atomics, so that results may differ in their last bit.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit, widened
from backbay_optimizer.kernels.elsewhere import unmeasured

PAYS_FROM = 2**24
"""Elements of a table from which it was measured."""

OFTEN = 16
"""Tokens of a word above which it is cut by columns."""

_BLOCK, _TOGETHER = 1024, 4
"""Columns that a program writes at most, and of how many words one after the other: by search on an
H100, with 256 rows at once. With one word each it took 1.3 times as long, with 256 columns twice as
long."""
_NARROW = 16
"""How many columns of a word that comes often a program adds."""
_PROGRAMS = 1056
"""Programs for words that come often: eight for each of 132 multiprocessors."""
_WORDS = 1024
"""Words that a program counts up."""
_SIXTEEN = 16
"""Elements that a row's length is a multiple of where it was measured."""
_INT32 = 2**31


class Reading(NamedTuple):
    """How the rows of a word are read that comes often."""

    at_once: int
    """Rows that are read at once."""
    stages: int
    """Of the loop: all but one are on their way, through shared memory."""
    staged_from: int
    """Tokens from which there are so many; of fewer, there is one."""


READING = Reading(64, 4, 512)
"""By search on an H200, 2026-11-28 (``conditions_embedding_plans.md``). With 256 rows at once the
kernel needs 72 registers a thread, not 40, which slows the other words, too."""


# 1. The reference


def reference_backward(dy: Tensor, index: Tensor, words: int, ignored: int) -> Tensor:
    """Return the gradient of a table of so many words, (words, width), in the dtype of ``dy``.

    Args:
        dy: the gradient of the rows, (..., width); those of 16 bits are added in float32.
        index: which words they are, (...), whole numbers from 0 on.
        words: rows of the table.
        ignored: a word whose row gets zeros; -1 for none.
    """
    rows = dy.reshape(-1, dy.shape[-1])
    wide = widened(rows)
    at = index.reshape(-1)
    wide = torch.where((at == ignored)[:, None], 0.0, wide)
    return wide.new_zeros(words, dy.shape[-1]).index_add(0, at, wide).to(dy.dtype)


# 2. Launching


def launch(
    kernels: tuple[Any, Any, Any, Any],
    dy: Tensor,
    index: Tensor,
    words: int,
    ignored: int,
    *,
    reading: Reading = READING,
) -> Tensor:
    """Run the kernels, without a dispatcher or a check; as :func:`reference_backward`.

    Under ``TRITON_INTERPRET=1`` they run on the CPU. They count, place, order and add.
    """
    count, place, order, add = kernels
    width = dy.shape[-1]
    rows = dy.reshape(-1, width).contiguous()
    at = index.reshape(-1).contiguous()
    tokens = at.shape[0]
    # Of each word how many tokens it has, then where they begin; then how many words are placed,
    # and how many of these come often.
    counts = at.new_zeros(words + 2, dtype=torch.int32)
    ranks, ordered = (at.new_empty(tokens, dtype=torch.int32) for _ in range(2))
    begins = at.new_empty(words, dtype=torch.int32)
    often = at.new_empty(tokens // (OFTEN + 1) + 1, dtype=torch.int32)
    table = dy.new_empty((words, width))
    block = min(_BLOCK, max(32, _power_from(width)))
    programs = -(-words // _TOGETHER) * -(-width // block)
    with torch.cuda.device(dy.get_device()):  # Triton launches on the current one; -1 is none
        grid = (-(-tokens // 256),)
        # It is given the rows so that all depend on the gradient. Partitioners put what does not
        # into forward, keep some of it, and compute some anew in backward, where words are placed
        # in another order: the tokens that were kept are then other words'.
        count[grid](rows, at, counts, ranks, tokens, words, ignored, block=256, num_warps=4)
        place[(-(-words // _WORDS),)](
            counts, begins, often, words, often_from=OFTEN, block=_WORDS, num_warps=4
        )
        order[grid](at, begins, ranks, ordered, tokens, words, ignored, block=256, num_warps=4)
        add[(_PROGRAMS + programs,)](
            rows, ordered, counts, begins, often, table, words, width, programs=_PROGRAMS,
            often_from=OFTEN, together=_TOGETHER, block=block, narrow=_NARROW,
            num_warps=max(1, block // 256), **reading._asdict(),
        )  # fmt: skip
    return table


def _power_from(n: int) -> int:
    return 1 << (n - 1).bit_length()


# 3. When


def refusal(dy: Tensor, index: Tensor) -> str | None:
    """Return why the kernels can't take a gradient of tokens, or None. Then the reference runs."""
    if reason := unfit(dy):
        return reason
    if not index.numel() or not dy.numel():
        return "it is empty"
    if index.numel() >= _INT32:
        return "it has too many tokens: their numbers have 32 bits"
    return None


def pays(table: Tensor, index: Tensor) -> str | None:
    """Return why the gradient of a table should be left to Inductor, or None."""
    if reason := unfit(table):
        return reason
    if table.numel() < PAYS_FROM:
        return f"a table of {table.numel()} elements: below {PAYS_FROM} it was not measured"
    if table.shape[1] % _SIXTEEN:
        return f"rows of {table.shape[1]} elements: those that begin anywhere were not measured"
    # Of a symbol what it is now: to compare it would guard on the answer.
    sizes = [n if isinstance(n, int) else n.node.hint for n in index.shape]
    if None in sizes:
        return "how many tokens there are, only a run tells"
    tokens = functools.reduce(lambda x, y: x * y, sizes, 1)
    if not 0 < tokens <= table.shape[0]:
        return f"{tokens} tokens for {table.shape[0]} words: more than words were not measured"
    return unmeasured(table)


# 4. Registration

embedding: Callable[..., Tensor]
"""The operator ``backbay::embedding``: as ``F.embedding``, with a word whose gradient is zero."""

embedding_backward: Callable[..., Tensor]
"""The operator ``backbay::embedding_backward``: :func:`reference_backward`."""

_NAMES = ("embedding", "embedding_backward")


@functools.cache
def _operators() -> tuple[Any, Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import embedding_device as device  # noqa: PLC0415

        count: Any = device.embedding_count_kernel
        place: Any = device.embedding_place_kernel
        order: Any = device.embedding_order_kernel
        add: Any = device.embedding_add_kernel
    # Compilers see through a triton_op, to the kernel and to the reference; a custom_op is opaque
    # to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def forward(table: Tensor, index: Tensor, ignored: int) -> Tensor:  # noqa: ARG001 (of backward)
        return F.embedding(index, table)

    def backward(dy: Tensor, index: Tensor, words: int, ignored: int) -> Tensor:
        if refusal(dy, index):
            return reference_backward(dy, index, words, ignored)
        kernels = (wrap_triton(count), wrap_triton(place), wrap_triton(order), wrap_triton(add))
        return launch(kernels, dy, index, words, ignored)

    made = (
        define("backbay::embedding", forward, mutates_args=()),
        define("backbay::embedding_backward", backward, mutates_args=()),
    )
    made[0].register_autograd(_vjp, setup_context=_save)
    return made


__getattr__ = registers(globals(), _NAMES, _operators)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's)
    table, index, ctx.ignored = inputs
    ctx.words = table.shape[0]
    ctx.save_for_backward(index)


def _vjp(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    (index,) = ctx.saved_tensors
    return _operators()[1](dy, index, ctx.words, ctx.ignored), None, None
