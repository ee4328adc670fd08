"""Rows of tables, and the gradients of the tables, in Triton.

The gradient by a table of many words is mostly zeros: a few thousand tokens ask for rows, some of
them often. What must move is the gradient of each token, read once, and each row of the table's,
written once. Operations: an addition for each element of a token's gradient. Adding with atomics to
a table in float32, which is then rounded, moves six times the table instead; and to sort tokens
takes several passes over them. Here tokens are put into the order of words by counting (H. H.
Seward's sort, in Knuth, The Art of Computer Programming 3, 5.2), and each row is written once, by a
program that adds its tokens up in float32.

A word that many tokens ask for, such as a comma, is cut by columns, and not by tokens: a program
for each piece adds all of them, many at once. In which order the tokens of a word are added is not
the same each time, as with atomics, so that results may differ in their last bit.

Small tables of equal width, as a recommender has them, are ordered together, as if they were one
that has all words; each gradient is then written by a launch of its own. To put tokens into order
moves little, and its launches would take as long as to write such a table: so there are three for
all tables.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit, widened
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured

PAYS_FROM = 2**24
"""Elements of a table, or of small ones together, from which it was measured."""

MOST_TOGETHER = 100
"""Tables that are put together: as many were measured. Each launch looks at the words that come
often in any of them."""

FEW_COLUMNS, MOST_TOKENS = 32, 8192
"""Tokens up to which rows of fewer columns are faster where all are one word: a program adds 16
columns of it, so there are few programs. 65,536 tokens in 16 columns took 1.17 times as long as
Inductor on an H200, 2026-12-01, and 0.79 in 32."""

OFTEN = 16
"""Tokens of a word above which it is cut by columns."""

_BLOCK, _TOGETHER = 1024, 4
"""Columns that a program writes at most, and of how many words one after the other: by search on an
H100, with 256 rows at once. With one word each it took 1.3 times as long, with 256 columns twice as
long."""
_SHORT = 256
"""Columns up to which a row is short: a program writes many rows at once."""
_WORDS_A_TOKEN = 3
"""From which short rows were measured to be faster. 26 tables of 10,000 words, 64 columns and 8192
tokens took 1.04 to 1.20 times as long as Inductor on an H200, 2026-12-01; a day before 0.23 to
0.58, where Inductor's kernels were slower than on this day."""
_AT_A_TIME = 1024
"""Elements of short rows that a program writes at once: by search on an H200, 2026-11-30, where a
program that wrote 4 rows of 64 columns one after the other took up to 2.8 times as long."""
_NARROW = 16
"""How many columns of a word that comes often a program adds."""
_PROGRAMS = 1056
"""Programs for words that come often: eight for each of 132 multiprocessors."""
_WORDS = 1024
"""Words that a program counts up."""
_SIXTEEN = 16
"""Elements that a row's length is a multiple of where it was measured."""
_INT32 = 2**31


_AT_ONCE, _STAGES, _STAGED_FROM = 64, 4, 512
"""How a word that comes often is read: by search on an H200, 2026-11-28
(``conditions_embedding_plans.md``). With 256 rows at once the kernel needs 72 registers a thread,
not 40, which slows the other words, too."""


class Plan(NamedTuple):
    """How the kernel that adds is launched."""

    block: int
    """Columns that a program writes at most, of words that few tokens ask for."""
    together: int
    """Such words that a program writes: at once, of `short` rows, or one after the other."""
    warps: int
    programs: int
    """For words that come often."""
    narrow: int
    """Columns of such a word that one of them adds."""
    at_once: int
    """Rows of such a word that are read at once."""
    stages: int
    """Of the loop: all but one are on their way, through shared memory."""
    staged_from: int
    """Tokens from which there are so many; of fewer, there is one."""
    often_from: int
    """As `OFTEN`."""
    short: int
    """Columns in ``block`` up to which rows are written at once."""


LIMITS = {
    "block": (32, 4096),
    "together": (1, 64),
    "warps": (1, 16),
    "at_once": (16, 256),
    "stages": (1, 6),
    "programs": (64, 8192),
    "narrow": (8, 64),
    "often_from": (4, 256),
    "staged_from": (32, 8192),
    "short": (16, 256),
}
"""Of plans, where another GPU's is searched. The kernels that put tokens into order are launched
alike everywhere: they move a few numbers for each token and word, and no rows."""

_MOST_SEARCHED = 2**27
"""Elements of a table that a search has; of a larger one it takes a part of words and tokens. To
compare results it holds the table several times, in float64."""


def plan(width: int) -> Plan:
    """Return how to add rows of a width."""
    block = min(_BLOCK, max(32, _power_from(width)))
    is_short = block <= _SHORT
    return Plan(
        block=block,
        together=_AT_A_TIME // block if is_short else _TOGETHER,
        warps=2 if is_short else max(1, block // 256),
        programs=_PROGRAMS,
        narrow=_NARROW,
        at_once=_AT_ONCE,
        stages=_STAGES,
        staged_from=_STAGED_FROM,
        often_from=OFTEN,
        short=_SHORT,
    )


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
    dys: Sequence[Tensor],
    indices: Sequence[Tensor],
    words: Sequence[int],
    ignored: Sequence[int],
    *,
    chosen: Plan | None = None,
) -> list[Tensor]:
    """Run the kernels, without a dispatcher or a check; as :func:`reference_backward` for each.

    Under ``TRITON_INTERPRET=1`` they run on the CPU. They count, place, order and add; the last is
    launched for each table. ``chosen`` is how it adds, by default `plan`, and elsewhere what a
    search for the largest table finds.
    """
    count, place, order, add = kernels
    width = dys[0].shape[-1]
    i = max(range(len(words)), key=words.__getitem__)
    searched = _searched(kernels, dys[i], indices[i], words[i], ignored[i])
    how = chosen or plan_here(plan(width), searched)
    rows, at, none = _as_one(dys, indices, words, ignored)
    tokens, every = at.shape[0], sum(words)
    # Of each word how many tokens it has, then where they begin; then how many words are placed,
    # and how many of these come often.
    counts = at.new_zeros(every + 2, dtype=torch.int32)
    ranks, ordered = (at.new_empty(tokens, dtype=torch.int32) for _ in range(2))
    begins = at.new_empty(every, dtype=torch.int32)
    often = at.new_empty(tokens // (how.often_from + 1) + 1, dtype=torch.int32)
    tables = [rows.new_empty((x, width)) for x in words]
    constants = how._asdict()
    warps = constants.pop("warps")
    with torch.cuda.device(rows.get_device()):  # Triton launches on the current one; -1 is none
        grid = (-(-tokens // 256),)
        # It is given the rows so that all depend on the gradient. Partitioners put what does not
        # into forward, keep some of it, and compute some anew in backward, where words are placed
        # in another order: the tokens that were kept are then other words'.
        count[grid](rows, at, counts, ranks, tokens, every, none, block=256, num_warps=4)
        place[(-(-every // _WORDS),)](
            counts, begins, often, every, often_from=how.often_from, block=_WORDS, num_warps=4
        )
        order[grid](at, begins, ranks, ordered, tokens, every, none, block=256, num_warps=4)
        before = 0
        for table, own in zip(tables, words, strict=True):
            programs = -(-own // how.together) * -(-width // how.block)
            add[(how.programs + programs,)](
                *(rows, ordered, counts, begins, often, table, before, own, every, width),
                num_warps=warps,
                **constants,
            )
            before += own
    return tables


def _as_one(
    dys: Sequence[Tensor], indices: Sequence[Tensor], words: Sequence[int], ignored: Sequence[int]
) -> tuple[Tensor, Tensor, int]:
    """Return rows, tokens, and the ignored word of a table that has the words of all."""
    width = dys[0].shape[-1]
    if len(dys) == 1:
        rows, at = dys[0].reshape(-1, width), indices[0].reshape(-1)
        return rows.contiguous(), at.contiguous(), ignored[0]
    numbers, before = [], 0
    for index, own, none in zip(indices, words, ignored, strict=True):
        at = index.reshape(-1)
        # What is not asked for must not become a neighbour's word.
        numbers.append(torch.where((at >= 0) & (at < own) & (at != none), at + before, -1))
        before += own
    while len(numbers) > 1:
        begins = range(0, len(numbers), _CONCATENATED)
        numbers = [torch.cat(numbers[i : i + _CONCATENATED]) for i in begins]
    return torch.cat([x.reshape(-1, width) for x in dys]), numbers[0], -1


_CONCATENATED = 8
"""Tensors that Inductor concatenates in one kernel (`max_pointwise_cat_inputs`); with more, each
gets a kernel of its own. Rows, which are large, were measured like that."""


def _searched(
    kernels: tuple[Any, Any, Any, Any], dy: Tensor, index: Tensor, words: int, ignored: int
) -> Launch:
    """Return what a plan is searched for: `launch`, with other tokens."""
    cut = 1 + words * dy.shape[-1] // _MOST_SEARCHED
    words = -(-words // cut)
    tokens = Tokens(-(-index.numel() // cut), words, index.dtype, dy.device)
    return Launch(
        run=_launch_drawn,
        kernels=[kernels],
        given=(dy, tokens, words, ignored),
        reference=_same_drawn,
        limits=LIMITS,
    )


@dataclass(frozen=True)
class Tokens:
    """What a search asks for in the place of tokens, whose numbers nobody knows yet."""

    count: int
    words: int
    dtype: torch.dtype
    device: torch.device = field(repr=False)
    """Not a part of what plans are kept by: they are another's of the same name, too."""

    @functools.cached_property
    def index(self) -> Tensor:
        """Which words they are: one comes the less often the later it is, by Zipf's law."""
        at = torch.arange(self.count, dtype=torch.float64, device=self.device)
        return (self.words ** (at * _GOLDEN % 1.0)).to(self.dtype) - 1


_GOLDEN = 0.6180339887498949
"""The golden ratio's: its multiples, modulo 1, are spread evenly, and not in order."""


def _launch_drawn(
    kernels: tuple[Any, Any, Any, Any], dy: Tensor, tokens: Tokens, *others: Any
) -> Tensor:
    *numbers, how = others
    rows = dy.reshape(-1, dy.shape[-1])[: tokens.count]
    words, ignored = numbers
    return launch(kernels, [rows], [tokens.index], [words], [ignored], chosen=how)[0]


def _same_drawn(dy: Tensor, tokens: Tokens, *numbers: int) -> Tensor:
    """Return what `_launch_drawn` does, by the reference."""
    rows = dy.reshape(-1, dy.shape[-1])[: tokens.count]
    return reference_backward(rows, tokens.index, *numbers)


def _power_from(n: int) -> int:
    return 1 << (n - 1).bit_length()


# 3. When


def refusal(dys: Sequence[Tensor], indices: Sequence[Tensor], words: Sequence[int]) -> str | None:
    """Return why the kernels can't take gradients of tokens, or None. Then the reference runs."""
    for dy, index in zip(dys, indices, strict=True):
        if reason := unfit(dy):
            return reason
        if not index.numel() or not dy.numel():
            return "it is empty"
    if any((x.dtype, x.device, x.shape[-1]) != _kind(dys[0]) for x in dys):
        return "gradients of several tables differ in dtype, device or width"
    if sum(x.numel() for x in indices) >= _INT32:
        return "it has too many tokens: their numbers have 32 bits"
    if sum(words) >= _INT32 - LIMITS["together"][1]:  # which a program counts on beyond the last
        return f"{sum(words)} words: their numbers have 32 bits"
    return None


def _kind(dy: Tensor) -> tuple[torch.dtype, torch.device, int]:
    return dy.dtype, dy.device, dy.shape[-1]


def small(tables: Sequence[Tensor]) -> str | None:
    """Return why the gradients of tables, each of which fits, are left to Inductor, or None."""
    elements = sum(x.numel() for x in tables)
    if elements >= PAYS_FROM:
        return None
    return f"{elements} elements in tables of a width: below {PAYS_FROM} it was not measured"


def unfit_table(table: Tensor, index: Tensor) -> str | None:
    """Return why the gradient of a table should be left to Inductor, whatever its size, or None."""
    if reason := unfit(table):
        return reason
    # Of a symbol what it is now: to compare it would guard on the answer.
    sizes = [n if isinstance(n, int) else n.node.hint for n in index.shape]
    if None in sizes:
        return "how many tokens there are, only a run tells"
    return _unfit_sizes(*table.shape, tokens=math.prod(sizes)) or unmeasured(table)


def _unfit_sizes(words: int, width: int, *, tokens: int) -> str | None:
    if width % _SIXTEEN:
        return f"rows of {width} elements: those that begin anywhere were not measured"
    if not 0 < tokens <= words:
        return f"{tokens} tokens for {words} words: more than words were not measured"
    if width <= _SHORT and words < _WORDS_A_TOKEN * tokens:
        return f"{tokens} tokens for {words} words: rows so short pay with three for each"
    if width < FEW_COLUMNS and tokens > MOST_TOKENS:
        return f"{tokens} tokens: if all were one word, Inductor's adding would be faster"
    return None


# 4. Registration

embeddings: Callable[..., list[Tensor]]
"""The operator ``backbay::embeddings``: as ``F.embedding`` of each index in its table, with words
whose gradients are zero."""

embeddings_backward: Callable[..., list[Tensor]]
"""The operator ``backbay::embeddings_backward``: :func:`reference_backward` of each table."""

_NAMES = ("embeddings", "embeddings_backward")


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

    def forward(
        tables: Sequence[Tensor],
        indices: Sequence[Tensor],
        ignored: Sequence[int],  # noqa: ARG001 (of backward)
    ) -> list[Tensor]:
        return [F.embedding(x, y) for x, y in zip(indices, tables, strict=True)]

    def backward(
        dys: Sequence[Tensor],
        indices: Sequence[Tensor],
        words: Sequence[int],
        ignored: Sequence[int],
    ) -> list[Tensor]:
        if refusal(dys, indices, words):
            return list(map(reference_backward, dys, indices, words, ignored))
        kernels = (wrap_triton(count), wrap_triton(place), wrap_triton(order), wrap_triton(add))
        return launch(kernels, dys, indices, words, ignored)

    made = (
        define("backbay::embeddings", forward, mutates_args=()),
        define("backbay::embeddings_backward", backward, mutates_args=()),
    )
    made[0].register_autograd(_vjp, setup_context=_save)
    return made


__getattr__ = registers(globals(), _NAMES, _operators)


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:  # noqa: ARG001 (torch's)
    tables, indices, ctx.ignored = inputs
    ctx.words = [x.shape[0] for x in tables]
    ctx.set_materialize_grads(False)  # who has no gradient gets none, and not zeros
    ctx.save_for_backward(*indices)


def _vjp(ctx: Any, dys: Sequence[Tensor | None]) -> tuple[Any, ...]:
    asked = [i for i, dy in enumerate(dys) if dy is not None]
    found: list[Tensor | None] = [None] * len(dys)
    if asked:
        saved = ctx.saved_tensors
        given = ([x[i] for i in asked] for x in (dys, saved, ctx.words, ctx.ignored))
        for i, table in zip(asked, _operators()[1](*given), strict=True):
            found[i] = table
    return found, [None] * len(dys), None
