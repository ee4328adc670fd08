"""Calls of what backends compiled, and what each gave, handed on to a judge."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from backbay.proof import Outcome, Step, Workload, evidence, unchanged
from backbay.proof.bank import Inputs, elsewhere, inputs_of
from backbay.proof.copying import is_expanded
from backbay.proof.generators import forgetting
from backbay.proof.outcome import outcome_of, outcome_of_last
from backbay.proof.sequence import each, in_a_row
from backbay.proof.state import Attributes, Buffers, State
from backbay.proof.tree import leaves
from backbay.timing.device import synchronize
from backbay.timing.memory import peak_bytes, reset_peak

_KEPT_BYTES = 1 << 28
"""Of outputs that are kept aside, to see whether later calls overwrite them."""
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
        self._kept: list[tuple[dict[str, torch.Tensor], Outcome]] = []
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
        try:
            with during or nullcontext():
                measured = _measured(self._device, spent)
                outcome = outcome_of(noting, step, seed=step.seed, during=measured)
        finally:
            put(self.step, self._own)
        self._hold(outcome, outputs[-1])
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
        """Return which earlier output is not what it was, if that is not said of any.

        Torch refuses to show what a CUDA graph has written over, but not always: what was returned
        while one was recorded may be shown, and be another. See `says_overwritten`.
        """
        found = None
        for number, (outputs, outcome) in enumerate(self._kept, 1):
            shared = {name for name, _ in outcome.aliases}
            for name in outputs.keys() & outcome.tensors.keys() - shared:
                try:
                    same = torch.equal(outputs[name], outcome.tensors[name])
                except RuntimeError as error:
                    self.says_overwritten |= _OVERWRITTEN in str(error)
                    continue
                if not (same or _is_nan_alike(outputs[name], outcome.tensors[name])):
                    found = found or f"{name} of call {number}"
        return None if self.says_overwritten else found

    def _hold(self, outcome: Outcome, output: Any) -> None:
        self._held = outcome
        kept = {n: x.detach() for n, x in leaves(output, "output") if isinstance(x, torch.Tensor)}
        size = sum(x.numel() * x.element_size() for x in kept.values())
        if not self._kept or size * (len(self._kept) + 1) <= _KEPT_BYTES:
            self._kept.append((kept, dataclasses.replace(outcome, gradients={}, changed={})))


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
def _measured(device: torch.device, spent: dict[str, Any]) -> Iterator[None]:
    reset_peak(device)
    start = time.perf_counter()
    yield
    synchronize(device)
    spent |= {"seconds": time.perf_counter() - start, "peak_bytes": peak_bytes(device)}
