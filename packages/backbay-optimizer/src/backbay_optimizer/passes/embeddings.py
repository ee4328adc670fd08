"""Compute the gradients of embeddings' tables by kernels that write each of their rows once.

::

    before:  x, y = F.embedding(i, a), F.embedding(j, b)
    after:   x, y = torch.ops.backbay.embeddings([a, b], [i, j], [-1, -1])

Inductor adds with atomics to a table of zeros in float32, which it then rounds: six times the
memory traffic of the table, and three times its memory. Forward is left to Inductor, which fuses
it. Only for training, where there are fewer tokens than words.

Small tables of equal width, as a recommender has them, are one call: what comes before rows are
written takes as long for all as for one. A table that is worth a call by itself has one, because
gradients of rows are copied where there are several. Embeddings of which one is read before the
next is made are not put together.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import aliases
from backbay.graph.aliases import Disturbances
from backbay.graph.rewrite import bound, call_before
from backbay.graph.values import is_ordinary, value_of
from backbay.kit.passes import NotApplicable, PassContext, Replacement, Requires, Rewrite
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import embedding as kernel

_PARAMETERS = (
    *("input", "weight", "padding_idx", "max_norm", "norm_type"),
    *("scale_grad_by_freq", "sparse"),
)
_TABLE = 2
"""Dimensions of a table."""


@dataclass(frozen=True, kw_only=True)
class _Embedding:
    """Rows of a table."""

    node: Node
    ignored: int
    """A word that gets no gradient; -1 for none."""

    @property
    def index(self) -> Node:
        """Its tokens, perhaps by what has taken another embedding's place since."""
        index: Node = bound(self.node, _PARAMETERS)["input"]
        return index

    @property
    def table(self) -> Node:
        """Its table, likewise."""
        table: Node = bound(self.node, _PARAMETERS)["weight"]
        return table

    @property
    def kind(self) -> tuple[object, ...]:
        """What those have in common that are one call."""
        rows = value_of(self.table)
        return rows.dtype, rows.device, rows.shape[1]


@dataclass(frozen=True, kw_only=True)
class _Site:
    """Embeddings that become one call."""

    node: Node
    """The last one, where the call will stand."""
    embeddings: Sequence[_Embedding]


@dataclass(frozen=True, kw_only=True)
class Embeddings(Rewrite[_Site]):
    """Compute the gradients of embeddings' tables in Triton."""

    summary = "on CUDA, the gradients of large embeddings' tables are written once, by kernels"
    requires = Requires(
        devices=("cuda",),
        because="the kernel is Triton's",
        rocm=False,
        dtypes=(torch.bfloat16, torch.float16),
        dtypes_because="it was measured in 16 bits",
    )
    sources = (kernel, conditions.device_code(kernel), conditions, aliases)

    def sites(self, graph_module: GraphModule, context: PassContext) -> Iterator[_Site]:
        """Yield large tables' embeddings, and small ones' of equal width in groups."""
        kinds: dict[object, list[_Embedding]] = {}
        for node in graph_module.graph.find_nodes(op="call_function", target=F.embedding):
            with context.attempt(node):
                self.requires.check(value_of(node))
                found = _embedding(node)
                is_large = value_of(found.table).numel() >= kernel.PAYS_FROM
                kinds.setdefault(node if is_large else found.kind, []).append(found)
        for alike in kinds.values():
            for run in _runs(alike):
                yield _Site(node=run[-1].node, embeddings=run)

    def replacement(self, site: _Site, context: PassContext) -> Replacement:  # noqa: ARG002 (of those that ask)
        """Return a call of the operator, with its results."""
        tables, indices = [x.table for x in site.embeddings], [x.index for x in site.embeddings]
        if reason := kernel.small([value_of(x) for x in dict.fromkeys(tables)]):
            raise NotApplicable(reason)
        assert callable(kernel.embeddings)  # registers it: torch.ops has it only after that
        given = tables, indices, [x.ignored for x in site.embeddings]
        call = call_before(site.node, torch.ops.backbay.embeddings.default, *given)
        nodes = [x.node for x in site.embeddings]
        parts = [call_before(site.node, operator.getitem, call, n) for n in range(len(nodes))]
        return Replacement(dict(zip(nodes, parts, strict=True)), nodes)


embeddings = Embeddings()


def _embedding(node: Node) -> _Embedding:
    """Return an embedding whose gradient the kernels can compute, whatever the table's size."""
    given = bound(node, _PARAMETERS)
    index, table, ignored = given["input"], given["weight"], given.get("padding_idx")
    if not value_of(node).requires_grad:
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
    if reason := kernel.unfit_table(rows, value_of(index)):
        raise NotApplicable(reason)
    ignored = -1 if ignored is None else ignored % rows.shape[0]
    return _Embedding(node=node, ignored=ignored)


def _runs(alike: Sequence[_Embedding]) -> list[list[_Embedding]]:
    """Return embeddings in groups, each of which can stand where its last one does."""
    runs: list[list[_Embedding]] = []
    behind = Disturbances(alike[0].node)
    for one in alike:
        if runs and _can_join(runs[-1], one, behind):
            runs[-1].append(one)
        else:
            runs.append([one])
            behind = Disturbances(one.node)
    return runs


def _can_join(run: Sequence[_Embedding], one: _Embedding, behind: Disturbances) -> bool:
    if len(run) == kernel.MOST_TOGETHER:
        return False
    if any(user <= one.node for x in run for user in x.node.users):
        return False
    reads = [y for x in run for y in (x.index, x.table)]
    return behind.until(one.node, reads) is None
