"""Several steps of training: what is a little wrong in one step is far off after a few."""

import copy
import itertools
from collections.abc import Callable

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import judged, normal
from backbay_conformance.subject import Subject

theme = Collection("contract", "training")

_NEEDS = {"training"}
Step = Callable[[Callable[..., torch.Tensor], torch.nn.Module, list[torch.Tensor]], None]
Compile = Callable[[torch.nn.Module], Callable[..., torch.Tensor]]


def _model(subject: Subject) -> torch.nn.Module:
    layers = [torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.LayerNorm(12)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(12, 3)).to(subject.device)


def _trained(subject: Subject, model: torch.nn.Module, step: Step) -> None:
    """Train three copies: compiled, eager and in float64; compare what is left of them."""
    batches = [normal(subject, 8, 6) for _ in range(5)]

    def state(compile_: Compile, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        one = copy.deepcopy(model).to(dtype)
        step(compile_(one), one, [x.to(dtype) for x in batches])
        return {k: v.detach() for k, v in one.state_dict().items() if v.is_floating_point()}

    got = state(subject.compile, torch.float32)
    eager, truth = state(_as_it_is, torch.float32), state(_as_it_is, torch.float64)
    judged(subject, got, eager, truth, status="fail_grad")


def _as_it_is(model: torch.nn.Module) -> Callable[..., torch.Tensor]:
    return model


@theme.parametrized(("SGD", "AdamW"), needs=_NEEDS)
def steps_lead_elsewhere(subject: Subject, name: str) -> None:
    def step(
        call: Callable[..., torch.Tensor], model: torch.nn.Module, batches: list[torch.Tensor]
    ) -> None:
        optimizer = _optimizer(name, model)
        for x in batches:
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()

    _trained(subject, _model(subject), step)


@theme.case(needs=_NEEDS)
def accumulated_gradients_are_lost(subject: Subject) -> None:
    def step(
        call: Callable[..., torch.Tensor], model: torch.nn.Module, batches: list[torch.Tensor]
    ) -> None:
        optimizer = _optimizer("SGD", model)
        for first, second in itertools.pairwise(batches):
            optimizer.zero_grad(set_to_none=False)
            for x in (first, second):
                call(x).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()

    _trained(subject, _model(subject), step)


@theme.case(needs=_NEEDS | {"mutation"})
def statistics_and_weights_drift_apart(subject: Subject) -> None:
    def step(
        call: Callable[..., torch.Tensor], model: torch.nn.Module, batches: list[torch.Tensor]
    ) -> None:
        optimizer = _optimizer("SGD", model)
        for x in batches:
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()

    layers = [torch.nn.Linear(6, 9), torch.nn.BatchNorm1d(9), torch.nn.Sigmoid()]
    _trained(subject, torch.nn.Sequential(*layers, torch.nn.Linear(9, 2)).to(subject.device), step)


@theme.case(needs=_NEEDS)
def layer_that_is_frozen_on_the_way_still_moves(subject: Subject) -> None:
    def step(
        call: Callable[..., torch.Tensor], model: torch.nn.Module, batches: list[torch.Tensor]
    ) -> None:
        optimizer = _optimizer("SGD", model)
        for number, x in enumerate(batches):
            next(model.parameters()).requires_grad_(number < 2)
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()

    _trained(subject, _model(subject), step)


@theme.case(needs=_NEEDS)
def evaluation_between_steps_disturbs_training(subject: Subject) -> None:
    def step(
        call: Callable[..., torch.Tensor], model: torch.nn.Module, batches: list[torch.Tensor]
    ) -> None:
        optimizer = _optimizer("SGD", model)
        for x in batches:
            model.eval()
            with torch.no_grad():
                call(x * 2)
            model.train()
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()

    _trained(subject, _model(subject), step)


def _optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    # An epsilon that keeps a gradient near zero from being blown up to a step of full size.
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
