"""Level errors: what eager refuses, a compiled function refuses too.

A backend may say it otherwise and raise another class. It may not compute something instead.
"""

import contextlib
import functools
import logging
from collections.abc import Iterator

import torch

from backbay_conformance.case import Case, Cases, Failed, NotRunnable
from backbay_conformance.levels import sampled
from backbay_conformance.levels.opinfo import Operator, Sample
from backbay_conformance.subject import Subject, message_of


def cases(device: str, *, all_samples: bool) -> Cases:  # noqa: ARG001 (all mistakes, always)
    """Return a case for each input that an operator must refuse."""
    yield from sampled.drift("errors")
    for operator in sampled.known():
        # They are made here to be counted: all of them take a hundredth of a second.
        with torch.random.fork_rng(devices=[]):
            count = len(operator.mistakes(torch.device(device)))
        for number in range(count):
            case_id = f"errors/{operator.name}/{number}"
            run = functools.partial(_validated, case_id, operator, number)
            # A graph that cannot be traced never reaches the backend.
            yield Case(id=case_id, run=run, compiles=False)


def _validated(case_id: str, operator: Operator, number: int, subject: Subject) -> None:
    said = _refusal(_mistake(case_id, operator, number, subject))
    if said is None:
        raise NotRunnable("eager takes the input that torch's data base calls wrong")
    sample = _mistake(case_id, operator, number, subject)
    sample = Sample(
        function=subject.compile(sample.function), args=sample.args, kwargs=sample.kwargs
    )
    with _quiet():
        said_so = _refusal(sample) is not None
    if not said_so:
        raise Failed("lost_validation", f"it returns a result, and eager raises {said}")


def _mistake(case_id: str, operator: Operator, number: int, subject: Subject) -> Sample:
    sampled.seed(case_id, subject.seed)
    return operator.mistakes(subject.device)[number]


def _refusal(sample: Sample) -> str | None:
    try:
        sample.function(*sample.args, **sample.kwargs)
    except Exception as error:  # noqa: BLE001 (any class of error is a refusal)
        return f"{type(error).__name__}: {message_of(error)}"
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging each refusal with its traceback: here they are what is wanted."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
