"""A few steps of training: stochastic gradient descent with momentum, the same for everybody.

Its rate is chosen so that the first step moves the parameters by a hundredth of their size: enough
that stale parameters show, too little to leave where the model works. Momentum is linear in the
gradients, so that honest rounding stays what it is; Adam would divide by it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from backbay.proof import Golden, Step, Workload
from backbay.proof.tree import leaves

MOMENTUM = 0.9
_MOVE = 0.01
_SMALLEST = 1e-12


def rate_for(workload: Workload, golden: Golden) -> float:
    """Choose the learning rate from eager's first gradients; 0 where there are none."""
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
    """Train in place, and give the loss of each step before its update; None if not finite.

    Every step starts from the same random state. The model is left trained.
    """
    parameters = [p for p in step.workload.model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM)
    for _ in range(steps):
        torch.manual_seed(seed)
        output = step(call)
        loss = _loss(step, output)
        yield loss if math.isfinite(loss) else None
        optimizer.step()
    step.clear_gradients()


def drift(
    trained: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]
) -> float | None:
    """Return the distance of trained parameters from the truth's, over that of eager's."""
    own, usual = (_distance(x, truth) for x in (trained, eager))
    ratio = own / usual if usual else (1.0 if not own else math.inf)
    return ratio if math.isfinite(ratio) else None


def _distance(these: Sequence[torch.Tensor], those: Sequence[torch.Tensor]) -> float:
    pairs = zip(these, those, strict=True)
    return math.sqrt(sum(_squares(x.cpu().to(y.dtype) - y) for x, y in pairs))


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
