"""What compiled code of a registered backend must return.

Dynamo takes the first row of a bare tensor for the result, so what returns no tuple is refused.
"""

import functools
from typing import Any

from backbay.errors import BackbayError
from backbay.registry.spec import CompilerFn


def checked(compiled: Any, who: str) -> CompilerFn:
    """Return compiled code that checks what its first call returns.

    A graph, or its own forward, comes back as it is where the graph returns a tuple.

    Args:
        compiled: what a backend made of a graph.
        who: the backend, for the error.

    Raises:
        BackbayError: it can't be called.
    """
    import torch  # noqa: PLC0415 (a graph has been compiled)

    if not callable(compiled):
        raise BackbayError(
            f"{who} gives {type(compiled).__name__}, not a callable: return what runs the graph, "
            "for example graph_module.forward"
        )
    if _is_graph_of_tuple(compiled):
        whole: CompilerFn = compiled
        return whole  # as it is, Dynamo calls it without anything between
    if isinstance(compiled, torch.nn.Module):  # stays one: torch's minifier looks

        def hook(_module: Any, _inputs: Any, results: Any) -> None:
            _check(results, who)
            registered.remove()

        registered = compiled.register_forward_hook(hook)
        return compiled

    def first(*arguments: Any) -> Any:
        results = compiled(*arguments)
        _check(results, who)
        # From now on the partial calls the compiled code itself, which costs it no frame.
        run.__setstate__((compiled, (), {}, run.__dict__))  # type: ignore[attr-defined] # pickle's
        return results

    run = functools.partial(first)
    if getattr(compiled, "_boxed_call", False):
        run.__dict__["_boxed_call"] = True
    return run


def _check(results: Any, who: str) -> None:
    if not isinstance(results, (tuple, list)):
        raise BackbayError(
            f"what {who} made returns {type(results).__name__}: return a tuple, with one value for "
            "each of the graph's results"
        )


def _is_graph_of_tuple(compiled: Any) -> bool:
    """Return whether it is a graph, or a graph's own forward, and the graph gives a tuple."""
    from torch.fx import GraphModule  # noqa: PLC0415 (as above)

    owner = getattr(compiled, "__self__", compiled)
    if not isinstance(owner, GraphModule) or compiled not in (owner, owner.forward):
        return False
    return isinstance(owner.graph.output_node().args[0], (tuple, list))
