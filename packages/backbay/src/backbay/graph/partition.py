"""Cut a graph into regions: what a compiler supports, and what is left for another.

For functional graphs, after AOTAutograd. Torch's own partitioner decides which supported nodes can
be one region. Where a graph draws random numbers or writes memory it is cut in the order of the
program instead: torch's partitioner joins what stands apart, and would exchange two draws.
"""

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from backbay.errors import InputError
from backbay.graph.effects import is_random, mutates
from backbay.graph.report import target_name, user_line
from backbay.graph.values import is_submodule, value_of

Supports = Callable[[Node], bool | str]
"""Whether a compiler takes a node; a text says why it does not."""

REGION, REST = "region_", "rest_"
"""How the names of submodules begin."""
RETURNED_VIEW = "is a view that is returned"
"""It computes nothing, and counts neither as covered nor as left."""
NOT_LISTED = "not in the list of supported operators"
REFUSED = "refused by the support predicate"
CONSTANT = "a constant"
TAKES_SUBGRAPH = "takes a subgraph, which can't be handed over"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A node that is left for the fallback."""

    node: str
    operator: str
    reason: str
    line: str
    """The user's own line; empty where nobody knows."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What of a graph a compiler would get."""

    regions: tuple[tuple[str, ...], ...]
    """Names of the operators' nodes in each region."""
    operators: int
    """How many the graph calls; reading a tuple or a size is none."""
    unsupported: tuple[Unsupported, ...]

    @property
    def covered(self) -> int:
        """How many operators are in regions."""
        return sum(map(len, self.regions))

    @property
    def share(self) -> str:
        """How much is covered, in a line."""
        share = self.covered / self.operators if self.operators else 1.0
        regions = f"{len(self.regions)} region{'' if len(self.regions) == 1 else 's'}"
        return f"{self.covered} of {self.operators} operators ({share:.0%}) in {regions}"

    @property
    def left(self) -> str:
        """Every operator that is left, with the reason, in a line."""
        return ", ".join(
            f"{_times(count)}{name} ({reason})"
            for (name, reason), count in Counter(
                (x.operator, x.reason) for x in self.unsupported
            ).items()
        )

    def __str__(self) -> str:
        """Return it in a line, and each operator that is left in one more."""
        lines = [self.share]
        left = Counter((x.operator, x.reason, x.line) for x in self.unsupported)
        for (name, reason, line), count in left.items():
            where = f" ({line})" if line else ""
            lines.append(f"  {_times(count)}{name}: {reason}{where}")
        return "\n".join(lines)


def _times(count: int) -> str:
    return f"{count}x " if count > 1 else ""


def supports_operators(operators: Collection[Any]) -> Supports:
    """Support operators by target: an overload, or a packet for all of its overloads.

    Raises:
        InputError: something in the list is no operator.
    """
    listed = frozenset(operators)
    strange = next((x for x in listed if not callable(x)), None)
    if strange is not None:
        raise InputError(
            f"{strange!r} is no operator: list overloads or packets, as torch.ops.aten.mm"
        )

    def supports(node: Node) -> bool | str:
        packet = node.target.overloadpacket if isinstance(node.target, OpOverload) else None
        return node.target in listed or packet in listed or NOT_LISTED

    return supports


def coverage(
    graph_module: GraphModule, supports: Supports, *, minimum: int = 1, constants: bool = False
) -> Coverage:
    """Return what `split` would do, without doing it.

    Args:
        graph_module: a functional graph.
        supports: which nodes the compiler takes.
        minimum: operators that a region has at least; a smaller one is left for the fallback.
        constants: as for `split`.
    """
    if constants:
        graph = Graph()
        graph.output(graph.graph_copy(graph_module.graph, {}))
        graph_module = GraphModule(graph_module, graph)
        _repeat_constants(graph_module)
    refused = _refused(graph_module, supports, constants=constants)
    return _covered(graph_module, refused, _regions(graph_module, refused, minimum), minimum)


def _covered(
    graph_module: GraphModule,
    refused: Mapping[Node, str],
    regions: Sequence[Sequence[Node]],
    minimum: int,
) -> Coverage:
    names = tuple(tuple(n.name for n in region if _is_operator(n)) for region in regions)
    inside = {node for region in regions for node in region}
    computing = (n for n in graph_module.graph.nodes if refused.get(n) != RETURNED_VIEW)
    operators = [n for n in computing if _is_operator(n)]
    left = (
        Unsupported(
            node.name,
            target_name(node),
            refused.get(node) or f"supported, in a region of fewer than {minimum} operators",
            user_line(node),
        )
        for node in operators
        if node not in inside
    )
    return Coverage(names, len(operators), tuple(left))


def split(
    graph_module: GraphModule,
    supports: Supports,
    *,
    minimum: int = 1,
    whole: bool = True,
    constants: bool = False,
) -> Coverage:
    """Make each region of a graph a submodule, in place, and return what lies in regions.

    The module then calls ``region_0``, ``region_1``, ... (and ``rest_0``, ...), each a graph module
    whose inputs are positional and whose output is a tuple. A symbol that occurs in a region's
    shapes is among its inputs.

    Args:
        graph_module: a functional graph.
        supports: which nodes the compiler takes.
        minimum: operators that a region has at least.
        whole: whether what is left becomes submodules too, as large as can be.
        constants: whether a constant that a region reads is the region's own. Otherwise the region
            has an input for it.
    """
    if constants:
        _repeat_constants(graph_module)
    refused = _refused(graph_module, supports, constants=constants)
    ours = _regions(graph_module, refused, minimum)
    covered = _covered(graph_module, refused, ours, minimum)
    by_program = _has_effects(graph_module)
    _fuse(graph_module, ours, REGION)
    if whole:
        done = {n: "" for n in graph_module.graph.nodes if n.op == "call_module"}
        _refuse_elements(graph_module, done)
        _fuse(graph_module, _grouped(graph_module, done, by_program=by_program), REST)
    for node in graph_module.graph.nodes:
        if node.op == "call_module":
            _bind_symbols(graph_module, node)
    graph_module.recompile()
    return covered


def _repeat_constants(graph_module: GraphModule) -> None:
    """Have each user of a constant read it by itself, so that each can lie in its own region."""
    for node in list(graph_module.graph.nodes):
        if node.op != "get_attr" or is_submodule(node):
            continue
        for user in list(node.users):
            if user.op == "output":
                continue
            with graph_module.graph.inserting_before(user):
                own = graph_module.graph.get_attr(node.target)
            own.meta = dict(node.meta)
            user.replace_input_with(node, own)
        if not node.users:
            graph_module.graph.erase_node(node)


def _refused(graph_module: GraphModule, supports: Supports, *, constants: bool) -> dict[Node, str]:
    """Return each node that the compiler does not take, with the reason."""
    refused = dict[Node, str]()
    for node in graph_module.graph.nodes:
        if node.op in {"placeholder", "output"} or _follows(node):
            continue
        if node.op == "get_attr":
            refused[node] = CONSTANT
        elif any(map(is_submodule, node.all_input_nodes)):
            refused[node] = TAKES_SUBGRAPH
        else:
            answer = supports(node)
            if answer is not True:
                refused[node] = answer or REFUSED
    _refuse_elements(graph_module, refused)
    for node in graph_module.graph.find_nodes(op="get_attr") if constants else ():
        if all(x not in refused and x.op != "output" for x in node.users):
            del refused[node]
    return refused


def _refuse_elements(graph_module: GraphModule, refused: dict[Node, str]) -> None:
    """Leave an element of a result where the result is: a tuple can't be handed over."""
    for node in graph_module.graph.nodes:
        if node.target is operator.getitem and node.args[0] in refused:
            refused[node] = refused[node.args[0]]


def _regions(
    graph_module: GraphModule, refused: Mapping[Node, str], minimum: int
) -> list[list[Node]]:
    groups = _grouped(graph_module, refused, by_program=_has_effects(graph_module))
    return [x for x in groups if sum(map(_is_operator, x)) >= max(1, minimum)]


def _grouped(
    graph_module: GraphModule, refused: Mapping[Node, str], *, by_program: bool
) -> list[list[Node]]:
    """Group what is not refused, each group in the order of the graph, the groups too."""
    if by_program:
        inner = [n for n in graph_module.graph.nodes if n.op not in {"placeholder", "output"}]
        runs = itertools.groupby(inner, key=lambda n: n in refused)
        return [list(run) for is_refused, run in runs if not is_refused]
    proposed = CapabilityBasedPartitioner(
        graph_module, _NotRefused(refused), allows_single_node_partition=True
    ).propose_partitions()
    place = {node: number for number, node in enumerate(graph_module.graph.nodes)}
    groups = [sorted(x.nodes, key=place.__getitem__) for x in proposed]
    return sorted(groups, key=lambda x: place[x[0]])


class _NotRefused(OperatorSupportBase):
    def __init__(self, refused: Mapping[Node, str]) -> None:
        self._refused = refused

    def is_node_supported(self, _: Mapping[str, torch.nn.Module], node: Node) -> bool:
        return node.op not in {"placeholder", "output"} and node not in self._refused


def _fuse(graph_module: GraphModule, groups: Sequence[Sequence[Node]], prefix: str) -> None:
    operators = [x for x in groups if any(map(_is_operator, x))]
    partitions: list[dict[Node, int | None]] = [dict.fromkeys(x) for x in operators]
    fuse_by_partitions(graph_module, partitions, prefix=prefix, always_return_tuple=True)


def _bind_symbols(graph_module: GraphModule, call: Node) -> None:
    """Hand a region the symbols of its shapes, which a code generator reads from its inputs."""
    region = graph_module.get_submodule(str(call.target))
    assert isinstance(region, GraphModule)
    values = [value_of(n) for n in region.graph.nodes if n.op != "output"]
    bound = {_symbol(value_of(x)) for x in call.args}
    sources = {_symbol(value_of(n)): n for n in graph_module.graph.nodes if n.op == "placeholder"}
    wanted = sorted(_free_symbols(values) - bound, key=str)
    for symbol in (x for x in wanted if x in sources):
        source = sources[symbol]
        with region.graph.inserting_before(next(iter(region.graph.nodes))):
            placeholder = region.graph.placeholder(source.name)
        placeholder.meta = dict(source.meta)
        call.args = (source, *call.args)
    region.recompile()


def _free_symbols(values: Sequence[Any]) -> set[Any]:
    from torch.fx.experimental.symbolic_shapes import (  # noqa: PLC0415 (sympy takes a second)
        free_symbols,
    )

    known = [x for x in values if isinstance(x, (torch.Tensor, torch.SymInt))]
    return set(free_symbols(known))


def _symbol(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt) else None


def _has_effects(graph_module: GraphModule) -> bool:
    return any(is_random(n) or mutates(n) for n in graph_module.graph.nodes)


def _is_operator(node: Node) -> bool:
    return node.op in {"call_function", "call_method", "call_module"} and not _follows(node)


def _follows(node: Node) -> bool:
    """Return whether a node computes no tensor: it reads a tuple, or counts with sizes."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    return isinstance(value_of(node), (torch.SymInt, torch.SymFloat, torch.SymBool))
