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

    loss: Callable[[Any], torch.Tensor] | None = None
    """From the model's output to the scalar whose gradients are taken in training. Without it,
    every floating-point output is given a fixed random cotangent, so that no gradient cancels."""

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
