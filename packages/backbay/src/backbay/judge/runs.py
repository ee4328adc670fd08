"""Calls of what backends compiled, and what each gave, handed on to a judge."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from backbay.judge import process_state
from backbay.proof import Outcome, Step, Workload, evidence, unchanged
from backbay.proof.bank import Inputs, elsewhere, inputs_of
from backbay.proof.copying import is_expanded
from backbay.proof.generators import forgetting
from backbay.proof.outcome import gradients_of, outcome_of, outcome_of_last
from backbay.proof.sequence import each, in_a_row
from backbay.proof.state import Attributes, Buffers, State
from backbay.proof.tree import leaves
from backbay.timing.device import synchronize
from backbay.timing.memory import peak_bytes, reset_peak

_KEPT_BYTES = 1 << 28
"""Of outputs that are kept aside, to see whether later calls overwrite them; of gradients as much
again."""
_MEASURED = 2
"""Calls whose memory is of interest: of these no gradients are kept."""
_OVERWRITTEN = "overwritten by a subsequent run"
"""What torch says of an output of CUDA graphs that is looked at too late."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ran:
    """One call."""

    seconds: float
    peak_bytes: int | None


class Runs:
    """A workload, and calls of it whose results are noted."""

    def __init__(
        self,
        workload: Workload,
        device: torch.device,
        *,
        train: bool,
        seed: int,
        optimizes: bool = False,
    ) -> None:
        self.step = Step(workload, train=train, seed=seed, optimizes=optimizes)
        self._device = device
        self._own = inputs_of(workload, train=train)
        self._buffers = Buffers(workload.model)
        self._attributes = Attributes(workload.model)
        self._held: Outcome | None = None
        self._calls = 0
        self._kept: list[_Kept] = []
        self._kept_gradients: _Kept | None = None
        self.says_overwritten = False
        """Whether torch refused a look at an earlier output: it says when they end."""
        self.writes_attributes = False
        """Whether a call left another plain attribute: the next one may be compiled anew."""

    def call(
        self,
        compiled: Callable[..., Any],
        inputs: Inputs | None = None,
        *,
        fresh: bool = False,
        during: AbstractContextManager[Any] | None = None,
    ) -> Ran:
        """Call once, from the state that the reference started from, and hold what it gave.

        Args:
            compiled: the model, as a backend runs it.
            inputs: values of its inputs; default: the workload's own.
            fresh: whether the inputs are at other addresses than in other calls.
            during: active while the step runs.
        """
        step = self.step
        if fresh:
            workload = elsewhere(step.workload)
            step = Step(workload, train=step.train, seed=step.seed, cotangents=step.cotangents)
        outputs: list[Any] = []

        def noting(*args: Any, **kwargs: Any) -> Any:
            outputs.append(compiled(*args, **kwargs))
            self.writes_attributes |= self._attributes.changed
            return outputs[-1]

        self.put_state()
        put(step, inputs or self._own)
        spent: dict[str, Any] = {}
        gradients: dict[str, torch.Tensor | None] = {}
        try:
            with during or nullcontext():
                measured = _measured(step, self._device, spent, gradients)
                outcome = outcome_of(noting, step, seed=step.seed, during=measured)
        finally:
            put(self.step, self._own)
        self._hold(outcome, outputs[-1], gradients)
        return Ran(**spent)

    def call_in_a_row(self, compiled: Callable[..., Any], sets: Sequence[Inputs | None]) -> None:
        """Call once with each set of inputs, and hold what all of them gave.

        Each call begins from the state that the last one left.
        """
        step = self.step
        row = in_a_row(step.workload, [self._own if x is None else x for x in sets])
        self.put_state()
        self._held = outcome_of(
            each(compiled), Step(row, train=step.train, seed=step.seed), seed=step.seed
        )

    def call_as_in_use(self, compiled: Callable[..., Any], calls: int) -> None:
        """Call several times, each from the state that the last one left, and hold nothing."""
        self.put_state()
        with unchanged(self.step):
            for _ in range(calls):
                self.step(compiled)
        self.step.clear_gradients()
        self.put_state()

    def fault(self, compiled: Callable[..., Any], before: process_state.State) -> str:
        """Return what is wrong though every call was right, in words; empty where nothing is.

        Args:
            compiled: the model, as a backend runs it; it is called a few times more.
            before: the process's state before the backend was imported.
        """
        overwritten = self.overwritten()
        random = self.random_fault(compiled)
        changes = process_state.changes_values(before, process_state.state())
        if overwritten is not None:
            return (
                f"{overwritten} changed when it was called again: it returns memory that it "
                "writes anew, and says so nowhere"
            )
        if changes:
            return f"it leaves changed what others compute with: {', '.join(changes)}"
        return random

    def random_fault(self, compiled: Callable[..., Any]) -> str:
        """Return what calls make of torch's random state that eager never does, in words.

        It is called a few times more.
        """

        def call() -> None:
            self.put_state()
            state = State(self.step)
            try:
                self.step(compiled)
            finally:
                state.put_back()

        forgets = forgetting(call, self.step.seed)
        if forgets:
            with torch.compiler.set_stance("force_eager"):  # a model may seed by itself
                forgets = tuple(x for x in forgets if x not in forgetting(call, self.step.seed))
        self.step.clear_gradients()
        self.put_state()
        if not forgets:
            return ""
        return (
            f"it leaves torch's random generator ({', '.join(forgets)}) in one and the same state, "
            "whichever that was before: what is drawn later is the same after each call "
            "(torch.random.fork_rng puts the state back)"
        )

    def hold_last(self, output: Any, step: Step, before: State) -> None:
        """Hold what a step gave that somebody else called and timed."""
        self._held = outcome_of_last(output, step, before)

    def put_state(self) -> None:
        """Put buffers and attributes into the state that the reference started from."""
        self._buffers.put_back()
        self._attributes.put_back()

    def hand(self, path: Path, picked: int | None) -> None:
        """Write what the last call gave to a file, or some elements of it, and forget it."""
        assert self._held is not None, "there was a call"
        outcome, self._held = self._held, None
        evidence.write(outcome if picked is None else evidence.picked(outcome, picked), path)

    def overwritten(self) -> str | None:
        """Return which earlier output or gradient is not what it was, if that is not said of any.

        Torch refuses to show what a CUDA graph has written over, but not always: what was returned
        while one was recorded may be shown, and be another. See `says_overwritten`.
        """
        found = None
        gradients = [] if self._kept_gradients is None else [self._kept_gradients]
        for kept in (*self._kept, *gradients):
            for name, value in kept.there.items():
                then = kept.then[name]
                try:
                    same = torch.equal(value, then) or _is_nan_alike(value, then)
                except RuntimeError as error:
                    self.says_overwritten |= _OVERWRITTEN in str(error)
                    continue
                if not same:
                    found = found or f"{name} of call {kept.call}"
        return None if self.says_overwritten else found

    def _hold(
        self, outcome: Outcome, output: Any, gradients: Mapping[str, torch.Tensor | None]
    ) -> None:
        self._held = outcome
        self._calls += 1
        outputs = {n: x for n, x in leaves(output, "output") if isinstance(x, torch.Tensor)}
        size = sum(map(_bytes, outputs.values()))
        if not self._kept or size * (len(self._kept) + 1) <= _KEPT_BYTES:
            shared = {name for name, _ in outcome.aliases}
            there = {n: x.detach() for n, x in outputs.items() if n not in shared}
            self._kept.append(_Kept(self._calls, there, outcome.tensors))
        if self._kept_gradients is None and self._calls > _MEASURED:
            there = _fitting({n: x for n, x in gradients.items() if x is not None})
            then = {n: x for n, x in outcome.gradients.items() if n in there and x is not None}
            self._kept_gradients = _Kept(self._calls, there, then)


@dataclasses.dataclass(frozen=True)
class _Kept:
    """Tensors that a call gave, and what was in them then."""

    call: int
    there: Mapping[str, torch.Tensor]
    then: Mapping[str, torch.Tensor]


def _fitting(gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return as many as may be kept aside."""
    found, left = {}, _KEPT_BYTES
    for name in sorted(gradients, key=lambda x: _bytes(gradients[x])):
        left -= _bytes(gradients[name])
        if left < 0:
            break
        found[name] = gradients[name].detach()
    return found


def _bytes(value: torch.Tensor) -> int:
    return value.numel() * value.element_size()


def put(step: Step, inputs: Sequence[torch.Tensor]) -> None:
    """Write values into a step's inputs, where they are.

    Their versions stay as they are, so that they tell nobody that values are new.
    """
    for (_, there), value in zip(step.inputs, inputs, strict=True):
        if not is_expanded(there):  # its values never vary
            there.data.copy_(value)


def _is_nan_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not (one.is_floating_point() or one.is_complex()):
        return False
    return bool(torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True))


@contextmanager
def _measured(
    step: Step,
    device: torch.device,
    spent: dict[str, Any],
    gradients: dict[str, torch.Tensor | None],
) -> Iterator[None]:
    reset_peak(device)
    start = time.perf_counter()
    yield
    synchronize(device)
    spent |= {"seconds": time.perf_counter() - start, "peak_bytes": peak_bytes(device)}
    gradients |= gradients_of(step)  # they are cleared afterwards
