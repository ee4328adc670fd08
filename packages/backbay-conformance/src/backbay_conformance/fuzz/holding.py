"""Holds a program's results against eager and float64 truth, at every size that it is called with.

Everything goes to what was compiled once: a size that is baked in is a wrong result at the next.
"""

from collections.abc import Mapping
from typing import Any

from backbay.errors import BackbayError
from backbay.proof import Golden, Workload, observe
from backbay_conformance.answers import Reference
from backbay_conformance.case import EagerUnstable
from backbay_conformance.fuzz.building import built, inputs_of
from backbay_conformance.fuzz.program import Program
from backbay_conformance.subject import Subject, golden_of, message_of


def hold(subject: Subject, program: Program, options: Mapping[str, Any] | None = None) -> None:
    """Compile a program once, run it at each of its sizes, and hold all that it gives to the rule.

    Args:
        subject: the backend.
        program: what is compiled.
        options: of the backend.

    Raises:
        Failed: it is not right; the status says in which way.
        EagerUnstable: eager gives nothing that could be compared with.
    """
    module = built(program).to(subject.device)
    asked: dict[str, Any] = {"dynamic": program.dynamic}
    if options:
        asked["options"] = dict(options)
    call = None
    for n in program.sizes:
        workload = Workload(module, inputs_of(program, n, subject.device))
        golden = reference_at(subject, workload, program)
        with golden.context():
            call = subject.compile(module, **asked) if call is None else call
            outcome = observe(call, workload, train=program.train, seed=subject.seed)
            subject.judge(golden, outcome)


def reference_at(subject: Subject, workload: Workload, program: Program) -> Reference:
    """Return the reference of a program at one size, or the seal of one that a judge has.

    Raises:
        EagerUnstable: as `golden_at`.
    """
    return subject.answers.golden(lambda: golden_at(workload, program, seed=subject.seed))


def golden_at(workload: Workload, program: Program, *, seed: int = 0) -> Golden:
    """Make the reference of a program at one size.

    Raises:
        EagerUnstable: eager refuses the program, or gives another result the second time.
    """
    try:
        return golden_of(workload, train=program.train, seed=seed)
    except BackbayError:
        raise
    except Exception as error:
        raise EagerUnstable(f"eager refuses the program: {message_of(error)}") from error
