"""As many sets of inputs as a block has calls: nobody computes the same twice while a clock runs.

All sets of one input lie behind each other in one piece of memory, so that one operator gives all
of them new values, between blocks. A result that is kept by what the inputs hold is never asked
for again; one that is kept by where they are, or by their versions, is wrong.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from backbay.proof import Step
from backbay.proof.bank import SHRINK, Inputs
from backbay.proof.copying import copied, copied_together

MOST_BYTES = 1 << 28
"""Of all sets of inputs together; there are two at least."""
_ALIGNED = 64
"""Bytes: what compiled code may rely on, and copies inputs if it can't."""
_FAR = 7919
"""Elements by which one set is shifted against the one before; a prime number."""


@dataclass(frozen=True)
class _Strip:
    """All sets of one input, element by element in memory's order."""

    position: int
    """Of the input, among those of a step."""
    memory: torch.Tensor
    """Of shape (sets, elements)."""
    first: torch.Tensor
    """What stood there in the beginning, from which later values are made."""


class Ring:
    """Steps of one workload, each with inputs of its own."""

    def __init__(self, step: Step, varies: Sequence[bool], size: int) -> None:
        """Make them.

        Args:
            step: the first of them; the others have inputs that are laid out as its are.
            varies: of each of its inputs, whether it may have other values.
            size: how many there are.
        """
        self._strips: list[_Strip] = []
        self._scattered: list[int] = []
        """Of inputs that vary and have gaps: only the last step gets other values."""
        self.steps = [step]
        given: dict[int, list[torch.Tensor]] = {}
        inputs = [x for _, x in step.inputs]
        sharing = bool(copied_together(inputs))
        together = [copied_together(inputs) if sharing else {} for _ in range(size - 1)]
        for position, (_, value) in enumerate(step.inputs):
            if id(value) not in given:
                varying = varies[position] and size > 1
                dense = varying and _is_dense(value)
                laid_out = self._strip(value, position, size - 1) if dense else None
                if varying and not dense:
                    self._scattered.append(position)
                alike = (x.get(id(value), copied(value)) for x in together)
                given[id(value)] = laid_out or [
                    x.requires_grad_(value.requires_grad) for x in alike
                ]
        for index in range(size - 1):
            self.steps.append(_with(step, lambda x, i=index: given[id(x)][i]))  # type: ignore[misc]

    def renew(self, seed: int, last: Inputs, used: int) -> None:
        """Renew the values of all steps' inputs.

        Args:
            seed: what they are drawn from.
            last: values for the last step that is used, whose truth is known.
            used: how many are used.
        """
        for number, strip in enumerate(self._strips):
            device = strip.first.device  # on a GPU a permutation takes a hundredth of the time
            generator = torch.Generator(device).manual_seed(seed + number)
            order = torch.randperm(strip.first.shape[1], generator=generator, device=device)
            values = strip.first.index_select(1, order)
            if values.is_floating_point() or values.is_complex():
                drawn = torch.rand(len(values), 1, generator=generator, device=device)
                values *= (1.0 - SHRINK * drawn).to(values.dtype)
            strip.memory.copy_(values)
            # Not through the tensor itself, whose version would say that it has other values.
            strip.memory[used - 2].copy_(_flat(last[strip.position]))
        for position in self._scattered:
            self.steps[used - 1].inputs[position][1].data.copy_(last[position])

    def calls(
        self, call: Callable[..., Any], number: int, part: int | None = None
    ) -> list[Callable[[], Any]]:
        """Return so many calls of a compiled model, each with inputs of its own.

        Args:
            call: the compiled model.
            number: how many.
            part: which call of each step, where it has several; default: all of them.
        """
        steps = self.steps[:number]
        if part is not None:
            steps = [x.with_inputs((x.args[part],), {}) for x in steps]
        return [functools.partial(x, call) for x in steps]

    def _strip(self, value: torch.Tensor, position: int, size: int) -> list[torch.Tensor]:
        """Return tensors that are laid out as an input is, one behind the other."""
        elements = value.numel()
        per = -(-elements * value.element_size() // _ALIGNED) * _ALIGNED // value.element_size()
        memory = torch.zeros(size, per, dtype=value.dtype, device=value.device)
        for index in range(size):
            memory[index, :elements] = torch.roll(_flat(value), (index + 1) * _FAR)
        strip = memory[:, :elements]
        self._strips.append(_Strip(position, strip, strip.clone()))
        found = []
        for index in range(size):
            # Not a view: what compiles may treat those otherwise.
            tensor = torch.empty(0, dtype=value.dtype, device=value.device)
            tensor.set_(memory.untyped_storage(), index * per, value.shape, value.stride())
            found.append(tensor.requires_grad_(value.requires_grad))
        return found


def _is_dense(value: torch.Tensor) -> bool:
    dense = torch.ops.aten.is_non_overlapping_and_dense
    return value.layout == torch.strided and bool(dense(value))


def _flat(value: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's elements in memory's order."""
    return torch.as_strided(value.detach(), (value.numel(),), (1,))


def fitting(step: Step) -> int:
    """Return how many sets of inputs there may be."""
    size = sum(x.numel() * x.element_size() for _, x in step.inputs)
    return max(2, MOST_BYTES // max(size, 1))


def _with(step: Step, other: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    """Return a step like another, with other input tensors, as they are."""

    def replaced(leaf: Any) -> Any:
        return other(leaf) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = pytree.tree_map(replaced, (step.args, step.kwargs))
    return step.with_inputs(args, kwargs)
