"""Whether CUDA graphs pay for a graph here: it is timed with and without them, when it is called.

The second call says how long the host takes to hand over the work. A device that never waits for it
gains nothing, and no more is done. Else both ways take turns on copies of that call's inputs, so
what is measured is the time of calls in a row: with the copies of results that a replay makes, and
with the time that the device waits for the host. Replays are used where they are shown to be
faster; a machine that is too busy to tell is asked again.

A graph that trains is timed as a whole, forward and backward, once its backward has run.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from backbay.graph.aliases import writes_what_it_holds
from backbay.kit.codegen import Compiled
from backbay_optimizer.cuda_graphs.capture import exclusive
from backbay_optimizer.cuda_graphs.recordings import Recordings
from backbay_optimizer.tuning import cache, variants
from backbay_optimizer.tuning.cache import Replays

BUDGET_S = 0.5
"""Seconds for the timing of one graph."""
LEAST_HOST = 0.05
"""Of a call's time that the host takes, below which CUDA graphs are not tried: the device waits no
longer than that for it."""
LEAST_GAIN = 0.05
"""Of the time, that is worth another look where nothing is shown."""
MOST_TRIES = 3
CALLS_BEFORE = 2
"""A try, that is with the last of them: libraries choose kernels in the first."""
_FIXED = "_dynamo_static_input_type"
"""Dynamo's mark of what stays where it is; torch has no public one."""
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
        self._is_tried = not writes_what_it_holds(graph_module)
        self.fixed = [
            i for i, x in enumerate(example_inputs) if getattr(x, _FIXED, None) is not None
        ]
        """Which inputs are parameters and buffers."""
        found = cache.read_replays(self._key)
        self.known = None if found is None else found.used
        if found is not None:
            recordings.say(f"{found.why}, as found on {found.created[:10]}")

    def found_by(self, compiled: Compiled) -> Compiled:
        """Return compiled code whose second call decides."""
        if self._recordings.refused is not None:
            self.keep(self._recordings.refused, used=False)
            return compiled
        if not self._is_tried:
            self._recordings.enabled = False
            self._recordings.say(f"CUDA graphs not used: not timed: {variants.WRITES_ITS_OWN}")
            return compiled
        return _Deciding(compiled, self._recordings, self)

    def keep(self, why: str, *, used: bool) -> None:
        """Remember what was found, and do so."""
        self._recordings.enabled = used
        self._recordings.say(why)
        cache.write_replays(self._key, Replays(used=used, why=why, created=variants.now()))


class _Deciding:
    """A compiled graph; an early call decides, and until then nothing is recorded."""

    def __init__(self, compiled: Compiled, recordings: Recordings, decision: GraphDecision) -> None:
        self._compiled = compiled
        self._recordings = recordings
        self._decision = decision
        self._calls_left = CALLS_BEFORE
        self._tries_left = MOST_TRIES
        self._lock = threading.Lock()
        recordings.enabled = False

    def __call__(self, *args: Any) -> Any:
        """Run the graph."""
        if self._calls_left and self._is_last():
            return self._decided(args)
        return self._compiled(*args)

    def _is_last(self) -> bool:
        with self._lock:
            if not self._calls_left:  # another thread is at it
                return False
            known = self._recordings
            if self._calls_left == 1 and known.trains and not known.ran_backward:
                return False  # it may never run, and is not compiled for this
            self._calls_left -= 1
            return not self._calls_left

    @property
    def _copies_all(self) -> bool:
        """Whether parameters are timed as copies, too: they are written, or hooks see them."""
        return self._recordings.writes or self._recordings.trains

    def _decided(self, args: Sequence[Any]) -> Any:
        """Run the graph, and decide."""
        if self._recordings.refused is not None:  # its backward's, compiled when it first runs
            self._decision.keep(self._recordings.refused, used=False)
            return self._compiled(*args)
        why = variants.unsuitable(args, written=self._copies_all)
        if self._recordings.trains and _is_in_a_backward():
            why = why or "it is called in a backward"
        if why is not None:
            self._recordings.say(f"CUDA graphs not used: not timed: {why}")
            return self._compiled(*args)
        from backbay.timing import clock  # noqa: PLC0415 (its import takes a moment)

        device = next((x.device for x in args if isinstance(x, torch.Tensor)), torch.device("cpu"))
        with exclusive:
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
        if self._copies_all or not self._recordings.enabled:
            self._recordings.forget()  # they read copies, or are not used
        return results

    def _time(self, args: Sequence[Any]) -> None:
        """Time the graph both ways, and do as was found."""
        self._tries_left -= 1
        arms = {variants.ALL: self._switched(on=True), _PLAIN: self._switched(on=False)}
        fixed = () if self._copies_all else self._decision.fixed
        found = variants.compared(arms, _PLAIN, args, BUDGET_S, shared=fixed)
        self._recordings.enabled = False
        held = self._recordings.held
        if held is None or not held.number:  # both ways were the same
            self._recordings.say("CUDA graphs not used: nothing was replayed")
            return
        low, high = found.interval
        said = f"a replay takes {found.ratio:.3f} [{low:.3f}, {high:.3f}] of the time"
        if high < 1.0:
            self._decision.keep(f"CUDA graphs used: {said}", used=True)
        elif low > 1.0 - LEAST_GAIN:
            self._decision.keep(f"CUDA graphs not used: {said}", used=False)
        else:
            self._recordings.say(f"CUDA graphs not used yet: {said}")
            self._calls_left = CALLS_BEFORE if self._tries_left else 0

    def _switched(self, *, on: bool) -> Compiled:
        def run(*args: Any) -> Any:
            self._recordings.enabled = on
            return self._compiled(*args)

        return run


def _is_in_a_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 (its only home)
