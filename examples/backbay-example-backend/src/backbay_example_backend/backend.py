"""The backend ``silu_eager``: ``sigmoid(x) * x`` in Dynamo's graph becomes ``silu(x)``.

One kernel runs in place of two, and one tensor is kept for backward in place of two. In bfloat16
and float16 the result is rounded once in place of twice, so it may differ in the last bits.
Whatever else is in the graph runs as it is.
"""

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

_DEFAULTS: Mapping[str, Any] = {"limit": -1, "on_none": "ignore"}
_ON_NONE = ("ignore", "warn", "raise")

_SIGMOIDS = {torch.sigmoid, torch.nn.functional.sigmoid, torch.special.expit}
_PRODUCTS = {operator.mul, torch.mul, torch.multiply}


def silu_eager(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],  # noqa: ARG001 (torch passes it; the graph holds shapes and types)
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    name: str | None = None,  # noqa: ARG001 (from torch 2.15 on; only worth something in messages)
) -> Callable[..., Any]:
    """Compile a graph.

    Args:
        graph_module: Dynamo's graph; it is changed in place.
        example_inputs: its inputs.
        options: ``limit`` and ``on_none``, as ``backends.toml`` describes them.
        mode: not taken.
        name: what the caller calls this compilation.

    Returns:
        A function of the graph's inputs that gives its outputs as a tuple.

    Raises:
        ValueError: a mode is given, an option is not understood, or nothing can be replaced and
            ``on_none`` is ``raise``.
    """
    if mode is not None:
        raise ValueError(f"silu_eager has no modes, and {mode!r} was given")
    checked = _checked(options or {})
    replaced = replace_silu(graph_module, checked["limit"])
    if replaced == 0:
        _tell(checked["on_none"])
    return graph_module.forward


def replace_silu(graph_module: GraphModule, limit: int = -1) -> int:
    """Replace ``sigmoid(x) * x`` in a graph, and say how often.

    Args:
        graph_module: changed in place.
        limit: replace at most so many, the first ones; all where negative.
    """
    graph, replaced = graph_module.graph, 0
    for product in list(graph.nodes):
        factors = _factors(product)
        if factors is None or replaced == limit:
            continue
        sigmoid, x = factors
        with graph.inserting_before(product):
            silu = graph.call_function(torch.nn.functional.silu, (x,))
        silu.meta = dict(product.meta)
        product.replace_all_uses_with(silu)
        graph.erase_node(product)
        graph.erase_node(sigmoid)
        replaced += 1
    if replaced:
        graph.lint()
        graph_module.recompile()
    return replaced


def _factors(product: Node) -> tuple[Node, Node] | None:
    """Give ``sigmoid(x)`` and ``x`` where a node is their product and may be replaced."""
    if not _calls(product, _PRODUCTS, ("mul", "multiply"), arguments=2):
        return None
    left, right = product.args
    for sigmoid, x in ((left, right), (right, left)):
        if (
            isinstance(sigmoid, Node)
            and isinstance(x, Node)
            and _calls(sigmoid, _SIGMOIDS, ("sigmoid",), arguments=1)
            and sigmoid.args == (x,)
            and len(sigmoid.users) == 1
            and _next_call(sigmoid) is product
            and _takes_silu(x)
        ):
            return sigmoid, x
    return None


def _calls(
    node: Node, functions: set[Callable[..., Any]], methods: tuple[str, ...], *, arguments: int
) -> bool:
    wanted = functions if node.op == "call_function" else methods
    called = node.op in {"call_function", "call_method"} and node.target in wanted
    return called and len(node.args) == arguments and not node.kwargs


def _next_call(node: Node) -> Node:
    # What runs between the two could write to x, through a view of it too, or switch autocast on:
    # a product that does not follow at once is left alone.
    following = node.next
    while following.op in {"placeholder", "get_attr"}:
        following = following.next
    return following


def _takes_silu(x: Node) -> bool:
    # sigmoid takes integers and complex numbers too.
    value = x.meta.get("example_value")
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.layout is torch.strided
    )


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    strange = options.keys() - _DEFAULTS.keys()
    if strange:
        known = ", ".join(_DEFAULTS)
        raise ValueError(f"silu_eager has no option {min(strange)!r}; it has {known}")
    checked = {**_DEFAULTS, **options}
    if type(checked["limit"]) is not int:
        raise ValueError(f"limit is a number of replacements, not {checked['limit']!r}")
    if checked["on_none"] not in _ON_NONE:
        known = ", ".join(_ON_NONE)
        raise ValueError(f"on_none is one of {known}, not {checked['on_none']!r}")
    return checked


def _tell(on_none: str) -> None:
    text = "silu_eager found no sigmoid(x) * x to replace in a graph"
    if on_none == "raise":
        raise ValueError(text)
    if on_none == "warn":
        warnings.warn(text, stacklevel=2)
