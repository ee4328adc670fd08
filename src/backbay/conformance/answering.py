"""Answers the suite's requests in the process that runs the cases."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from backbay.conformance import job, suite
from backbay.conformance.running import attributed, is_failure, run_case
from backbay.conformance.subject import Subject, one_line
from backbay.errors import BackbayError
from backbay.registry import BackendSpec, CompilerFn, Registry, Traits, default_registry
from backbay.registry.target import TargetNotFound, parse
from backbay.rungs import rungs_below

if TYPE_CHECKING:
    from backbay.conformance.case import Case


class Desk:
    """Where requests are answered, one after the other."""

    def __init__(self, backend: CompilerFn | None = None, registry: Registry | None = None) -> None:
        self._given = backend
        self._registry = registry or default_registry
        self._setup: job.Setup | None = None
        self._cases: dict[str, Case] = {}
        self._rungs: tuple[str, ...] = ()

    def answer(self, request: job.Request) -> job.Reply:
        """Do what is asked; an error of the caller's is a reply."""
        try:
            if isinstance(request, job.Setup):
                return self._prepare(request)
            return self._run(request) if isinstance(request, job.Run) else _shown(request)
        except (BackbayError, TargetNotFound) as error:
            return job.Refused(reason=one_line(error))

    def subject(self, rung: str | None = None) -> Subject:
        """Make a subject for one run of a case: the backend under test, or a rung.

        Raises:
            BackbayError: there is no such backend.
        """
        assert self._setup is not None  # comes first
        name = self._setup.backend if rung is None else rung
        given = self._given if rung is None else None
        compiler = self._registry.lookup_backend(name) if given is None else given
        spec = self._spec(name, compiler)
        return Subject(
            compiler,
            name=name,
            device=torch.device(self._setup.device),
            seed=self._setup.seed,
            traits=Traits() if spec is None else spec.traits,
            configure=functools.partial(self._configured, name) if given is None else None,
            spec=spec,
            registry=self._registry if given is None else None,
            runs_graphs_as_they_are=spec is not None and spec.debug,
        )

    def _prepare(self, setup: job.Setup) -> job.Ready:
        self._setup = setup
        if self._given is None and parse(setup.backend) is None:
            self._registry.require(setup.backend, torch.device(setup.device).type)
        compiler = self.subject().watched.compiler  # loads it
        self._cases = suite.collected(
            torch.device(setup.device).type, setup.levels, all_samples=setup.all_samples
        )
        cases = suite.chosen(
            self._cases.values(), profile=setup.profile, seed=setup.seed, only=setup.only
        )
        codegen = getattr(compiler, "codegen", None)
        ends_in = (codegen,) if isinstance(codegen, str) and codegen != setup.backend else ()
        self._rungs = rungs_below(setup.backend, ends_in)
        return job.Ready(
            cases=tuple((x.id, x.timeout_s) for x in cases),
            rungs=self._rungs,
            known=tuple(self._cases),
            device_name=_device_name(torch.device(setup.device)),
        )

    def _run(self, request: job.Run) -> job.Ran:
        case = self._case(request)
        result = run_case(case, self.subject(request.rung))
        if request.attribute and is_failure(result):
            result = attributed(case, result, self.subject, self._rungs)
        return job.Ran(result=result)

    def _case(self, request: job.Run) -> "Case":
        """Give a case that was collected, or one of the fuzzer's that is made when it is asked."""
        if request.program is None and request.id in self._cases:
            return self._cases[request.id]
        from backbay.conformance.levels import programs  # noqa: PLC0415 (most runs have no fuzzer)

        if request.program is not None:
            return programs.case_of(request.program, request.id)
        return programs.case_at(programs.seed_of(request.id))

    def _configured(
        self, name: str, mode: str | None, options: Mapping[str, Any] | None
    ) -> CompilerFn:
        return self._registry.get_backend(name, mode=mode, options=options)

    def _spec(self, name: str, compiler: CompilerFn) -> BackendSpec | None:
        found = self._registry.resolutions().get(name)
        if found is not None:
            return found.spec
        return getattr(compiler, "spec", None)


def _shown(request: job.Show) -> job.Shown | job.Refused:
    from backbay.conformance.fuzz.drawing import NoProgramError, program  # noqa: PLC0415 (likewise)

    try:
        return job.Shown(program=program(request.seed))
    except NoProgramError as error:
        return job.Refused(reason=one_line(error))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
