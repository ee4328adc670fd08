"""What the levels that go through torch's operators share: which, and how a case is made of one."""

import functools
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from backbay_conformance.case import Case, CaseError, Failed, NotRunnable
from backbay_conformance.levels import floor, opinfo
from backbay_conformance.levels.opinfo import Operator, Sample, Source
from backbay_conformance.running import reset
from backbay_conformance.subject import Subject, message_of

Ask = Callable[[Subject, Sample], None]
"""Puts one sample to a backend."""
Samples = Iterable[Sample]
Make = Callable[[Operator, torch.device], Samples]
"""Makes the samples of an operator, from the global random state."""

_NO_SAMPLE = "torch's data base has no sample of it for this device and dtype"


@functools.cache
def known(source: Source = "operators") -> tuple[Operator, ...]:
    """Return the operators of a data base; the suite's own where torch's cannot be read.

    Raises:
        InputError: a package that torch's data base needs is not installed.
    """
    try:
        return tuple(opinfo.operators(source).values())
    except opinfo.DriftError:
        return floor.OPERATORS if source == "operators" else ()


def drift(level: str) -> Iterator[Case]:
    """Yield a case that says that torch's data base could not be read, where that is so."""
    try:
        opinfo.operators()
    except opinfo.DriftError as error:
        reason = f"{error}; the suite's own {len(floor.OPERATORS)} operators stand in"

        def run(subject: Subject) -> None:
            raise NotRunnable(f"{subject.name} was not asked about torch's operators: {reason}")

        yield Case(id=f"{level}/data-base", run=run, share=1.0)


def case(
    case_id: str,
    operator: Operator,
    make: Make,
    ask: Ask,
    *,
    needs: Iterable[str] = (),
    all_samples: bool = False,
    compiles: bool = True,
    share: float | None = None,
) -> Case:
    """Make a case of one operator: its first sample, or all of them one after the other.

    The samples are made when the case is run, from a random state that its id decides.
    """
    return Case(
        id=case_id,
        run=functools.partial(_asked, case_id, operator, make, ask, all_samples=all_samples),
        needs=frozenset(needs),
        compiles=compiles,
        share=share,
        timeout_s=1800.0 if all_samples else 120.0,
    )


def _asked(
    case_id: str, operator: Operator, make: Make, ask: Ask, subject: Subject, *, all_samples: bool
) -> None:
    seed(case_id, subject.seed)
    samples = make(operator, subject.device)
    if all_samples:
        all_asked(subject, list(samples), ask)
    else:
        ask(subject, first(samples))


def all_asked(subject: Subject, samples: Sequence[Sample], ask: Ask) -> None:
    """Put every sample to a backend, and raise the first failure, with how many there were."""
    ended: dict[int, CaseError] = {}
    for number, sample in enumerate(samples):
        reset(subject)
        subject.answers.sample = number
        try:
            ask(subject, sample)
        except CaseError as error:
            ended[number] = error
        except Exception as error:  # noqa: BLE001 (whatever a backend raises is the result)
            ended[number] = Failed("fail_error", f"{type(error).__name__}: {message_of(error)}")
    failed = [(x, error) for x, error in ended.items() if isinstance(error, Failed)]
    if failed:
        number, worst = failed[0]
        count = f"{len(failed)} of {len(samples)} samples, the first is number {number}"
        raise Failed(worst.status, f"{count}: {worst.reason}")
    if len(ended) == len(samples):
        raise next(iter(ended.values()), NotRunnable(_NO_SAMPLE))


def first(samples: Iterable[Sample]) -> Sample:
    """Return the first sample.

    Raises:
        NotRunnable: there is none.
    """
    for sample in samples:
        return sample
    raise NotRunnable(_NO_SAMPLE)


def seed(case_id: str, suite_seed: int) -> None:
    """Set the random state that a case's inputs are made from: other cases do not matter."""
    import numpy as np  # noqa: PLC0415 (torch's samples draw from it)

    number = seed_of(case_id, suite_seed)
    random.seed(number)
    torch.manual_seed(number)
    np.random.seed(number)  # noqa: NPY002 (that is what they draw from)


def seed_of(case_id: str, suite_seed: int) -> int:
    """Return the number that a case's random state is made from."""
    digest = hashlib.sha256(f"{suite_seed} {case_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
