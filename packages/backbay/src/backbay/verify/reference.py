"""What backends are held against: eager and float64, in every situation, once for all of them."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch._dynamo.utils import counters

from backbay.causes import one_line
from backbay.errors import NothingTrained, ProofImpossible
from backbay.proof import Golden, Step, Workload, digest, in_float64, make_golden
from backbay.proof.bank import make_bank
from backbay.proof.draws import Recording, Replay
from backbay.proof.tree import leaves
from backbay.proof.truth import raised
from backbay.reporting.wording import counted
from backbay.verify.requests import NothingToTrain, Prepare, Prepared, Situation
from backbay.verify.situations import (
    CALLS,
    FIRST,
    TRAINED_EAGER,
    TRAINED_TRUE,
    Situations,
    kept,
    put,
    rate_for,
    room,
    state,
    state_name,
    train,
)
from backbay.workloads.batches import batch_of


def prepared(workload: Workload, request: Prepare, device_name: str) -> Prepared | NothingToTrain:
    """Run everything that needs no backend, and keep what comes of it in files.

    Raises:
        ProofImpossible: there is no truth of the workload as it is.
    """
    setup = request.course.setup
    if setup.train and not _trainable(workload):
        return NothingToTrain()
    course = msgspec.structs.replace(request.course, digest=digest(workload))
    try:
        bank = make_bank(workload, train=setup.train, seed=setup.seed, seeds=request.seeds)
    except NothingTrained as error:
        return NothingToTrain(reason=f"there is nothing to train: {error}")
    golden = bank.goldens[0]
    course = msgspec.structs.replace(
        course,
        reduced=golden.reduced,
        draws_random=golden.draws_random,
        math_attention=golden.math_attention,
    )
    notes = [*golden.notes, *bank.notes]
    if workload.further:
        left = counted(len(workload.further), "further call")
        notes.append(f"not checked: {left} of the workload; a race judges every call")
    reference = _Reference(Situations.prepared(workload, course), request, notes)
    reference.made += (FIRST, CALLS)
    bank.save(reference.situations.path(FIRST.name))
    with golden.context():
        if setup.train:
            reference.train(golden)
        reference.batches()
        usual = reference.usual_graphs()
    return Prepared(
        workload=workload.name,
        course=course,
        situations=tuple(reference.made),
        usual_graphs=usual,
        goldens=tuple(reference.files),
        bank=reference.situations.path(FIRST.name),
        seeds=bank.seeds,
        row=bank.row_sets,
        learning_rate=reference.rate,
        eager_losses=reference.eager_losses,
        true_losses=reference.true_losses,
        device_name=device_name,
        notes=tuple(reference.notes),
    )


def _trainable(workload: Workload) -> bool:
    inputs = [x for _, x in leaves((workload.args, dict(workload.kwargs)), "inputs")]
    floating = (isinstance(x, torch.Tensor) and x.is_floating_point() for x in inputs)
    return any(floating) or any(x.requires_grad for x in workload.model.parameters())


@dataclasses.dataclass
class _Reference:
    """What there is to be held against, as it is made."""

    situations: Situations
    request: Prepare
    notes: list[str]
    made: list[Situation] = dataclasses.field(default_factory=list)
    """The situations that have a truth."""
    files: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """Name and file of what backends must not be able to write."""
    rate: float = 0.0
    eager_losses: tuple[float | None, ...] = ()
    true_losses: tuple[float | None, ...] = ()

    def keep(self, situation: Situation, golden: Golden) -> None:
        """Keep a situation's truth."""
        path = self.situations.path(situation.name)
        golden.save(path)
        self.files.append((situation.name, path))
        self.made.append(situation)

    def train(self, golden: Golden) -> None:
        """Train in eager, and make the truth of every step from the state that eager is in then."""
        workload = self.situations.workload
        model = workload.model
        self.rate = rate_for(workload, golden)
        if not self.rate:
            trained = any(x.requires_grad for x in model.parameters())
            why = (
                "eager's gradients are zero" if trained else "the model has no parameters to train"
            )
            self.notes.append(f"no steps of training were tried: {why}")
            return
        step = Step(workload, train=True, seed=self.situations.seed)
        losses, states, draws = [], [], Recording()
        with kept(model):
            with torch.random.fork_rng(), draws:
                for loss in self._trained(model, step):
                    losses.append(loss)
                    states.append([x.detach().clone() for x in state(model)])
            self._keep_trained(TRAINED_EAGER, model)
            for number, values in enumerate(states[1:], 2):
                self.situations.keep_tensors(state_name(number), values)
                put(model, values)
                situation = Situation(kind="step", number=number)
                try:
                    self.keep(situation, self._golden(workload))
                except ProofImpossible as error:
                    self.notes.append(f"{situation.name} was not tried: {error}")
        self.eager_losses = tuple(losses)
        with contextlib.suppress(ProofImpossible):
            self.true_losses = self._true_losses(step, Replay(draws.draws))

    def _true_losses(self, eager: Step, replay: Replay) -> tuple[float | None, ...]:
        double = raised(self.situations.workload)
        seed = self.situations.seed
        step = Step(double, train=True, seed=seed, cotangents=eager.cotangents)
        with torch.random.fork_rng(), in_float64(), replay:
            losses = tuple(self._trained(double.model, step))
        self._keep_trained(TRAINED_TRUE, double.model)
        return losses

    def _trained(self, call: Callable[..., Any], step: Step) -> Iterator[float | None]:
        steps, seed = self.request.steps, self.situations.seed
        return train(call, step, steps=steps, rate=self.rate, seed=seed)

    def _keep_trained(self, name: str, model: torch.nn.Module) -> None:
        self.situations.keep_tensors(name, [x.detach() for x in model.parameters()])
        self.files.append((name, self.situations.path(name)))

    def _golden(self, workload: Workload) -> Golden:
        return make_golden(workload, train=self.situations.train, seed=self.situations.seed)

    def batches(self) -> None:
        """Make the truth for other batch sizes."""
        batch = batch_of(self.situations.workload)
        if isinstance(batch, str):
            self.notes.append(f"no other batch size was tried: {batch}")
            return
        sizes = self.request.batches
        if sizes is None:
            # A batch of one is a case of its own to Dynamo, which compiles it by itself.
            fewer = batch - 1
            sizes = (batch + 1, fewer if fewer > 1 else batch + 2)
        for size in sizes:
            self._batch(Situation(kind="batch", number=size))

    def _batch(self, situation: Situation) -> None:
        name = situation.name
        try:
            golden = self._golden(self.situations.called_with(situation))
        except ProofImpossible as error:
            self.notes.append(f"{name} was not tried: {error}")
            return
        except Exception as error:  # noqa: BLE001 (whatever the model raises for another batch)
            if situation.own_loss and self.situations.workload.loss is not None:
                self._batch(msgspec.structs.replace(situation, own_loss=False))
                return
            raising = f"uncompiled, the model raises {one_line(error)}"
            self.notes.append(f"{name} was not tried: {raising}")
            return
        if golden.reduced:
            self.notes.append(f"{name} was not tried: its float64 truth does not fit")
            return
        if not situation.own_loss:
            without = "without the workload's loss, which does not take it"
            self.notes.append(f"{name} was proven {without}")
        self.keep(situation, golden)

    def usual_graphs(self) -> tuple[int | None, ...]:
        """Count what Dynamo compiles in each situation for a backend that does nothing."""
        torch.compiler.reset()
        dynamic = self.situations.course.dynamic
        call = torch.compile(self.situations.workload.model, backend="eager", dynamic=dynamic)
        counts: list[int | None] = []
        with room():
            for situation in self.made:
                counters.clear()
                try:
                    self.situations.observe(call, situation)
                    counts.append(int(counters["stats"]["unique_graphs"]))
                except Exception:  # noqa: BLE001 (then nobody knows what is usual)
                    counts.append(None)
        torch.compiler.reset()
        return tuple(counts)
