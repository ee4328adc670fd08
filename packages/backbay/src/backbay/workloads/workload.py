"""What is proven and raced: a model and the inputs that it is run on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from backbay.workloads.function_model import FunctionModel


@dataclass(frozen=True)
class Workload:
    """A model, its inputs, and how training it is scored.

    The model and the inputs are already on the device and in the dtype that they run in.
    """

    model: torch.nn.Module
    """The model, in the mode (train or eval) that it is raced in. A plain function is taken, too:
    it becomes a module that has the modules that the function refers to."""

    args: tuple[Any, ...] = ()
    """Positional inputs of one call: any pytree of tensors and plain values."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword inputs of one call."""

    further: tuple[tuple[tuple[Any, ...], Mapping[str, Any]], ...] = ()
    """Positional and keyword inputs of further calls, for example of other shapes. A race's step
    calls the model with its own inputs and then with each of these, in turn, so that what is
    decided holds for the mix."""

    loss: Callable[[Any], torch.Tensor] | None = None
    """From the model's output to the scalar whose gradients are taken in training. Without it,
    every floating-point output is given a fixed random cotangent, so that no gradient cancels."""

    optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None
    """Makes an optimizer of the model's parameters. A race in training times its step with each
    forward and backward. It runs on copies, so that each call begins from the same parameters."""

    grad_as_given: bool = False
    """Whether in training only the inputs that require grad are given one; else every
    floating-point input is, and must have one."""

    name: str = ""
    """How the workload is called in reports, for example ``hf:llama@tiny``."""

    reduced: "Callable[[], Workload] | None" = None
    """Returns the same model on smaller inputs, for when float64 truth does not fit. Without it the
    leading dimension that the tensor inputs share is cut."""

    def __post_init__(self) -> None:
        given: object = self.model
        if callable(given) and not isinstance(given, torch.nn.Module | type):
            object.__setattr__(self, "model", FunctionModel(given))
