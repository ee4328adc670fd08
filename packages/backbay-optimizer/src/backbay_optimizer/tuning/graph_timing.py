"""Whether CUDA graphs pay for a graph here: it is timed with and without them, when it is called.

Both ways take turns on copies of the second call's inputs, so what is measured is the time of calls
in a row: with the copies of results that a replay makes, and with the time that the device waits
for the host. They are used where they are shown to be faster.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from backbay.kit.codegen import Compiled
from backbay_optimizer.cuda_graphs.replaying import Recordings
from backbay_optimizer.tuning import cache, variants
from backbay_optimizer.tuning.cache import PairTiming

BUDGET_S = 1.0
"""Seconds for the timing of one graph."""
_PLAIN = ("cuda_graphs",)
"""The arm without them."""


def decided(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    settings: Any,
    recordings: Recordings,
) -> Callable[[Compiled], Compiled]:
    """Decide whether recordings are used: as was found before, or by timing the second call."""
    key = variants.key_of(graph_module, example_inputs, (), settings)
    known = cache.read_timing(key)
    if known is not None:
        _apply(known, recordings, f"timed on {known.created[:10]}")
        return lambda compiled: compiled
    return lambda compiled: _Deciding(
        compiled, recordings, lambda found: cache.write_timing(key, found)
    )


def _apply(found: PairTiming, recordings: Recordings, when: str) -> None:
    recordings.enabled = found.interval[1] < 1.0
    low, high = found.interval
    used = "used" if recordings.enabled else "not used"
    recordings.say(
        f"CUDA graphs {used}, {when}: a replay takes {found.ratio:.3f} [{low:.3f}, {high:.3f}] of "
        "the time"
    )


class _Deciding:
    """A compiled graph; its second call decides, and until then nothing is recorded."""

    def __init__(
        self, compiled: Compiled, recordings: Recordings, keep: Callable[[PairTiming], None]
    ) -> None:
        self._compiled = compiled
        self._recordings = recordings
        self._keep = keep
        self._calls_left = 2
        self._lock = threading.Lock()
        recordings.enabled = False

    def __call__(self, *args: Any) -> Any:
        """Run the graph."""
        if self._calls_left:
            self._count(args)
        return self._compiled(*args)

    def _count(self, args: Sequence[Any]) -> None:
        with self._lock:
            if not self._calls_left:  # another thread is at it
                return
            self._calls_left -= 1
            if self._calls_left:
                return
        why = variants.unsuitable(args) or self._decide(args)
        self._recordings.forget()  # they read the copies
        if why is not None:
            self._recordings.enabled = False
            self._recordings.say(f"CUDA graphs not used: not timed: {why}")

    def _decide(self, args: Sequence[Any]) -> str | None:
        """Time the graph and do as was found, or return why that is not possible."""
        arms = {variants.ALL: self._switched(on=True), _PLAIN: self._switched(on=False)}
        try:
            found = variants.compared(arms, _PLAIN, args, BUDGET_S)
        except Exception as error:  # noqa: BLE001 (whatever it is, the graph itself still runs)
            return f"{type(error).__name__}: {error}".splitlines()[0]
        if self._recordings.stopped:  # both ways were the same
            return "nothing was replayed"
        self._keep(found)
        _apply(found, self._recordings, "timed")
        return None

    def _switched(self, *, on: bool) -> Compiled:
        def run(*args: Any) -> Any:
            self._recordings.enabled = on
            return self._compiled(*args)

        return run
