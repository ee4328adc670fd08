"""Answers a verification's requests: in a child process, or in this one for a model object."""

import contextlib
import traceback
from collections.abc import Iterator, Mapping

import torch

from backbay.errors import InputError, ProofImpossible
from backbay.proof import Workload, digest
from backbay.race.bench import one_line
from backbay.registry import CompilerFn, Registry, default_registry
from backbay.verify import job
from backbay.verify.calling import called
from backbay.verify.isolating import Isolation
from backbay.verify.preparing import NothingToTrain, Preparation
from backbay.verify.proving import Session
from backbay.verify.situations import FIRST, Files, state_of


class Desk:
    """Where requests are answered, one after the other."""

    def __init__(
        self,
        workload: Workload | None = None,
        backends: Mapping[str, str | CompilerFn] | None = None,
        registry: Registry = default_registry,
    ) -> None:
        self._given = workload
        self._backends = backends or {}
        self._registry = registry
        self._built: tuple[job.Setup, str, Workload] | None = None
        self._session: tuple[job.Setup, str, Session] | None = None

    def answer(self, request: job.Request) -> job.Reply:
        """Carry out a request. Nothing is raised: what goes wrong is a reply."""
        workload: Workload | None = None
        try:
            workload = self._workload(request)
            with _in_mode(workload.model, train=request.setup.train):
                return self._carry_out(request, workload)
        except InputError as error:
            detail = "\n".join(getattr(error, "__notes__", ()))
            return job.Refused(reason=str(error), input_error=True, detail=detail)
        except NothingToTrain:
            reason = "there is nothing to train: no parameter or input could have a gradient"
            return job.Refused(reason=reason, nothing_to_train=True)
        except ProofImpossible as error:
            return job.Refused(reason=str(error))
        except Exception as error:  # noqa: BLE001 (whatever a model or a backend raises is a result)
            traceback.print_exc()
            return job.Refused(reason=one_line(error))

    def _carry_out(self, request: job.Request, workload: Workload) -> job.Reply:
        match request:
            case job.Prepare():
                return Preparation(workload, request).run(_device_name(request.setup.device))
            case job.Prove():
                return self._session_for(request, workload).judged(request.situation)
            case job.Train():
                session = self._session_for(request, workload)
                return session.trained(request.steps, request.learning_rate)
            case job.Calls():
                files = Files(request.folder, request.setup.mode)
                golden = files.golden(FIRST)
                with state_of(workload.model, FIRST, files):
                    return job.Called(calls=tuple(called(golden.at(workload), request.setup.seed)))
            case job.Alone():
                self._session = None  # Dynamo is reset
                return self._isolation(request, workload).judged(request.situation, request.eager)

    def _session_for(self, request: job.Prove | job.Train, workload: Workload) -> Session:
        setup = request.setup
        if self._session is None or self._session[:2] != (setup, request.backend):
            session = Session(
                workload,
                self._compiler(request.backend),
                Files(request.folder, setup.mode),
                train=setup.train,
                seed=setup.seed,
            )
            self._session = (setup, request.backend, session)
        return self._session[2]

    def _isolation(self, request: job.Alone, workload: Workload) -> Isolation:
        return Isolation(
            workload,
            self._compiler(request.backend),
            Files(request.folder, request.setup.mode),
            module=request.module,
            train=request.setup.train,
            seed=request.setup.seed,
        )

    def _compiler(self, name: str) -> CompilerFn:
        given = self._backends.get(name, name)
        return self._registry.lookup_backend(given) if isinstance(given, str) else given

    def _workload(self, request: job.Request) -> Workload:
        setup = request.setup
        if self._given is not None:
            return self._given
        if self._built is None or self._built[0] != setup:
            from backbay.race.workloads import load  # noqa: PLC0415 (a given model needs none of it)

            built = load(
                setup.workload,
                seed=setup.seed,
                dtype=getattr(torch, setup.dtype),
                device=torch.device(setup.device),
                train=setup.train,
                size=setup.size,
            )
            self._built = (setup, digest(built), built)
        if not isinstance(request, job.Prepare) and self._built[1] != request.digest:
            raise InputError(
                f"workload {setup.workload!r} was not built alike twice: its parameters or inputs "
                "differ between processes. Draw all random numbers from torch's default generator."
            )
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


def _device_name(device: str) -> str:
    on_cuda = torch.device(device).type == "cuda"
    return torch.cuda.get_device_name(device) if on_cuda else torch.device(device).type
