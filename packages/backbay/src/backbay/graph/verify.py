"""Does a changed graph still compute what it did? Both are run, in float64, on random inputs.

A check while a pass is being written: it takes two runs of the graph, twice, and sees what a random
input shows. The proof of a backend on a model is another thing, see ``backbay.proof``.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from backbay.errors import GradientMismatch, WrongResult
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
        WrongResult: a result, or an input that the graph writes, has another value.
        GradientMismatch: a gradient has another value, or there is none.
    """
    precision, trained = _precision(before, after), _is_trained(before)
    # A compiler calls us: what it does to tensors must not be done to these.
    with torch._guards.tracing(None), unset_fake_temporarily():  # noqa: SLF001 (as Inductor does)
        modules = [copy.deepcopy(x).to(torch.float64) for x in (before, after)]
        for fill in _FILLS:
            inputs = _inputs(before, fill)
            was, now = (_run(module, inputs, trained=trained) for module in modules)
            for kind, error in _KINDS.items():
                distances = _distances(was[kind], now[kind])
                if all(x <= _LARGEST_ERROR * precision for x in distances):
                    continue
                nudged = _run(modules[0], [_nudged(x) for x in inputs], trained=trained)
                own = _distances(was[kind], nudged[kind])
                found = _beyond(distances, own, _LARGEST_ERROR * precision)
                if found is not None:
                    raise error(
                        f"{who}: {kind} {found} is another than before it, by "
                        f"{distances[found]:.3g} of its size, run in float64 on random inputs. "
                        "What the pass put in is not the same function of its inputs as what it "
                        "took out"
                    )


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


def _beyond(distances: Sequence[float], own: Sequence[float], allowed: float) -> int | None:
    """Return the position of the first distance that rounding does not explain."""
    pairs = enumerate(itertools.zip_longest(distances, own, fillvalue=0.0))
    return next((n for n, (x, o) in pairs if x > max(allowed, _TIMES_NUDGED * o)), None)


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


def _inputs(module: GraphModule, fill: Fill) -> list[Any]:
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    return [_real(value_of(n), fill) for n in placeholders]


def _real(value: Any, fill: Fill) -> Any:
    """Return something real of a fake value's kind; integers are zeros, which are valid indices."""
    if isinstance(value, torch.SymInt):
        return _hint(value)
    if not isinstance(value, torch.Tensor):
        return value
    dtype = torch.float64 if value.dtype.is_floating_point else value.dtype
    shape, stride = ([_hint(x) for x in sizes] for sizes in (value.shape, value.stride()))
    made = torch.empty_strided(shape, stride, dtype=dtype, device=value.device)
    if not dtype.is_floating_point:
        return made.zero_()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fill(made)
    return made.requires_grad_(value.requires_grad)


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _own(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
