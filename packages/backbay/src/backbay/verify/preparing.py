"""What backends are held against: eager and float64, in every situation, once for all of them."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.utils import counters

from backbay.errors import ProofImpossible
from backbay.messages import one_line
from backbay.proof import Golden, Step, Workload, digest, in_float64, make_golden
from backbay.proof.draws import Recording, Replay
from backbay.proof.tree import leaves
from backbay.proof.truth import raised
from backbay.verify.proving import room, run
from backbay.verify.requests import NothingToTrain, Prepare, Prepared, Situation
from backbay.verify.situations import (
    FIRST,
    TRAINED_EAGER,
    TRAINED_TRUE,
    Files,
    inputs_of,
    kept,
    put,
    state,
    state_name,
)
from backbay.verify.training import rate_for, train
from backbay.workloads.batches import batch_of


@dataclasses.dataclass
class Preparation:
    """One mode's."""

    workload: Workload
    request: Prepare
    notes: list[str] = dataclasses.field(default_factory=list)
    situations: list[Situation] = dataclasses.field(default_factory=list)
    rate: float = 0.0
    eager_losses: tuple[float | None, ...] = ()
    true_losses: tuple[float | None, ...] = ()

    def run(self, device_name: str) -> Prepared | NothingToTrain:
        """Run everything that needs no backend.

        Raises:
            ProofImpossible: there is no truth of the workload as it is.
        """
        if self._train and not _trainable(self.workload):
            return NothingToTrain()
        fingerprint = digest(self.workload)
        golden = self._golden(self.workload)
        self._keep(FIRST, golden)
        self.notes += golden.notes
        self.workload = golden.at(self.workload)
        with golden.context():
            if self._train:
                self._steps(golden)
            batch = batch_of(self.workload)
            self._batches(batch)
            usual = self._usual_graphs()
        return Prepared(
            workload=self.workload.name,
            digest=fingerprint,
            batch=batch if isinstance(batch, int) else None,
            situations=tuple(self.situations),
            usual_graphs=tuple(usual),
            learning_rate=self.rate,
            eager_losses=self.eager_losses,
            true_losses=self.true_losses,
            device_name=device_name,
            notes=tuple(self.notes),
        )

    @property
    def _train(self) -> bool:
        return self.request.setup.train

    @property
    def _seed(self) -> int:
        return self.request.setup.seed

    @property
    def files(self) -> Files:
        """Where this mode's files are."""
        return Files(self.request.folder, self.request.setup.mode)

    def _golden(self, workload: Workload) -> Golden:
        return make_golden(workload, train=self._train, seed=self._seed)

    def _keep(self, situation: Situation, golden: Golden) -> None:
        self.files.keep_golden(situation, golden)
        self.situations.append(situation)

    def _batches(self, batch: int | str) -> None:
        if isinstance(batch, str):
            self.notes.append(f"no other batch size was tried: {batch}")
            return
        sizes = self.request.batches
        for size in sizes if sizes is not None else _others(batch):
            self._batch(Situation(kind="batch", number=size))

    def _batch(self, situation: Situation) -> None:
        try:
            golden = self._golden(inputs_of(self.workload, situation))
        except ProofImpossible as error:
            self.notes.append(f"{situation.name} was not tried: {error}")
        except Exception as error:  # noqa: BLE001 (whatever the model raises for another batch)
            if situation.own_loss and self.workload.loss is not None:
                self._batch(Situation(kind="batch", number=situation.number, own_loss=False))
                return
            said = one_line(error)
            self.notes.append(
                f"{situation.name} was not tried: uncompiled, the model raises {said}"
            )
        else:
            self._keep_batch(situation, golden)

    def _keep_batch(self, situation: Situation, golden: Golden) -> None:
        if golden.reduced:
            self.notes.append(f"{situation.name} was not tried: its float64 truth does not fit")
            return
        if not situation.own_loss:
            self.notes.append(
                f"{situation.name} was proven without the workload's loss, which does not take it"
            )
        self._keep(situation, golden)

    def _steps(self, golden: Golden) -> None:
        """Train in eager, and make the truth of every step from the state that eager is in then."""
        self.rate = rate_for(self.workload, golden)
        if not self.rate:
            self.notes.append("no steps of training were tried: eager's gradients are zero")
            return
        step = Step(self.workload, train=True, seed=self._seed)
        states, draws = [], Recording()
        with kept(self.workload.model):
            losses = []
            with torch.random.fork_rng(), draws:
                for loss in self._trained(self.workload.model, step):
                    losses.append(loss)
                    states.append([x.detach().clone() for x in state(self.workload.model)])
            self._keep_trained(TRAINED_EAGER, self.workload.model)
            for number, values in enumerate(states[1:], 2):
                self.files.keep_tensors(state_name(number), values)
                put(self.workload.model, values)
                self._step(Situation(kind="step", number=number))
        self.eager_losses = tuple(losses)
        with contextlib.suppress(ProofImpossible):
            self.true_losses = self._true_losses(step, Replay(draws.draws))

    def _step(self, situation: Situation) -> None:
        try:
            self._keep(situation, self._golden(self.workload))
        except ProofImpossible as error:
            self.notes.append(f"{situation.name} was not tried: {error}")

    def _true_losses(self, eager: Step, replay: Replay) -> tuple[float | None, ...]:
        double = raised(self.workload)
        step = Step(double, train=True, seed=self._seed, cotangents=eager.cotangents)
        with torch.random.fork_rng(), in_float64(), replay:
            losses = tuple(self._trained(double.model, step))
        self._keep_trained(TRAINED_TRUE, double.model)
        return losses

    def _trained(self, call: Callable[..., Any], step: Step) -> Iterator[float | None]:
        return train(call, step, steps=self.request.steps, rate=self.rate, seed=self._seed)

    def _keep_trained(self, name: str, model: torch.nn.Module) -> None:
        self.files.keep_tensors(name, [x.detach() for x in model.parameters()])

    def _usual_graphs(self) -> list[int | None]:
        """Count what Dynamo compiles in each situation for a backend that does nothing."""
        torch.compiler.reset()
        call = torch.compile(self.workload.model, backend="eager")
        counts: list[int | None] = []
        with room():
            for situation in self.situations:
                counters.clear()
                try:
                    self._run(call, situation)
                    counts.append(int(counters["stats"]["unique_graphs"]))
                except Exception:  # noqa: BLE001 (then nobody knows what is usual)
                    counts.append(None)
        torch.compiler.reset()
        return counts

    def _run(self, call: Callable[..., Any], situation: Situation) -> None:
        train, seed = self._train, self._seed
        run(call, self.workload, situation, self.files, train=train, seed=seed)


def _others(batch: int) -> tuple[int, int]:
    # A batch of one is a case of its own to Dynamo, which compiles it by itself.
    fewer = batch - 1
    return (batch + 1, fewer if fewer > 1 else batch + 2)


def _trainable(workload: Workload) -> bool:
    inputs = [x for _, x in leaves((workload.args, dict(workload.kwargs)), "inputs")]
    floating = (isinstance(x, torch.Tensor) and x.is_floating_point() for x in inputs)
    return any(floating) or any(x.requires_grad for x in workload.model.parameters())
