"""Answers the suite's requests: in a child process, or in this one for an object."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from backbay.errors import BackbayError
from backbay.proof import evidence
from backbay.reference_backends import references_below
from backbay.registry import CompilerFn, Registry, Traits, default_registry
from backbay.registry.target import TargetNotFound, parse
from backbay.session import Refused
from backbay.timing.device import device_name
from backbay_conformance import suite
from backbay_conformance.answers import Answers, HandedOn, JudgedHere, Referring
from backbay_conformance.case import CaseError
from backbay_conformance.requests import (
    Ran,
    Ready,
    Refer,
    Referred,
    Reply,
    Request,
    Run,
    Show,
    Shown,
    SuiteSetup,
    Weigh,
    Weighed,
)
from backbay_conformance.running import refer, run_case
from backbay_conformance.subject import Subject, message_of

if TYPE_CHECKING:
    from backbay_conformance.case import Case

EAGER = "eager"
"""The backend that is Dynamo alone."""


class CaseHandler:
    """The cases, and the backend that they are put to."""

    requests: ClassVar[Any] = Request

    def __init__(self, backend: CompilerFn | None = None, registry: Registry | None = None) -> None:
        self._given = backend
        self._registry = registry or default_registry
        self._setup: SuiteSetup | None = None
        self._cases: dict[str, Case] = {}
        self._references: tuple[str, ...] = ()
        self._referring: Referring | None = None

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request.

        Raises:
            Refused: the backend could not be loaded, or what is asked for does not exist.
        """
        try:
            match request:
                case SuiteSetup():
                    return self.prepare(request)
                case Run():
                    return self._ran(request)
                case Refer():
                    return self._referred(request)
                case Weigh():
                    return self._weighed(request)
                case Show():
                    return self._shown(request)
        except (BackbayError, TargetNotFound) as error:
            raise Refused(message_of(error)) from error

    def _ran(self, request: Run) -> Ran:
        case = self._case(request)
        if request.openings is None:
            return Ran(result=run_case(case, self.subject(request.reference)))
        answers = HandedOn(request.openings)
        result = run_case(case, self.subject(request.reference, answers))
        if answers.given:
            evidence.write_tensors(answers.tensors, request.path)
        return Ran(result=result, given=tuple(answers.given))

    def _referred(self, request: Refer) -> Referred:
        """Run a case uncompiled; where it then ends early, with Dynamo alone."""
        case = self._case(request)
        self._referring = Referring(compiles=False)
        if case.compiles:
            ended = refer(case, self._of_eager(self._referring, request.traits))
            if ended:
                again = Referring(compiles=True)
                refer(case, self._of_eager(again, request.traits))
                self._referring = max(self._referring, again, key=lambda x: x.asked)
        found = self._referring
        samples = range(max(found.openings, default=-1) + 1)
        return Referred(
            openings=tuple(tuple(found.openings[x]) for x in samples), asked=found.asked
        )

    def _weighed(self, request: Weigh) -> Weighed:
        assert self._referring is not None, "it is referred to first"
        try:
            tensors = evidence.read_tensors(request.path) if request.given else {}
            self._referring.judge(request.given, tensors, whole=request.whole)
        except CaseError as error:
            return Weighed(status=error.status, reason=error.reason)
        except evidence.InvalidEvidence as error:
            reason = f"what it handed on can't be read: {error}"
            return Weighed(status="fail_metadata", reason=reason)
        finally:
            Path(request.path).unlink(missing_ok=True)
        return Weighed()

    def _of_eager(self, answers: Answers, traits: Traits) -> Subject:
        """Make a subject that is eager, for the sake of what is held against it."""
        assert self._setup is not None  # comes first
        found = self._registry.resolutions().get(self._setup.backend)
        eager = self._registry.lookup_backend(EAGER)
        return Subject(
            eager,
            name=EAGER,
            device=torch.device(self._setup.device),
            seed=self._setup.seed,
            traits=traits,
            configure=lambda _mode, _options: eager,
            spec=None if found is None else found.spec,
            registry=self._registry,
            runs_graphs_as_they_are=True,
            answers=answers,
        )

    def subject(self, reference: str | None = None, answers: Answers | None = None) -> Subject:
        """Make a subject for one run of a case: the backend under test, or a reference backend.

        Raises:
            BackbayError: there is no such backend.
        """
        assert self._setup is not None  # comes first
        name = self._setup.backend if reference is None else reference
        given = self._given if reference is None else None
        compiler = self._registry.lookup_backend(name) if given is None else given
        found = self._registry.resolutions().get(name)
        spec = getattr(compiler, "spec", None) if found is None else found.spec

        def configured(mode: str | None, options: Mapping[str, Any] | None) -> CompilerFn:
            return self._registry.get_backend(name, mode=mode, options=options)

        return Subject(
            compiler,
            name=name,
            device=torch.device(self._setup.device),
            seed=self._setup.seed,
            traits=Traits() if spec is None else spec.traits,
            configure=configured if given is None else None,
            spec=spec,
            registry=self._registry if given is None else None,
            runs_graphs_as_they_are=spec is not None and spec.debug,
            answers=answers,
        )

    def prepare(self, setup: SuiteSetup) -> Ready:
        """Load the backend, and collect the cases."""
        self._setup = setup
        if setup.judges:
            subject = self._of_eager(JudgedHere(), Traits())
        else:
            if self._given is None and parse(setup.backend) is None:
                self._registry.require(setup.backend, torch.device(setup.device).type)
            subject = self.subject()  # loads it
        compiler = subject.watched.compiler
        self._cases = suite.collected(
            torch.device(setup.device).type, setup.levels, all_samples=setup.all_samples
        )
        cases = suite.chosen(
            self._cases.values(), profile=setup.profile, seed=setup.seed, only=setup.only
        )
        codegen = getattr(compiler, "codegen", None)
        ends_in = (codegen,) if isinstance(codegen, str) and codegen != setup.backend else ()
        self._references = references_below(setup.backend, ends_in)
        return Ready(
            cases=tuple((x.id, x.timeout_s) for x in cases),
            reference_backends=self._references,
            known=tuple(self._cases),
            device_name=device_name(torch.device(setup.device)),
            traits=subject.traits,
        )

    def _case(self, request: Run | Refer) -> "Case":
        """Return a collected case, or one of the fuzzer's, which is made when it is asked for."""
        if request.program is None and request.id in self._cases:
            return self._cases[request.id]
        from backbay_conformance.levels import programs  # noqa: PLC0415 (most runs have no fuzzer)

        if request.program is not None:
            return programs.case_of(request.program, request.id)
        return programs.case_at(programs.seed_of(request.id))

    def _shown(self, request: Show) -> Shown:
        from backbay_conformance.fuzz.drawing import program  # noqa: PLC0415 (likewise)

        return Shown(program=program(request.seed))


def handler_of_child() -> CaseHandler:
    """Return the handler of a child process, which keeps Dynamo from timing guards for its log.

    Dynamo empties the processor's caches for that: a quarter of the suite's time, and everybody
    else's.
    """
    from torch._dynamo import guards  # noqa: PLC0415 (a second, and not for this process)

    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0
    return CaseHandler()
