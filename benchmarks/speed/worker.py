"""The child process of a benchmark: ``python -m speed.worker``."""

import gc
import traceback
from collections.abc import Callable
from typing import Protocol

from backbay.child import answer_requests
from backbay.race.job import Block, Refused, Timed
from speed import job


class Bench(Protocol):
    """Measures one workload; made when it is prepared."""

    def prepared(self) -> job.Prepared:
        """Say what was built."""

    def ready(self, arm: str, caches: str, *, shared: bool) -> job.Readied:
        """Get an arm ready to be timed."""

    def seconds(self, arm: str, warmups: int, calls: int) -> float:
        """Time a block of calls, all together."""

    def prove(self, arms: tuple[str, ...], caches: str) -> dict[str, job.Verdict]:
        """Hold arms against float64."""


class Worker:
    """Answers requests."""

    def __init__(self) -> None:
        self._bench: Bench | None = None

    def answer(self, request: job.Request) -> job.Reply:
        """Carry out a request. Nothing is raised: what goes wrong is a reply."""
        from backbay.race.bench import one_line  # noqa: PLC0415 (imports torch, which may print)

        try:
            return self._carry_out(request)
        except Exception as error:  # noqa: BLE001 (a model or a backend may raise anything)
            traceback.print_exc()
            return Refused(reason=one_line(error))

    def _carry_out(self, request: job.Request) -> job.Reply:
        match request:
            case job.Limits():
                from speed.device import limits  # noqa: PLC0415 (imports torch)

                return limits(request.device)
            case job.Prepare():
                self._bench = None  # its memory is needed
                gc.unfreeze()
                gc.collect()
                self._bench = _bench(request)
                return self._bench.prepared()
        assert self._bench is not None, "what is measured is prepared first"
        match request:
            case job.Ready():
                readied = self._bench.ready(request.arm, request.caches, shared=request.shared)
                gc.collect()
                gc.freeze()  # what was compiled stays: a collection need not look at it again
                return readied
            case job.Prove():
                return job.Proved(verdicts=self._bench.prove(request.arms, request.caches))
            case Block():
                seconds = self._bench.seconds(request.backend, request.warmups, request.calls)
                return Timed(seconds=seconds)


def _bench(request: job.Prepare) -> Bench:
    if request.kind == "model":
        from speed.model_bench import ModelBench  # noqa: PLC0415

        return ModelBench(request)
    from speed.pattern_bench import PatternBench  # noqa: PLC0415

    return PatternBench(request)


def _prepare() -> Callable[[job.Request], job.Reply]:
    # What takes seconds, before anything is asked: the process before may still be at work.

    import speed.model_bench  # noqa: F401, PLC0415

    return Worker().answer


if __name__ == "__main__":
    answer_requests(job.Request, _prepare)
