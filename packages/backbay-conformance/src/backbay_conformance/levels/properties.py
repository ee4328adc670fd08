"""Level properties: what does not show in one run.

A backend gives the same bits for the same inputs, however often it runs and whenever it compiles,
unless it declares otherwise (``traits.run_to_run``). It leaves eager as it was. Threads change
nothing beyond rounding. One that declares ``traits.batch_invariant`` is held to that: a row of a
batch is, to the bit, what the row is alone.
"""

import functools

from backbay.proof import Outcome, observe
from backbay_conformance.case import Cases, Failed
from backbay_conformance.levels import invariance, sampled
from backbay_conformance.levels.opinfo import Operator, Sample
from backbay_conformance.levels.repeating import check_eager_repeats, difference
from backbay_conformance.running import reset
from backbay_conformance.subject import Subject, in_eager

DTYPE = "float32"
RUNS = 3


def cases(device: str, *, all_samples: bool) -> Cases:
    """Return the cases of this level."""
    yield from sampled.drift("properties")
    asks = {"run-to-run": two_runs_differ, "recompiled": another_compile_differs}
    for operator in sampled.known():
        if DTYPE not in operator.dtypes(device):
            continue
        train = operator.trains(device, DTYPE)
        for name, ask in asks.items():
            yield sampled.case(
                f"properties/{operator.name}/{name}",
                operator,
                functools.partial(Operator.samples, dtype=DTYPE, requires_grad=train),
                functools.partial(ask, train),
                needs={DTYPE, "run_to_run", *(("training",) if train else ())},
                all_samples=all_samples,
            )
    yield from invariance.cases()


def two_runs_differ(train: bool, subject: Subject, sample: Sample) -> None:
    """Run what was compiled several times, from one random state."""
    workload = sample.workload()
    in_eager(workload, train=train, seed=subject.seed)
    call = subject.compile(workload.model)
    runs = [observe(call, workload, train=train, seed=subject.seed) for _ in range(RUNS)]
    for number, run in enumerate(runs[1:], start=1):
        _check_same(subject, sample, (run, runs[0]), train, f"run {number} is not run 0")


def another_compile_differs(train: bool, subject: Subject, sample: Sample) -> None:
    """Compile again after a reset, as another process would, with eager in between."""
    workload = sample.workload()
    before = in_eager(workload, train=train, seed=subject.seed)
    first = observe(subject.compile(workload.model), workload, train=train, seed=subject.seed)
    between = in_eager(workload, train=train, seed=subject.seed)
    reset(subject)
    second = observe(subject.compile(workload.model), workload, train=train, seed=subject.seed)
    _check_same(subject, sample, (between, before), train, "eager is not what it was before")
    _check_same(subject, sample, (second, first), train, "compiled anew it is not as before")


def _check_same(
    subject: Subject, sample: Sample, pair: tuple[Outcome, Outcome], train: bool, what: str
) -> None:

    def how(given: tuple[Outcome, Outcome]) -> None:
        found = difference(*given)
        if found is not None:
            check_eager_repeats(sample.workload(), train=train, seed=subject.seed)
            raise Failed("fail_behaviour", f"{what}: {found}")

    subject.answers.answer(pair, how)
