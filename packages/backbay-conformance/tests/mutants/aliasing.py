"""Faults of memory that is shared: it is no longer, or it is where nothing is shared in eager."""

from typing import Any

import torch
from torch.nn import functional

from mutants.harness import (
    Backend,
    Faults,
    Plan,
    Run,
    Running,
    aot,
    dynamo,
    instead_of,
    storage,
)
from mutants.mutant import Compiled, Mutant
from mutants.mutation import after


def _tensors(values: Any) -> list[torch.Tensor]:
    return [x for x in values if isinstance(x, torch.Tensor)]


def _views_of_inputs_copied(run: Run, _graph: Any, _inputs: Any) -> Run:
    def call(*args: Any) -> Any:
        shared = {storage(x) for x in _tensors(args)}
        return tuple(
            x.clone() if isinstance(x, torch.Tensor) and storage(x) in shared else x
            for x in run(*args)
        )

    return call


def _views_of_results_copied(run: Run, _graph: Any, _inputs: Any) -> Run:
    def call(*args: Any) -> Any:
        inputs, seen, outputs = {storage(x) for x in _tensors(args)}, set[int](), []
        for x in run(*args):
            where = storage(x) if isinstance(x, torch.Tensor) else 0
            outputs.append(x.clone() if where in seen and where not in inputs else x)
            seen.add(where) if isinstance(x, torch.Tensor) else None
        return tuple(outputs)

    return call


def _overlapping_inputs_copied(run: Run, _graph: Any, _inputs: Any) -> Run:
    def call(*args: Any) -> Any:
        seen, own = set[int](), []
        for x in args:
            twice = isinstance(x, torch.Tensor) and storage(x) in seen
            own.append(x.clone() if twice else x)
            if isinstance(x, torch.Tensor):
                seen.add(storage(x))
        return run(*own)

    return call


def _always_copies(op: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    right = op(x, *args, **kwargs)
    return right.clone() if right is x else right


def _no_copy_of_nothing(op: Any, x: torch.Tensor, pad: Any, *args: Any, **kwargs: Any) -> Any:
    return op(x, pad, *args, **kwargs) if any(pad) else x


class _ReusesBuffers(Running):
    """Takes a value's memory for another once its last user ran, views of it or not."""

    def __init__(self, module: torch.fx.GraphModule, faults: Faults) -> None:
        super().__init__(module, faults)
        self._free: list[torch.Tensor] = []
        self._own: dict[torch.fx.Node, torch.Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node, into memory that is taken for free where there is some."""
        before = {storage(x) for x in _tensors(self.env.values())}
        value = super().run_node(n)
        fresh = n.op == "call_function" and type(value) is torch.Tensor
        fresh = fresh and value.is_contiguous() and storage(value) not in before
        if fresh:
            value = self._placed(value)
            self._own[n] = value
        for used in self.user_to_last_uses.get(n, []):
            if used in self._own:
                self._free.append(self._own.pop(used))
        return value

    def _placed(self, value: torch.Tensor) -> torch.Tensor:
        for i, buffer in enumerate(self._free):
            if buffer.shape == value.shape and buffer.dtype == value.dtype:
                return self._free.pop(i).copy_(value)
        return value


def _alias(compiled: Compiled) -> Any:
    x = torch.zeros(4)
    compiled(lambda x: x[1:])(x).add_(1)
    return x


def _written_through(x: torch.Tensor) -> torch.Tensor:
    y = x.contiguous()
    y += y
    return y


def _padded(x: torch.Tensor) -> torch.Tensor:
    y = functional.pad(x, (0, 0))
    x.add_(1)
    return y * 2


def _views(compiled: Compiled) -> Any:
    def two(x: torch.Tensor) -> Any:
        y = x.sin()
        return y, y[1:]

    whole, part = compiled(two)(torch.ones(3))
    part.zero_()
    return whole


def _overlapping(compiled: Compiled) -> Any:
    def through(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    base = torch.zeros(4)
    return compiled(through)(base, base[1:])


def _view_outlives(x: torch.Tensor) -> Any:
    y = x.sin()
    part = y.view(2, 2)
    z = x.cos()
    return (part * z.view(2, 2)).sum()


FAULTS = [
    Mutant(
        name="view_becomes_copy",
        family="aliasing",
        fault="A result that is a view of an input comes back as a copy.",
        level="contract",
        compiler=Backend("view_becomes_copy", dynamo(Plan(around=_views_of_inputs_copied))),
        shown_by=_alias,
    ),
    Mutant(
        name="needless_contiguous_copies",
        family="aliasing",
        fault="contiguous() or to() with nothing to do gives a copy, and eager gives the tensor "
        "itself, through which it can be written to.",
        level="programs",
        compiler=Backend(
            "needless_contiguous_copies",
            dynamo(Plan(faults=instead_of(dict.fromkeys(("contiguous", "to"), _always_copies)))),
        ),
        shown_by=after(_written_through, torch.ones(2)),
    ),
    Mutant(
        name="empty_pad_is_the_input",
        family="aliasing",
        fault="Padding by nothing gives the tensor itself, which is changed afterwards, and eager "
        "gives a copy.",
        level="programs",
        link="https://github.com/pytorch/pytorch/issues/177631",
        compiler=Backend(
            "empty_pad_is_the_input",
            dynamo(
                Plan(
                    faults=instead_of(
                        dict.fromkeys((functional.pad, torch._C._nn.pad), _no_copy_of_nothing)
                    )
                )
            ),
        ),
        shown_by=after(_padded, torch.ones(2)),
    ),
    Mutant(
        name="views_of_results_are_copies",
        family="aliasing",
        fault="Of two results that share memory the second comes back as a copy.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/97083",
        compiler=Backend(
            "views_of_results_are_copies", dynamo(Plan(around=_views_of_results_copied))
        ),
        shown_by=_views,
    ),
    Mutant(
        name="overlapping_inputs_taken_apart",
        family="aliasing",
        fault="Of two inputs that share memory the second is copied first, so a write to the "
        "first does not reach it.",
        level="contract",
        compiler=Backend(
            "overlapping_inputs_taken_apart", dynamo(Plan(around=_overlapping_inputs_copied))
        ),
        shown_by=_overlapping,
    ),
    Mutant(
        name="buffer_freed_under_a_view",
        family="aliasing",
        fault="A buffer is used for the next result once nothing reads it, though a view of it "
        "is still read.",
        level="contract",
        link="https://github.com/pytorch/pytorch/pull/189735",
        compiler=Backend("buffer_freed_under_a_view", aot(Plan(running=_ReusesBuffers))),
        shown_by=after(_view_outlives, torch.arange(4.0)),
    ),
]
