"""Does a changed graph still compute what it did? Both are run, in float64, on random inputs.

A check while a pass is being written: it takes two runs of the graph, twice, and sees what a random
input shows. The proof of a backend on a model is another thing, see ``backbay.proof``.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from backbay.errors import GradientMismatch, GraphBroken, ShapeAssumed, WrongResult
from backbay.graph.check import check_kind
from backbay.graph.propagation import kind
from backbay.graph.values import value_of

_LARGEST_ERROR = 256
"""In epsilons of the lowest precision in either graph: what rounding can explain, and no fault."""
_NUDGE = 4 * torch.finfo(torch.float64).eps
_TIMES_NUDGED = 64
"""Where more is found: how many times what the graph before differs by from itself, with inputs
that are nudged so little. A gradient that is zero but for rounding is another in each order."""

_KINDS = {
    "result": WrongResult,
    "input": WrongResult,
    "gradient of input": GradientMismatch,
}
"""What is compared, and the error where it differs."""

Sizes = Mapping[Any, int]
"""A number for each symbol; where there is none, they are those of the example."""
_OTHERS: tuple[Callable[[int], int], ...] = (
    lambda x: x + 1,
    lambda x: x + 2,
    lambda x: 2 * x,
    lambda x: x - 1,
    lambda x: x // 2,
)
"""How a second size is made of the first; that is used which all guards allow."""

Fill = Callable[[torch.Tensor], torch.Tensor]
_FILLS: tuple[Fill, ...] = (
    torch.Tensor.normal_,
    lambda x: x.uniform_(0.5, 1.5),  # roots and logarithms of the others are NaN
)


def verify(before: GraphModule, after: GraphModule, who: str) -> None:
    """Run a graph before and after a pass, and compare results, gradients and changed inputs.

    Args:
        before: a copy of the module, made before the pass.
        after: what the pass left.
        who: the pass, for the error.

    Raises:
        WrongDtype: a result has another dtype.
        WrongResult: a result, or an input that the graph writes, has another value.
        GradientMismatch: a gradient has another value, or there is none.
        ShapeAssumed: a result has another shape; or all is right for the sizes of the example, and
            not for others of dynamic dimensions.
        GraphBroken: the graph raises, and did not.
    """
    # A compiler calls us: what it does to tensors must not be done to these.
    with torch._guards.tracing(None), unset_fake_temporarily():  # noqa: SLF001 (as Inductor does)
        _check_kinds(before, after, {}, who)
        _check_values(before, after, {}, who)
        sizes = _other_sizes(before)
        if sizes is None:
            return
        try:
            _check_kinds(before, after, sizes, who)
            _check_values(before, after, sizes, who)
        except GraphBroken as error:
            said = ", ".join(f"{symbol} is {size}" for symbol, size in sizes.items())
            raise ShapeAssumed(
                f"{error}. That is so where {said}, and not for the sizes of the example: take "
                "sizes from the tensor, x.shape[0], not from an example"
            ) from error


def _check_kinds(before: GraphModule, after: GraphModule, sizes: Sizes, who: str) -> None:
    """Compare results' dtypes and shapes, in the dtypes that the graph is given."""
    modules = [copy.deepcopy(x) for x in (before, after)]
    inputs = [
        x.detach().to(value_of(n).dtype) if isinstance(x, torch.Tensor) else x
        for n, x in zip(_placeholders(before), _inputs(before, _FILLS[0], sizes), strict=True)
    ]
    was, now = _both(modules, inputs, who, trained=False)
    for position, (old, new) in enumerate(zip(was["result"], now["result"], strict=False)):
        check_kind(position, kind(old), kind(new), who)


def _check_values(before: GraphModule, after: GraphModule, sizes: Sizes, who: str) -> None:
    allowed = _LARGEST_ERROR * _precision(before, after)
    trained = _is_trained(before)
    modules = [copy.deepcopy(x).to(torch.float64) for x in (before, after)]
    for fill in _FILLS:
        inputs = _inputs(before, fill, sizes)
        was, now = _both(modules, inputs, who, trained=trained)
        for what, error in _KINDS.items():
            distances = _distances(was[what], now[what])
            if all(x <= allowed for x in distances):
                continue
            nudged = _run(modules[0], [_nudged(x) for x in inputs], trained=trained)
            own = _distances(was[what], nudged[what])
            pairs = enumerate(itertools.zip_longest(distances, own, fillvalue=0.0))
            # The first that rounding does not explain.
            found = next((n for n, (x, o) in pairs if x > max(allowed, _TIMES_NUDGED * o)), None)
            if found is not None:
                raise error(
                    f"{who}: {what} {found} is another than before it, by "
                    f"{distances[found]:.3g} of its size, run in float64 on random inputs. "
                    "What the pass put in is not the same function of its inputs as what it "
                    "took out"
                )


def _both(
    modules: Sequence[GraphModule], inputs: Sequence[Any], who: str, *, trained: bool
) -> list[dict[str, Sequence[Any]]]:
    """Run the graph before a pass, and the one after it."""
    was = _run(modules[0], inputs, trained=trained)
    try:
        return [was, _run(modules[1], inputs, trained=trained)]
    except Exception as error:
        said = next(iter(str(error).splitlines()), "")
        raise GraphBroken(
            f"{who}: the graph that it left raises {type(error).__name__}: {said}, run on random "
            "inputs, and the graph before it did not"
        ) from error


def _other_sizes(module: GraphModule) -> Sizes | None:
    """Return other sizes of dynamic dimensions that the graph holds for and runs with, or None."""
    values = [value_of(n) for n in _placeholders(module)]
    known = [x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor)]
    sizes = [y for x in known for y in (*x.shape, *x.stride())]
    symbolic = [x.node for x in (*values, *sizes) if isinstance(x, torch.SymInt)]
    hints = {x.expr: int(x.hint) for x in symbolic if x.expr.is_symbol}
    if not hints or any(not x.expr.free_symbols <= hints.keys() for x in symbolic):
        return None
    env = symbolic[0].shape_env
    for change in _OTHERS:
        chosen = {symbol: change(hint) for symbol, hint in hints.items()}
        holds = all(guard.expr.subs(chosen) == True for guard in env.guards)  # noqa: E712 (sympy's)
        inside = all(size in env.var_to_range[symbol] for symbol, size in chosen.items())
        if holds and inside:
            break
    else:
        return None
    try:
        _run(
            copy.deepcopy(module).to(torch.float64),
            _inputs(module, _FILLS[0], chosen),
            trained=False,
        )
    except Exception:  # noqa: BLE001 (a foreign graph raises what it likes)
        return None  # what the graph holds for is more than what its guards say
    return chosen


def _is_trained(module: GraphModule) -> bool:
    """Return whether a result wants a gradient; ATen's values do not say, and may."""
    results = (value_of(x) for x in module.graph.output_node().all_input_nodes)
    inputs = (n for n in module.graph.nodes if n.op == "placeholder")
    if any("val" in n.meta for n in inputs):
        return True
    return any(x.requires_grad for x in results if isinstance(x, torch.Tensor))


def _run(module: GraphModule, inputs: Sequence[Any], *, trained: bool) -> dict[str, Sequence[Any]]:
    """The results, the inputs afterwards, and the inputs' gradients where they are wanted."""
    given = [_own(x) for x in inputs]
    # A graph may write its inputs, and a leaf that needs a gradient can't be written.
    passed = [x.clone() if _needs_gradient(x) else x for x in given]
    with torch.random.fork_rng(), torch.set_grad_enabled(trained):
        torch.manual_seed(0)
        results = [x for x in pytree.tree_leaves(module(*passed)) if isinstance(x, torch.Tensor)]
        gradients = _gradients(results, [x for x in given if _needs_gradient(x)])
    written = [x for x in passed if isinstance(x, torch.Tensor)]
    return {"result": results, "input": written, "gradient of input": gradients}


def _gradients(results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> Sequence[Any]:
    losses = [x for x in results if x.requires_grad]
    if not losses or not leaves:
        return ()
    cotangents = [
        torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype, device=x.device).view(x.shape)
        for x in losses
    ]
    return torch.autograd.grad(losses, leaves, cotangents, allow_unused=True)


def _distances(was: Sequence[Any], now: Sequence[Any]) -> list[float]:
    """Return by how much of its size each differs."""
    return [_distance(*pair) for pair in itertools.zip_longest(was, now)]


def _nudged(value: Any) -> Any:
    """Return other numbers, of which each differs by a few of its units in the last place."""
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    with torch.random.fork_rng():
        torch.manual_seed(0)
        factors = 1 + _NUDGE * torch.empty_like(value).uniform_(-1, 1)
    return (value.detach() * factors).requires_grad_(value.requires_grad)


def _distance(old: torch.Tensor | None, new: torch.Tensor | None) -> float:
    """Return the difference over the size; nothing where both are as infinite, or as absent."""
    if old is None and new is None:
        return 0.0
    # No gradient is a gradient of zero.
    was, now = (torch.zeros(()) if x is None else x.detach().cpu() for x in (old, new))
    was, now = was.to(torch.complex128), now.to(torch.complex128)
    differs = (was != now) & ~(was.isnan() & now.isnan())
    if not differs.any():
        return 0.0
    error = torch.where(differs, was - now, 0.0).abs()
    size = max(was.abs().nan_to_num(posinf=0.0).square().mean().sqrt().item(), 1e-30)
    ratio = error.max().item() / size
    return ratio if math.isfinite(ratio) else math.inf


def _precision(*modules: GraphModule) -> float:
    """The largest epsilon that a graph asks for by name: its casts stay when it is widened."""
    named = (
        x
        for module in modules
        for node in module.graph.nodes
        for x in pytree.tree_leaves((node.args, node.kwargs))
    )
    asked = (x for x in (*named, *_cast_by_method(modules)) if _is_floating(x))
    return max((torch.finfo(x).eps for x in asked), default=torch.finfo(torch.float64).eps)


def _cast_by_method(modules: Sequence[GraphModule]) -> Iterator[torch.dtype]:
    methods = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}
    for module in modules:
        for node in module.graph.nodes:
            if node.op == "call_method" and node.target in methods:
                yield methods[node.target]


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value.is_floating_point


def _placeholders(module: GraphModule) -> list[Node]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


def _inputs(module: GraphModule, fill: Fill, sizes: Sizes) -> list[Any]:
    return [_real(value_of(n), fill, sizes) for n in _placeholders(module)]


def _real(value: Any, fill: Fill, sizes: Sizes) -> Any:
    """Return something real of a fake value's kind; integers are zeros, which are valid indices."""
    if isinstance(value, torch.SymInt):
        return _number(value, sizes)
    if not isinstance(value, torch.Tensor):
        return value
    dtype = torch.float64 if value.dtype.is_floating_point else value.dtype
    shape, stride = ([_number(y, sizes) for y in x] for x in (value.shape, value.stride()))
    made = torch.empty_strided(shape, stride, dtype=dtype, device=value.device)
    if not dtype.is_floating_point:
        return made.zero_()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fill(made)
    return made.requires_grad_(value.requires_grad)


def _number(size: Any, sizes: Sizes) -> int:
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.expr.subs(sizes)) if sizes else int(size.node.hint)


def _own(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
