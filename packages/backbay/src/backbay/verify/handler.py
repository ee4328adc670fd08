"""Answers a verification's requests: in a child process, or in this one for a model object."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch

from backbay.decisions import Arm
from backbay.errors import ProofImpossible
from backbay.proof import Workload, digest
from backbay.registry import CompilerFn, Registry, default_registry
from backbay.registry.requested import Requested
from backbay.session import Refused
from backbay.timing.device import device_name
from backbay.verify.compiled import CompiledModel
from backbay.verify.modules import called, given_alone, prepared_alone
from backbay.verify.reference import prepared
from backbay.verify.requests import (
    Again,
    AgainInARow,
    Alone,
    Called,
    Calls,
    Check,
    Checked,
    Done,
    Finish,
    Hand,
    OfCourse,
    OfModel,
    Prepare,
    PrepareAlone,
    Prove,
    Reply,
    Request,
    Train,
)
from backbay.verify.situations import FIRST, Situations
from backbay.workloads.setup import WorkloadSetup, not_alike


class VerifyHandler:
    """One workload, and the backend that it was last compiled with."""

    requests: ClassVar[Any] = Request

    def __init__(
        self,
        workload: Workload | None = None,
        backends: Mapping[str, str | CompilerFn] | None = None,
        registry: Registry = default_registry,
    ) -> None:
        self._given = workload
        self._backends = backends or {}
        self._registry = registry
        self._built: tuple[WorkloadSetup, str, Workload] | None = None
        self._model: tuple[WorkloadSetup, Arm, CompiledModel] | None = None

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request.

        Raises:
            Refused: there is no truth to prove a result against.
        """
        if isinstance(request, Check):
            return self._checked(request)
        workload = self._workload(request)
        try:
            with _in_mode(workload.model, train=request.course.setup.train):
                return self._carry_out(request, workload)
        except ProofImpossible as error:
            raise Refused(str(error)) from error

    def _checked(self, request: Check) -> Checked:
        found = list[str]()
        for arm in request.arms:
            with contextlib.suppress(Exception):  # what can't be loaded fails when it is tried
                found += [f"{arm}: {x}" for x in self._requested(arm).problems()]
        return Checked(problems=tuple(found))

    def _carry_out(self, request: OfCourse, workload: Workload) -> Reply:
        match request:
            case Prepare():
                device = torch.device(request.course.setup.device)
                return prepared(workload, request, device_name(device))
            case PrepareAlone():
                return prepared_alone(workload, request)
            case Calls():
                situations = Situations.prepared(workload, request.course)
                with situations.state_of(FIRST):
                    return Called(calls=called(situations.workload, situations.seed))
            case Alone():
                self._model = None  # Dynamo is reset
                situations = Situations.prepared(workload, request.course)
                return given_alone(situations, self._requested(request.arm).keywords(), request)
        return self._run(request, self._compiled(request, workload))

    def _run(self, request: OfModel, model: CompiledModel) -> Reply:
        match request:
            case Prove():
                return model.given(request.situation, request.path)
            case Again():
                model.again(request)
                return Done()
            case AgainInARow():
                model.again_in_a_row(request)
                return Done()
            case Hand():
                model.hand(request.path, request.picked)
                return Done()
            case Finish():
                return model.finished()
            case Train():
                return model.trained(request.steps, request.learning_rate, request.path)

    def _compiled(self, request: OfModel, workload: Workload) -> CompiledModel:
        key = (request.course.setup, request.arm)
        if self._model is None or self._model[:2] != key:
            situations = Situations.prepared(workload, request.course)
            model = CompiledModel(situations, self._requested(request.arm).keywords)
            self._model = (*key, model)
        return self._model[2]

    def _requested(self, arm: Arm) -> Requested:
        return Requested(
            backend=self._backends.get(arm.backend, arm.backend),
            name=arm.backend,
            mode=arm.mode,
            options=arm.options,
            registry=self._registry,
        )

    def _workload(self, request: OfCourse) -> Workload:
        setup = request.course.setup
        if self._given is not None:
            return self._given
        if self._built is None or self._built[0] != setup:
            from backbay.workloads.loading import build  # noqa: PLC0415 (a given model needs none)

            built = build(setup)
            self._built = (setup, digest(built), built)
        if not isinstance(request, Prepare) and self._built[1] != request.course.digest:
            raise not_alike(setup.workload)
        return self._built[2]


@contextlib.contextmanager
def _in_mode(model: torch.nn.Module, *, train: bool) -> Iterator[None]:
    """Put a model into eval or training mode; each module is in its own again afterwards."""
    before = [(x, x.training) for x in model.modules()]
    model.train(train)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
