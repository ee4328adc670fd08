"""Set aside: faults that nobody who writes levels looks at, of the kind in ``running``."""

from typing import Any

import torch

from mutants.harness import (
    Backend,
    Plan,
    Run,
    dynamo,
)
from mutants.mutant import Compiled, Mutant
from mutants.running import _one, _then


def _frozen(run: Run, _graph: Any, _inputs: Any) -> Run:
    weights: dict[int, torch.Tensor] = {}

    def call(*args: Any) -> Any:
        if torch.is_grad_enabled():
            return run(*args)
        own = [
            weights.setdefault(i, x.detach().clone()) if isinstance(x, torch.nn.Parameter) else x
            for i, x in enumerate(args)
        ]
        return run(*own)

    return call


class _Stuck(Backend):
    """Holds what no other process can be given."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a handle to the device")


def _loaded_anew(compiled: Compiled) -> Any:
    layer = torch.nn.Linear(2, 2)
    function = compiled(layer)
    with torch.no_grad():
        function(torch.ones(2))
        layer.weight.zero_()
        layer.bias.zero_()
        return function(torch.ones(2))


def _copied(compiled: Compiled) -> Any:
    import pickle

    return len(pickle.dumps(compiled.backend)) > 0  # type: ignore[attr-defined]


FAULTS = [
    Mutant(
        name="parameters_are_frozen",
        family="life cycle",
        fault="Without grad mode, parameters are taken for what they were at the first call.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/104984",
        compiler=Backend("parameters_are_frozen", dynamo(Plan(around=_frozen))),
        shown_by=_loaded_anew,
    ),
    Mutant(
        name="draws_while_running",
        family="state",
        fault="A call draws from torch's random generator though the function does not.",
        level="contract",
        compiler=Backend("draws_while_running", dynamo(Plan(around=_then(lambda: torch.rand(1))))),
        shown_by=lambda compiled: (torch.manual_seed(0), _one(compiled), torch.rand(1))[-1],
    ),
    Mutant(
        name="cannot_be_pickled",
        family="abi",
        fault="The backend cannot be pickled, so no other process can be given it.",
        level="load",
        compiler=_Stuck("cannot_be_pickled", dynamo()),
        shown_by=_copied,
    ),
]
