"""An optimizer's step that changes no parameter, so that each call begins from the same ones."""

from collections.abc import Callable

import torch


class OnCopies:
    """An optimizer of copies of a model's parameters: its step costs what that of the model does.

    Memory is that of one more copy of the parameters.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        """Make the copies and the optimizer.

        Args:
            model: whose parameters are copied, where they require grad.
            make: returns the optimizer of a list of parameters.
        """
        self._own = [x for x in model.parameters() if x.requires_grad]
        self._copies = [torch.nn.Parameter(x.detach().clone()) for x in self._own]
        self._optimizer = make(self._copies)

    def step(self) -> None:
        """Update the copies from the gradients that the parameters have now."""
        for own, copy in zip(self._own, self._copies, strict=True):
            copy.grad = own.grad
        self._optimizer.step()
