"""Whether CUDA graphs pay for a graph here: it is timed with and without them, when it is called.

Both ways take turns on copies of the second call's inputs, forward and, where it trains, backward,
so what is measured is the time of steps in a row: with the copies of results that a replay makes,
and with the time that the device waits for the host. They are used where they are shown to be
faster.
"""

import datetime as dt
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from backbay.kit.codegen import Compiled
from backbay.timing import stats
from backbay_optimizer.cuda_graphs.replaying import Recordings
from backbay_optimizer.tuning import cache, variants
from backbay_optimizer.tuning.cache import SiteTiming

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
    known = cache.read_replay(key)
    if known is not None:
        _apply(known, recordings, f"timed on {known.created[:10]}")
        return lambda compiled: compiled
    return lambda compiled: _Deciding(
        compiled, recordings, lambda found: cache.write_replay(key, found)
    )


def _apply(found: SiteTiming, recordings: Recordings, when: str) -> None:
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
        self, compiled: Compiled, recordings: Recordings, keep: Callable[[SiteTiming], None]
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
            self._calls_left = max(self._calls_left - 1, 0)
            if self._calls_left:
                return
        why = variants.unsuitable(args)
        if why is None:
            try:
                self._decide(args)
            except Exception as error:  # noqa: BLE001 (whatever it is, the graph itself still runs)
                self._recordings.enabled = False
                why = f"{type(error).__name__}: {error}".splitlines()[0]
        self._recordings.forget()  # they read the copies
        if why is not None:
            self._recordings.say(f"CUDA graphs not used: not timed: {why}")

    def _decide(self, args: Sequence[Any]) -> None:
        samples = variants.timed(
            {variants.ALL: self._switched(on=True), _PLAIN: self._switched(on=False)},
            args,
            BUDGET_S,
        )
        ratio, interval = stats.ratio(samples[variants.ALL], samples[_PLAIN])
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        found = SiteTiming(ratio=ratio, interval=interval, created=now)
        self._keep(found)
        _apply(found, self._recordings, "timed")

    def _switched(self, *, on: bool) -> Compiled:
        def run(*args: Any) -> Any:
            # Its backward is called before the other way's turn.
            self._recordings.enabled = on
            return self._compiled(*args)

        return run
