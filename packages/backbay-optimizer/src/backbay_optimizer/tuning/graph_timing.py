"""Whether CUDA graphs pay for a graph here: it is timed with and without them, when it is called.

The second call says how long the host takes to hand over the work. A device that never waits for it
gains nothing, and no more is done. Else both ways take turns on that call's inputs, so what is
measured is the time of calls in a row: with the copies of results that a replay makes, and with the
time that the device waits for the host. Replays are used where they are shown to be faster.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from backbay.kit.codegen import Compiled
from backbay_optimizer.cuda_graphs.replaying import Recordings
from backbay_optimizer.tuning import cache, variants
from backbay_optimizer.tuning.cache import Replays

BUDGET_S = 0.3
"""Seconds for the timing of one graph."""
LEAST_HOST = 0.05
"""Of a call's time that the host takes, below which CUDA graphs are not tried: the device waits no
longer than that for it."""
_PLAIN = ("cuda_graphs",)
"""The arm without them."""


class GraphDecision:
    """Whether a graph is replayed: as was found before, or as its second call finds out."""

    def __init__(
        self,
        graph_module: GraphModule,
        example_inputs: Sequence[Any],
        settings: Any,
        recordings: Recordings,
    ) -> None:
        """Ask what is known.

        Args:
            graph_module: Dynamo's, after the passes.
            example_inputs: its inputs.
            settings: what code depends on beside the graph.
            recordings: what is recorded of it.
        """
        self._key = variants.key_of(graph_module, example_inputs, (), settings)
        self._recordings = recordings
        found = cache.read_replays(self._key)
        self.known = None if found is None else found.used
        if found is not None:
            recordings.say(f"{found.why}, as found on {found.created[:10]}")

    def found_by(self, compiled: Compiled) -> Compiled:
        """Return compiled code whose second call decides."""
        if self._recordings.refused is not None:
            self.keep(self._recordings.refused, used=False)
            return compiled
        return _Deciding(compiled, self._recordings, self)

    def keep(self, why: str, *, used: bool) -> None:
        """Remember what was found, and do so."""
        self._recordings.enabled = used
        self._recordings.say(why)
        cache.write_replays(self._key, Replays(used=used, why=why, created=variants.now()))


class _Deciding:
    """A compiled graph; its second call decides, and until then nothing is recorded."""

    def __init__(self, compiled: Compiled, recordings: Recordings, decision: GraphDecision) -> None:
        self._compiled = compiled
        self._recordings = recordings
        self._decision = decision
        self._calls_left = 2
        self._lock = threading.Lock()
        recordings.enabled = False

    def __call__(self, *args: Any) -> Any:
        """Run the graph."""
        if self._calls_left and self._is_second():
            return self._decided(args)
        return self._compiled(*args)

    def _is_second(self) -> bool:
        with self._lock:
            if not self._calls_left:  # another thread is at it
                return False
            self._calls_left -= 1
            return not self._calls_left

    def _decided(self, args: Sequence[Any]) -> Any:
        """Run the graph, and decide."""
        why = variants.unsuitable(args)
        if why is not None:
            self._recordings.say(f"CUDA graphs not used: not timed: {why}")
            return self._compiled(*args)
        from backbay.timing import clock  # noqa: PLC0415 (its import takes a moment)

        device = next((x.device for x in args if isinstance(x, torch.Tensor)), torch.device("cpu"))
        host_s, whole_s, results = clock.handed_over(lambda: self._compiled(*args), device)
        if host_s < LEAST_HOST * whole_s:
            why = f"CUDA graphs not used: the host takes {host_s / whole_s:.0%} of a call's time"
            self._decision.keep(why, used=False)
            return results
        try:
            self._time(args)
        except Exception as error:  # noqa: BLE001 (whatever it is, the graph itself still runs)
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            self._recordings.enabled = False
            self._recordings.say(f"CUDA graphs not used: not timed: {why}")
        self._recordings.forget()  # they read the copies
        return results

    def _time(self, args: Sequence[Any]) -> None:
        """Time the graph both ways, and do as was found."""
        from backbay.timing import rounds  # noqa: PLC0415 (likewise)

        arms = {variants.ALL: self._switched(on=True), _PLAIN: self._switched(on=False)}
        found = variants.compared(
            arms,
            _PLAIN,
            args,
            BUDGET_S,
            fewest=rounds.LEAST_ROUNDS,
            shares_parameters=not self._recordings.writes,
        )
        self._recordings.enabled = False
        if self._recordings.stopped:  # both ways were the same
            self._recordings.say("CUDA graphs not used: nothing was replayed")
            return
        used, (low, high) = found.interval[1] < 1.0, found.interval
        self._decision.keep(
            f"CUDA graphs {'used' if used else 'not used'}: a replay takes {found.ratio:.3f} "
            f"[{low:.3f}, {high:.3f}] of the time",
            used=used,
        )

    def _switched(self, *, on: bool) -> Compiled:
        def run(*args: Any) -> Any:
            self._recordings.enabled = on
            return self._compiled(*args)

        return run
