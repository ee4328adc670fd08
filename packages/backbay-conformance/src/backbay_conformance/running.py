"""Runs one case on one backend; what comes of it is its status."""

import random
import time
import warnings

import torch

from backbay.registry import Traits
from backbay_conformance.case import Case, CaseError, EagerUnstable, NotRunnable, Unsupported
from backbay_conformance.record import Result, Status
from backbay_conformance.subject import Subject, message_of


def run_case(case: Case, subject: Subject) -> Result:
    """Put a case to a backend, once, in a process whose compiler state is clean.

    Whatever the case raises becomes its status.
    """
    lacking = lacks(subject.traits, case.needs)
    if lacking is not None:
        return Result(id=case.id, level=case.level, status="unsupported", reason=lacking)
    start = time.perf_counter()
    status, reason = _answered(case, subject)
    seconds = time.perf_counter() - start
    return Result(id=case.id, level=case.level, status=status, reason=reason, seconds=seconds)


def refer(case: Case, subject: Subject) -> bool:
    """Run a case for what others are held against.

    Returns:
        Whether it ended before its end.
    """
    try:
        _run(case, subject)
    except (EagerUnstable, NotRunnable, Unsupported):
        return False  # so it does for everybody
    except Exception:  # noqa: BLE001 (uncompiled, some cases make no sense)
        return True
    return False


def _answered(case: Case, subject: Subject) -> tuple[Status, str]:
    try:
        _run(case, subject)
    except CaseError as ended:
        return ended.status, ended.reason
    except Exception as error:  # noqa: BLE001 (whatever a backend raises is the result)
        return "fail_error", f"{type(error).__name__}: {message_of(error)}"
    return ran(subject) if case.compiles else ("pass", "")


def _run(case: Case, subject: Subject) -> None:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reset(subject)  # a backend's own code: it may raise as well
            random.seed(subject.seed)
            torch.manual_seed(subject.seed)
            case.run(subject)
    finally:
        restore_global_state(threads=threads, precision=precision)


def ran(subject: Subject) -> tuple[Status, str]:
    """Whether the backend was shown to run: a pass proves nothing otherwise."""
    if not subject.graphs:
        return "vacuous", "Dynamo gave the backend no graph"
    if not any(x.runs for x in subject.graphs):
        return "vacuous", "what the backend compiled was never run"
    worked = [x for x in subject.graphs if x.nodes]
    if worked and all(x.fell_back for x in worked) and not subject.runs_graphs_as_they_are:
        where = next((x.ran_on for x in worked if x.ran_on), "eager")
        return "vacuous", f"the backend left every graph to {where}"
    return "pass", ""


def lacks(traits: Traits, needs: frozenset[str]) -> str | None:
    """Return which of the needed traits a backend declares that it does not have, if any."""
    for need in sorted(needs):
        if isinstance(getattr(torch, need, None), torch.dtype):
            if traits.dtypes is not None and need not in traits.dtypes:
                return f"it declares the dtypes {', '.join(traits.dtypes)}"
        elif getattr(traits, need) is False:
            return f"it declares that it does not take {need.replace('_', ' ')}"
    return None


def reset(subject: Subject) -> None:
    """Forget what was compiled before, as a new process would."""
    torch.compiler.reset()
    subject.watched.reset()


def restore_global_state(*, threads: int, precision: str) -> None:
    """Put back what a case, or the backend in it, may have left changed for the next one.

    Args:
        threads: as many as torch had before.
        precision: of products of float32 matrices, as before.
    """
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.set_flush_denormal(False)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(mode=False)
    torch.set_autocast_enabled("cpu", False)  # noqa: FBT003 (it takes no names)
