"""What of a model is compiled: all of it, its repeated blocks, or a part that is named.

Blocks and parts are compiled in place, as `torch.nn.Module.compile` does it. Blocks that are alike
share what was compiled, so that a model of many layers compiles in the time of one.
"""

import difflib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from torch import nn

from backbay.decisions.arm import BLOCKS
from backbay.errors import InputError

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


class InPlace:
    """A model of which parts are compiled while it is called, and only then: others share it."""

    def __init__(
        self,
        model: nn.Module,
        parts: Mapping[str, nn.Module],
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        """Have parts of a model compiled.

        Args:
            model: is called.
            parts: of it, by name.
            compiled: returns a function as it is compiled.
        """
        self._model = model
        # As Module.compile, but for Module.__setattr__, which would take longer than a small part.
        self._parts = [(x.__dict__, compiled(x._call_impl)) for x in parts.values()]  # noqa: SLF001
        self.words = _worded(parts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        for attributes, call in self._parts:
            attributes["_compiled_call_impl"] = call
        try:
            return self._model(*args, **kwargs)
        finally:
            for attributes, _ in self._parts:
                del attributes["_compiled_call_impl"]


def parts_of(model: nn.Module, scope: str) -> dict[str, nn.Module]:
    """Return the parts of a model that a scope names.

    Raises:
        InputError: there are none.
    """
    if scope == BLOCKS:
        found = dict(_blocks(model, ""))
        if not found:
            raise InputError(
                "the model has no repeated blocks: no list of modules in it has two of one class "
                "with the same parameters; name a part, as in --scope encoder"
            )
        return found
    known = dict(model.named_modules())
    if scope not in known:
        near = difflib.get_close_matches(scope, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"the model has no part {scope!r}{hint}")
    return {scope: known[scope]}


def _blocks(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of each list that has several that are alike, the outermost of them."""
    layers = _layers(module) if isinstance(module, _CONTAINERS) else ()
    for name, child in module.named_children():
        if type(child) in layers:
            yield prefix + name, child
        else:
            yield from _blocks(child, f"{prefix}{name}.")


def _layers(container: nn.Module) -> set[type[nn.Module]]:
    """Return the classes of which a list has two that are alike.

    A layer of the same class that is not like them is one, too: often the first of a stage is not.
    """
    found = Counter(_kind(x) for x in container.children() if _is_traced(x))
    return {type(x) for x in container.children() if _is_traced(x) and found[_kind(x)] > 1}


def _kind(module: nn.Module) -> Hashable:
    """Return what those share that are alike: class, and the shapes and dtypes of parameters."""
    return type(module), tuple((n, x.shape, x.dtype) for n, x in module.named_parameters())


def _is_traced(module: nn.Module) -> bool:
    """Whether a layer that is compiled in place is compiled: Dynamo passes over torch's own."""
    has_parameters = next(module.parameters(), None) is not None
    return has_parameters and not type(module).__module__.startswith("torch.nn.")


def _worded(parts: Mapping[str, nn.Module]) -> str:
    names, classes = list(parts), dict.fromkeys(type(x).__name__ for x in parts.values())
    if len(names) == 1:
        return f"compiled in place: {names[0]} ({', '.join(classes)})"
    return (
        f"compiled in place: {len(names)} blocks ({', '.join(classes)}), {names[0]} to {names[-1]}"
    )
