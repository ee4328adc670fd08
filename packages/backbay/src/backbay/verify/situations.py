"""The situations that a model is proven in: first, after steps of training, with other batches.

Training is stochastic gradient descent with momentum, the same for everybody. Its rate is chosen so
that the first step moves the parameters by a hundredth of their size: enough that stale parameters
show, too little to leave where the model works. Momentum is linear in the gradients, so that honest
rounding stays what it is; Adam would divide by it.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from backbay.proof import Golden, Outcome, Step, Workload, observe
from backbay.proof.copying import is_expanded
from backbay.proof.golden import proof_context
from backbay.proof.shrink import shrunk
from backbay.proof.state import Attributes, Buffers
from backbay.proof.tree import leaves
from backbay.verify.requests import Course, Situation
from backbay.workloads.batches import with_batch

FIRST = Situation()
CALLS = Situation(kind="calls")

TRAINED_EAGER, TRAINED_TRUE = "trained eager", "trained true"
"""Names of the files with the parameters that free training ended at."""

MOMENTUM = 0.9
_MOVE = 0.01
_SMALLEST = 1e-12
_COMPILES = 256
"""How often Dynamo may compile a function again; past its own limit of 8 it runs it eagerly, and
nothing more would be seen of the backend."""


@dataclasses.dataclass(frozen=True)
class Situations:
    """One mode of a workload, and what it is called with in each situation."""

    workload: Workload
    course: Course

    @classmethod
    def prepared(cls, workload: Workload, course: Course) -> Self:
        """Return those that were prepared, of the workload at the size that has a truth."""
        found = shrunk(workload, train=course.setup.train) if course.reduced else workload
        return cls(found, course)

    def context(self) -> contextlib.AbstractContextManager[None]:
        """Be in the state that a candidate must be compiled and observed in."""
        course = self.course
        return proof_context(draws_random=course.draws_random, math_attention=course.math_attention)

    @property
    def train(self) -> bool:
        """Whether a step is forward and backward."""
        return self.course.setup.train

    @property
    def seed(self) -> int:
        """Of everything random."""
        return self.course.setup.seed

    def tensors(self, name: str) -> list[torch.Tensor]:
        """Load tensors that were kept under a name."""
        return list(torch.load(self.path(name), mmap=True, map_location="cpu", weights_only=True))

    def keep_tensors(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Keep tensors under a name."""
        torch.save(list(tensors), self.path(name))

    def path(self, name: str) -> str:
        """Return the file of what is kept under a name."""
        return str(Path(self.course.folder) / f"{self.course.setup.mode} {name}.pt")

    def called_with(self, situation: Situation) -> Workload:
        """Return the workload with a situation's inputs; for its state see `state_of`."""
        if situation.kind != "batch":
            return self.workload
        other = with_batch(self.workload, situation.number)
        return other if situation.own_loss else dataclasses.replace(other, loss=None)

    @contextlib.contextmanager
    def state_of(self, situation: Situation) -> Iterator[None]:
        """Put the model into a situation's state; afterwards it is as it was."""
        with kept(self.workload.model):
            if situation.kind == "step":
                put(self.workload.model, self.tensors(state_name(situation.number)))
            yield

    def observe(self, call: Callable[..., Any], situation: Situation) -> Outcome:
        """Run the model, compiled or not, in a situation."""
        with self.state_of(situation):
            other = self.called_with(situation)
            return observe(call, other, train=self.train, seed=self.seed)


def state_name(step: int) -> str:
    """Return the name under which the state before a step is kept."""
    return f"state {step}"


@contextlib.contextmanager
def kept(model: torch.nn.Module) -> Iterator[None]:
    """Write back what the block changes in parameters, buffers and attributes."""
    parameters = [(x, x.detach().clone()) for x in model.parameters()]
    buffers, attributes = Buffers(model), Attributes(model)
    try:
        yield
    finally:
        attributes.put_back()
        with torch.no_grad():
            for own, value in parameters:
                own.copy_(value)
        buffers.put_back()


def put(model: torch.nn.Module, values: Sequence[torch.Tensor]) -> None:
    """Write a state into a model, in place: what was compiled must see it."""
    with torch.no_grad():
        for own, value in zip(state(model), values, strict=True):
            own.copy_(value)


def state(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return what training changes: parameters, then buffers."""
    return [*model.parameters(), *model.buffers()]


def room() -> contextlib.AbstractContextManager[None]:
    """Let Dynamo compile again as often as a verification needs."""
    patched: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(  # noqa: SLF001
        recompile_limit=_COMPILES
    )
    return patched


def rate_for(workload: Workload, golden: Golden) -> float:
    """Return the learning rate for eager's first gradients; 0 where there are none."""
    parameters = {f"gradient of {n}": p for n, p in workload.model.named_parameters()}
    gradients = golden.eager.gradients
    reached = [(p, g) for n, p in parameters.items() if (g := gradients.get(n)) is not None]
    size = math.sqrt(sum(_squares(p) for p, _ in reached))
    slope = math.sqrt(sum(_squares(g) for _, g in reached))
    if not math.isfinite(slope) or slope < _SMALLEST:
        return 0.0
    return float(f"{_MOVE * max(size, _SMALLEST) / slope:.2g}")


def train(
    call: Callable[..., Any], step: Step, *, steps: int, rate: float, seed: int
) -> Iterator[float | None]:
    """Train in place; yields the loss of each step before its update, None if not finite.

    Every step starts from the same random state. The model is left trained, and the inputs are as
    they were, whatever it wrote into them.
    """
    inputs = [(x, x.detach().clone()) for _, x in step.inputs]
    parameters = [p for p in step.workload.model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM)
    for _ in range(steps):
        torch.manual_seed(seed)
        loss = _loss(step, step(call))
        yield loss if math.isfinite(loss) else None
        optimizer.step()
    step.clear_gradients()
    with torch.no_grad():
        for own, value in inputs:
            if not is_expanded(own):  # nothing can be written into it
                own.copy_(value)


def drift(
    trained: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]
) -> float | None:
    """Return the distance of trained parameters from the truth's, over that of eager's."""
    own, usual = (
        math.sqrt(sum(_squares(x.cpu().to(y.dtype) - y) for x, y in zip(these, truth, strict=True)))
        for these in (trained, eager)
    )
    ratio = own / usual if usual else (1.0 if not own else math.inf)
    return ratio if math.isfinite(ratio) else None


def _loss(step: Step, output: Any) -> float:
    if step.loss is not None:
        return float(step.loss.detach())
    # Backward started from fixed cotangents: this is what has them as its gradient.
    found = [x for _, x in leaves(output, "output") if isinstance(x, torch.Tensor)]
    differentiable = [x.detach() for x in found if x.requires_grad]
    pairs = ((x, step.cotangents[i]) for i, x in enumerate(differentiable))
    return float(sum((x.double() * y.double()).sum().item() for x, y in pairs))


def _squares(value: torch.Tensor) -> float:
    return value.detach().abs().double().square().sum().item()
