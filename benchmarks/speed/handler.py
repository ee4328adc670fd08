"""Answers a benchmark's requests, in a child process."""

import gc
from typing import Any, ClassVar, Protocol

from backbay.timing.gpu_work import GpuWork
from backbay.timing.measure import Block, Timed
from speed import requests
from speed.requests import Reply, Request


class Measuring(Protocol):
    """Measures one workload; made when it is prepared."""

    def prepared(self) -> requests.Prepared:
        """Return what was built."""

    def ready(self, arm: str, caches: str, *, shared: bool) -> requests.Readied:
        """Compile an arm, and check what it computes."""

    def settle(self, arm: str) -> requests.Settled:
        """Call it until later calls do as the last one did."""

    def work(self, arm: str) -> GpuWork | None:
        """Return what the device does during a step."""

    def seconds(self, arm: str, warmups: int, calls: int) -> float:
        """Time a block of calls, all together."""

    def prove(self, arms: tuple[str, ...], caches: str) -> dict[str, requests.Verdict]:
        """Hold arms against float64."""


class SpeedHandler:
    """One workload, and who measures it."""

    requests: ClassVar[Any] = Request

    def __init__(self) -> None:
        self._measuring: Measuring | None = None

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request."""
        match request:
            case requests.Limits():
                from speed.device import limits  # noqa: PLC0415 (imports torch)

                return limits(request.device)
            case requests.Prepare():
                self._measuring = None  # its memory is needed
                gc.unfreeze()
                gc.collect()
                self._measuring = _measuring_of(request)
                return self._measuring.prepared()
        assert self._measuring is not None, "what is measured is prepared first"
        return _measured(self._measuring, request)


def _measured(measuring: Measuring, request: requests.OfPrepared) -> Reply:
    match request:
        case requests.Ready():
            readied = measuring.ready(request.arm, request.caches, shared=request.shared)
            gc.collect()
            gc.freeze()  # what was compiled stays: a collection need not look at it again
            return readied
        case requests.Settle():
            return measuring.settle(request.arm)
        case requests.Watch():
            return requests.Watched(work=measuring.work(request.arm))
        case requests.Prove():
            return requests.Proved(verdicts=measuring.prove(request.arms, request.caches))
        case Block():
            seconds = measuring.seconds(request.backend, request.warmups, request.calls)
            return Timed(seconds=seconds)


def _measuring_of(request: requests.Prepare) -> Measuring:
    if request.kind == "model":
        from speed.model_bench import ModelBench  # noqa: PLC0415

        return ModelBench(request)
    from speed.pattern_bench import PatternBench  # noqa: PLC0415

    return PatternBench(request)


def handler() -> SpeedHandler:
    """Return the handler of a child process."""
    # What takes seconds, before anything is asked: the process before may still be at work.
    import speed.model_bench  # noqa: F401, PLC0415

    return SpeedHandler()
