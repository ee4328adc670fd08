"""The situations that a model is proven in: first, after steps of training, with other batches."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from backbay.proof import Golden, Workload
from backbay.verify.requests import Situation
from backbay.workloads.batches import with_batch
from backbay.workloads.setup import Mode

FIRST = Situation()

TRAINED_EAGER, TRAINED_TRUE = "trained eager", "trained true"
"""Names of the files with the parameters that free training ended at."""


class Files:
    """Where one mode's truths and states are kept while a verification runs."""

    def __init__(self, folder: str, mode: Mode) -> None:
        self._folder = Path(folder)
        self._mode = mode

    def golden(self, situation: Situation) -> Golden:
        """Load what eager and float64 gave; its tensors stay on disk until they are compared."""
        return Golden.load(self._path(situation.name))

    def keep_golden(self, situation: Situation, golden: Golden) -> None:
        """Keep it for the other processes."""
        golden.save(self._path(situation.name))

    def tensors(self, name: str) -> list[torch.Tensor]:
        """Load tensors that were kept under a name."""
        return list(torch.load(self._path(name), mmap=True, map_location="cpu", weights_only=True))

    def keep_tensors(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Keep tensors under a name."""
        torch.save(list(tensors), self._path(name))

    def _path(self, name: str) -> str:
        return str(self._folder / f"{self._mode} {name}.pt")


def inputs_of(workload: Workload, situation: Situation) -> Workload:
    """Return the workload with a situation's inputs; for its state see `state_of`."""
    if situation.kind != "batch":
        return workload
    other = with_batch(workload, situation.number)
    return other if situation.own_loss else dataclasses.replace(other, loss=None)


def state_name(step: int) -> str:
    """Return the name under which the state before a step is kept."""
    return f"state {step}"


@contextlib.contextmanager
def state_of(model: torch.nn.Module, situation: Situation, files: Files) -> Iterator[None]:
    """Put a model into a situation's state; afterwards it is as it was."""
    with kept(model):
        if situation.kind == "step":
            put(model, files.tensors(state_name(situation.number)))
        yield


@contextlib.contextmanager
def kept(model: torch.nn.Module) -> Iterator[None]:
    """Write back what the block changes in parameters and buffers."""
    before = [x.detach().clone() for x in state(model)]
    try:
        yield
    finally:
        put(model, before)


def put(model: torch.nn.Module, values: Sequence[torch.Tensor]) -> None:
    """Write a state into a model, in place: what was compiled must see it."""
    with torch.no_grad():
        for own, value in zip(state(model), values, strict=True):
            own.copy_(value)


def state(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return what training changes: parameters, then buffers."""
    return [*model.parameters(), *model.buffers()]
