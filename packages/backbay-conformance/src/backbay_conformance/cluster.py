"""Runs cases on a Ray cluster: each worker runs one case at a time, as on one's own machine.

A worker that is lost takes a case with it; that case is run once more, by any worker.
"""

import contextlib
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from backbay import cluster
from backbay.cluster import Slot, Surroundings
from backbay.errors import InputError
from backbay.session import Lost
from backbay_conformance.pool import CaseSession, judge_in, start, unfinished
from backbay_conformance.record import Result
from backbay_conformance.requests import Ready, SuiteSetup

_TRIES = 2
_GONE = "no worker of the cluster is left"


class Worker:
    """Runs cases in child processes of its own, one after the other."""

    def __init__(self, surroundings: Surroundings, setup: SuiteSetup) -> None:
        """Go where the backend's files are; nothing is started yet."""
        surroundings.enter()
        self._folder = tempfile.TemporaryDirectory(prefix="backbay-conform-")
        caches = Path(self._folder.name)
        self._session = CaseSession(setup, lambda: start(caches), judge_in(caches))

    def versions(self) -> dict[str, str]:
        """Return what must be installed alike everywhere."""
        return cluster.versions()

    def ready(self) -> Ready:
        """Return what is known of the cases."""
        return self._session.ready()

    def run(self, case_id: str, timeout_s: float) -> Result:
        """Run one case, and have it judged."""
        return self._session.run(case_id, timeout_s)


class _Workers:
    """The workers of a cluster; each is lent to one runner at a time."""

    def __init__(self, setup: SuiteSetup, slots: Sequence[Slot]) -> None:
        self._setup = setup
        self._free, self._left = deque(slots), len(slots)
        self._actors: dict[Slot, Any] = {}
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def lent(self) -> Iterator[Slot]:
        """Wait for a worker that is free.

        Raises:
            Lost: there is none any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._free or not self._left)
            if not self._free:
                raise Lost(_GONE, "crashed")
            slot = self._free.popleft()
        try:
            yield slot
        finally:
            with self._changed:
                if slot in self._actors or cluster.is_alive(slot):
                    self._free.append(slot)
                else:
                    self._left -= 1
                self._changed.notify_all()

    def actor(self, slot: Slot) -> Any:
        """Return the actor of a worker, which is started if there is none."""
        if slot not in self._actors:
            self._actors[slot] = cluster.started(Worker, slot, Surroundings.here(), self._setup)
        return self._actors[slot]

    def lost(self, slot: Slot) -> None:
        """Forget an actor that is gone, or does not answer."""
        import ray  # noqa: PLC0415 (an extra)

        ray.kill(self._actors.pop(slot))

    def kill(self) -> None:
        """End all that run a case, from any thread."""
        import ray  # noqa: PLC0415 (an extra)

        for actor in list(self._actors.values()):
            ray.kill(actor)

    def end(self) -> None:
        """End all, and leave the cluster."""
        cluster.leave(list(self._actors.values()))
        self._actors.clear()


class ClusterRunner:
    """Runs one case at a time on whichever worker is free."""

    def __init__(self, workers: _Workers) -> None:
        self._workers = workers
        self.is_abandoned = False

    def __enter__(self) -> Self:
        """Return the runner itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: the workers are ended together."""

    def ready(self) -> Ready:
        """Return what is known of the cases.

        Raises:
            InputError: the backend cannot be loaded, or what was asked for does not exist.
        """
        import ray  # noqa: PLC0415 (an extra)
        from ray.exceptions import RayError  # noqa: PLC0415 (likewise)

        with self._workers.lent() as slot:
            try:
                ready: Ready = ray.get(self._workers.actor(slot).ready.remote())
            except RayError as error:
                raise InputError(cluster.cause(error)) from error
        return ready

    def run(self, case_id: str, timeout_s: float) -> Result:
        """Run a case; where its worker is lost, once more; then that is its result.

        Raises:
            InputError: the backend cannot be loaded where the case was to run.
            Lost: the run was interrupted.
        """
        import ray  # noqa: PLC0415 (an extra)
        from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415 (likewise)

        why = ""
        for _ in range(_TRIES):
            if self.is_abandoned:
                raise Lost("the run was interrupted", "failed")
            try:
                with self._workers.lent() as slot:
                    try:
                        asked = self._workers.actor(slot).run.remote(case_id, timeout_s)
                        result: Result = ray.get(asked)
                    except RayTaskError as error:
                        raise InputError(cluster.cause(error)) from error
                    except RayError as error:  # killed, out of memory, or its node is gone
                        self._workers.lost(slot)
                        why = f"its worker was lost twice: {cluster.cause(error)}"
                        continue
            except Lost as gone:
                return unfinished(case_id, "crash", gone.reason)
            return result
        return unfinished(case_id, "crash", why)

    def abandon(self) -> None:
        """Start no further case, and end those that run."""
        self.is_abandoned = True
        self._workers.kill()


@contextlib.contextmanager
def runners(address: str, setup: SuiteSetup) -> Iterator[Sequence[ClusterRunner]]:
    """Return a runner for each worker of a cluster, which is left when the block ends.

    Args:
        address: as `ray.init` takes it; empty: the cluster that runs here, else a new one.
        setup: what is tested, and how.

    Raises:
        InputError: there is no such cluster, it has no such device, or other versions run there.
    """
    cluster.connect(address, "backbay conform --ray")
    workers: _Workers | None = None
    try:
        slots = cluster.slots(setup.device, each_core=True)
        workers = _Workers(setup, slots)
        cluster.check_alike(_versions(workers, slots))
        yield [ClusterRunner(workers) for _ in slots]
    finally:
        if workers is None:
            cluster.leave([])
        else:
            workers.end()


def _versions(workers: _Workers, slots: Sequence[Slot]) -> dict[Slot, dict[str, str]]:
    import ray  # noqa: PLC0415 (an extra)
    from ray.exceptions import RayError  # noqa: PLC0415 (likewise)

    asked = {slot: workers.actor(slot).versions.remote() for slot in slots}
    try:
        return {slot: ray.get(answer) for slot, answer in asked.items()}
    except RayError as error:
        raise InputError(f"a worker can't be used: {cluster.cause(error)}") from error
