"""Everything that one run of a workload gave, for comparison with another run's.

A result is more than numbers: whether it can be differentiated, what it shares memory with, what
the run changed on its way. Each of these a backend can lose while every number is right.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from backbay.proof.fingerprint import fingerprint
from backbay.proof.generators import started
from backbay.proof.state import Attributes, Named, State
from backbay.proof.step import Step, device_of
from backbay.proof.tree import is_opaque, leaves, plain, structure
from backbay.workloads.workload import Workload

HOME = "the model's device"
"""Of two runs on different devices, each has its own."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run's results, detached, on the device that they were computed on."""

    tensors: dict[str, torch.Tensor]
    """Output tensors by name, such as ``output.logits``; in training also ``loss``."""
    requires_grad: dict[str, bool]
    """Of each output tensor, whether it can be differentiated."""
    plain: dict[str, Any] = field(default_factory=dict)
    """Output leaves that are no tensors; objects are only named by their type."""
    structure: str = ""
    """How the output is nested."""
    aliases: frozenset[tuple[str, str]] = frozenset()
    """Output tensor and what shares memory with it: an input, parameter or buffer, or the first
    output that does."""
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    """``gradient of layers.0.weight``; None where backward did not reach."""
    changed: dict[str, torch.Tensor] = field(default_factory=dict)
    """State after the run of every input and buffer that the run changed."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Fingerprint after the run of every parameter."""
    opaque: tuple[str, ...] = ()
    """Output leaves whose content is out of sight."""
    devices: dict[str, str] = field(default_factory=dict)
    """Of each output tensor, and each input and buffer that the run changed: `HOME` for the
    model's own device, else its name."""
    seeded: tuple[str, ...] = ()
    """Torch's random generators that the run seeded."""


def observe(call: Callable[..., Any], workload: Workload, *, train: bool, seed: int = 0) -> Outcome:
    """Run one step and note everything that it gave.

    The model's buffers and attributes, the inputs and the random state are as before afterwards.
    Gradients of the parameters are left as None.

    Args:
        call: the workload's model, or its compiled form.
        workload: what to run it on.
        train: whether to run backward as well.
        seed: of the random state that the step starts from, and of cotangents.
    """
    return outcome_of(call, Step(workload, train=train, seed=seed), seed=seed)


def outcome_of(
    call: Callable[..., Any],
    step: Step,
    *,
    seed: int,
    during: AbstractContextManager[Any] | None = None,
) -> Outcome:
    """Run a given step and note everything that it gave; see ``observe``.

    ``during`` is active while the step runs, and not while its results are noted.
    """
    state, attributes = State(step), Attributes(step.workload.model)
    try:
        with started(seed) as start:
            with during or nullcontext():
                output = step(call)
            seeded = start.seeded()
            try:
                return replace(_noted(output, step, state), seeded=seeded)
            finally:
                step.clear_gradients()
    finally:
        state.put_back()
        attributes.put_back()


def outcome_of_last(output: Any, step: Step, before: State) -> Outcome:
    """Note what the last call of a step gave, which somebody else made.

    Args:
        output: what it returned.
        step: whose call it was.
        before: the state of that step before it.
    """
    return _noted(output, step, before, fingerprints=False)


def gradients_of(step: Step) -> dict[str, torch.Tensor | None]:
    """Return the gradients that a step has left, by name; there are none without training."""
    if not step.train:
        return {}
    leaves_of_graph = [*step.inputs, *step.workload.model.named_parameters()]
    # What is frozen must have none.
    reached = [(n, x) for n, x in leaves_of_graph if x.requires_grad or x.grad is not None]
    return {f"gradient of {name}": x.grad for name, x in reached}


@contextmanager
def unchanged(step: Step, *, seed: int = 0) -> Iterator[None]:
    """Write back, when the block ends, what steps in it changed: buffers, inputs, random state.

    Args:
        step: whose buffers and inputs.
        seed: of the random state that the block starts from.
    """
    state = State(step)
    try:
        with started(seed):
            yield
    finally:
        state.put_back()


def _noted(output: Any, step: Step, state: State, *, fingerprints: bool = True) -> Outcome:
    weights = [(f"parameter {n}", x) for n, x in step.workload.model.named_parameters()]
    found = leaves(output, "output")
    tensors: Named = [(name, x) for name, x in found if isinstance(x, torch.Tensor)]
    results = tensors if step.loss is None else [*tensors, ("loss", step.loss)]
    changed, home = state.changed(), device_of(step.workload)
    placed = [*results, *((f"{name} after the run", x) for name, x in changed.items())]
    return Outcome(
        tensors={name: x.detach().clone() for name, x in results},
        requires_grad={name: x.requires_grad for name, x in results},
        plain={name: plain(x) for name, x in found if not isinstance(x, torch.Tensor)},
        structure=structure(output),
        aliases=_aliases(tensors, [*state.now, *weights]),
        gradients={
            name: None if x is None else x.detach().clone()
            for name, x in gradients_of(step).items()
        },
        changed=changed,
        parameters={name: fingerprint(x) for name, x in weights if fingerprints},
        opaque=tuple(f"{name} ({plain(x)})" for name, x in found if is_opaque(x)),
        devices={name: HOME if x.device == home else str(x.device) for name, x in placed},
    )


def _aliases(outputs: Named, others: Named) -> frozenset[tuple[str, str]]:
    owners = {_storage(x): name for name, x in others if x.numel()}
    shared = set[tuple[str, str]]()
    for name, output in outputs:
        if output.numel():
            owner = owners.setdefault(_storage(output), name)
            shared |= {(name, owner)} if owner != name else set()
    return frozenset(shared)


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr() if value.layout == torch.strided else id(value)
