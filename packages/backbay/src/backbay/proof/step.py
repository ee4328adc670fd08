"""One step of a workload, for proof and for timing alike: what is proven is what is timed."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from backbay.errors import ProofImpossible
from backbay.proof.copying import copied
from backbay.proof.optimizing import OnCopies
from backbay.proof.tree import leaves, mapped
from backbay.workloads.workload import Workload

NESTED = (
    "is a nested tensor, whose numbers can't be compared: prove a model that returns its values(), "
    "or torch.nested.to_padded_tensor of it"
)
Cotangents = Mapping[int, torch.Tensor]
"""By position among the differentiable outputs."""


class Step:
    """Runs a workload once a call: forward, or in training forward and backward.

    In training every floating-point tensor input is a leaf that requires grad, a copy made once;
    or only those that require it as they are given, where the workload asks for that.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        train: bool,
        seed: int = 0,
        cotangents: Cotangents | None = None,
        optimizes: bool = False,
    ) -> None:
        """Get ready to run steps.

        Args:
            workload: what is called.
            train: whether a step is forward and backward.
            seed: of cotangents.
            cotangents: those that backward starts from; default: they are drawn.
            optimizes: whether the workload's optimizer, if it has one, runs after backward.
        """
        self.workload = workload
        self.train = train
        self.loss: torch.Tensor | None = None
        """The last call's loss, where the workload has one."""
        self.cotangents: dict[int, torch.Tensor] = dict(cotangents or {})
        """What backward starts from, where the workload has no loss. Made on first use."""
        self.seed = seed
        leaf = _same if not train else _as_given if workload.grad_as_given else _leaf
        self.args, self.kwargs = mapped(leaf, (workload.args, dict(workload.kwargs)))
        self.trained = self._trained()
        """The leaves whose gradients a step makes."""
        self._optimizer: OnCopies | None = None
        if train and optimizes and workload.optimizer is not None:
            self._optimizer = OnCopies(workload.model, workload.optimizer)

    def with_inputs(self, args: Any, kwargs: Any) -> "Step":
        """Return a step with other inputs, as they are; everything else is shared."""
        other = copy.copy(self)
        other.args, other.kwargs = args, kwargs
        other.trained = other._trained()  # noqa: SLF001 (it is a step, too)
        return other

    @property
    def inputs(self) -> list[tuple[str, torch.Tensor]]:
        """The tensor inputs, with their names."""
        named = [*leaves(self.args, "args"), *leaves(self.kwargs, "kwargs")]
        return [(name, x) for name, x in named if isinstance(x, torch.Tensor)]

    def __call__(self, call: Callable[..., Any]) -> Any:
        """Run one step; ``call`` is the model or its compiled form. Gives its output."""
        if not self.train:
            with torch.no_grad():
                return call(*self.args, **self.kwargs)
        self.clear_gradients()
        output = call(*self.args, **self.kwargs)
        self._backward(output)
        if self._optimizer is not None:
            self._optimizer.step()
        return output

    def clear_gradients(self) -> None:
        """Forget the gradients of the last call."""
        for leaf in self.trained:
            leaf.grad = None

    def _trained(self) -> list[torch.Tensor]:
        inputs = [x for _, x in self.inputs if x.requires_grad]
        return inputs + [p for p in self.workload.model.parameters() if p.requires_grad]

    def _backward(self, output: Any) -> None:
        if self.workload.loss is not None:
            self.loss = self.workload.loss(output)
            if self.loss.requires_grad:
                self.loss.backward()  # type: ignore[no-untyped-call] # torch has no stub
            return
        found = [x for _, x in leaves(output, "output") if _differentiable(x)]
        if found:
            torch.autograd.backward(found, [self._cotangent(i, x) for i, x in enumerate(found)])

    def _cotangent(self, position: int, output: torch.Tensor) -> torch.Tensor:
        if output.is_nested:
            raise ProofImpossible(f"an output {NESTED}")
        known = self.cotangents.get(position)
        if known is None or known.shape != output.shape:
            known = self.cotangents[position] = _drawn(output, self.seed + position)
        # Truth is given eager's own cotangent: rounded to the working dtype first.
        return known.to(output.dtype)


def device_of(workload: Workload) -> torch.device:
    """Return the device that a workload runs on."""
    inputs = [x for _, x in leaves((workload.args, dict(workload.kwargs)), "inputs")]
    for value in [*workload.model.parameters(), *workload.model.buffers(), *inputs]:
        if isinstance(value, torch.Tensor):
            return value.device
    return torch.device("cpu")


def _drawn(like: torch.Tensor, seed: int) -> torch.Tensor:
    # Whoever watches the step's operators must not take this for the model's own draw.
    with _disable_current_modes():
        generator = torch.Generator(like.device).manual_seed(seed)
        dtype = torch.complex64 if like.is_complex() else torch.float32
        drawn = torch.randn(like.shape, generator=generator, device=like.device, dtype=dtype)
        return drawn.to(like.dtype)


def _leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not (value.is_floating_point() or value.is_complex()):
        return value
    return copied(value).requires_grad_()


def _as_given(value: Any) -> Any:
    wanted = isinstance(value, torch.Tensor) and value.requires_grad
    return _leaf(value) if wanted else value


def _same(value: Any) -> Any:
    return value


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
