"""Diagnoses a loop of the user's own, in their process, while it runs; torch is imported late.

What is watched must run as if nobody watched: what goes wrong here is kept for whoever asks for the
diagnosis, and never raised into the loop. The diagnosis is made in a thread of its own, in which
none of the loop's modes of torch hold; the loop waits for it.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from backbay.dependencies import check_installed
from backbay.diagnose.assembling import assembled
from backbay.diagnose.ranking import known, measured
from backbay.diagnose.record import Diagnosis, Settings, TrialRecord
from backbay.diagnose.remedies import Remedies
from backbay.errors import InputError
from backbay.race.requests import ArmSetup
from backbay.registry import default_registry
from backbay.reporting.wording import counted

STEPS: Final = 10
_UNTRIED = (
    "a loop's model can't be built anew: to have it tried, diagnose a function that returns model "
    "and inputs, as in backbay diagnose train.py:model"
)
_NOTHING = (
    "nothing was compiled: no function that torch.compile made was called between the beginning "
    "and the end"
)
_COMPILED_BEFORE = "what was called had been compiled before: begin before the first call"


class Attached:
    """A loop that is looked at."""

    def __init__(self, name: str, steps: int, made: "Made") -> None:
        from backbay.diagnose.loop import Loop  # noqa: PLC0415 (as late as can be: torch)

        self._name = name
        self._loop = Loop(steps, self._make)
        self._made = made
        self._found: Diagnosis | Exception | None = None

    def step(self) -> None:
        """Say that a round of the loop begins: call it there, once in each.

        Without it, a step is from one call of the compiled function that is called first to the
        next.
        """
        self._loop.begin_named()

    @property
    def diagnosis(self) -> Diagnosis:
        """What was found: after enough steps, or at the end of the block.

        Raises:
            InputError: it is not made yet, or nothing was compiled.
        """
        if self._found is None:
            raise InputError("the diagnosis is made when enough steps are over, or the block ends")
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def _end(self, raised: BaseException | None) -> None:
        if self._found is not None:
            return
        self._loop.stop()
        if raised is not None and not isinstance(raised, SystemExit):
            self._loop.failed(raised)
        self._make()

    def _make(self) -> None:
        def make() -> None:
            try:
                self._found = self._diagnosed()
            except Exception as error:  # noqa: BLE001 (it is for whoever asks, not for the loop)
                self._found = error

        thread = threading.Thread(target=make, name="backbay.diagnose")
        thread.start()
        thread.join()
        self._made(self)

    def _diagnosed(self) -> Diagnosis:
        loop = self._loop
        if not loop.compiled_anything:
            raise InputError(_NOTHING if loop.outer.compiled is None else _COMPILED_BEFORE)
        explanation = loop.explained(self._name, default_registry)
        looked = loop.looked()
        findings, notes = [*known(explanation)], [loop.step_words(), *loop.notes]
        if looked is not None:
            findings += measured(looked)
            notes += looked.inside.notes
        else:
            steps = counted(len(loop.calls.names), "step")
            notes.append(f"no kernels were timed: the loop ended after {steps}")
        arm = ArmSetup(arm=loop.arm)
        remedies = Remedies(
            explanation=explanation,
            arm=arm,
            device=explanation.settings.device,
            registry=default_registry,
        )
        trials = {
            number: [
                TrialRecord(remedy=x.name, status="not_tried", sentence=x.unfit or _UNTRIED)
                for x in remedies.of(found)
            ]
            for number, found in enumerate(findings)
        }
        settings = explanation.settings
        return assembled(
            explanation,
            looked,
            findings=findings,
            trials=trials,
            own_calls=len(explanation.calls),
            versions=explanation.versions,
            settings=Settings(
                workload=self._name,
                arm=str(loop.arm),
                dynamic=settings.dynamic,
                fullgraph=settings.fullgraph,
                mode=settings.mode,
                dtype=settings.dtype,
                device=settings.device,
                seed=settings.seed,
            ),
            notes=notes,
        )


Made = Callable[[Attached], object]
"""What is done as soon as the diagnosis is made."""


@contextlib.contextmanager
def attach(
    name: str = "loop", *, steps: int = STEPS, made: Made = lambda _attached: None
) -> Iterator[Attached]:
    """Look at a loop of your own under torch.compile, for some steps.

    Put it around the loop, before the first call of what torch.compile made. Until nothing new is
    compiled, steps are only watched; then some are timed, and as many profiled. After them, the
    diagnosis is made, and nothing is watched any more. What the loop computes stays the same.
    Inductor's caches are left out meanwhile.

    Args:
        name: what reports call it.
        steps: that are timed, and as many that are profiled.
        made: called as soon as the diagnosis is made, with what the block is given.

    Yields:
        What has the diagnosis, and is told where steps begin, if you like.

    Raises:
        InputError: ``steps`` is no positive number.
    """
    check_installed("diagnose")
    if steps < 1:
        raise InputError(f"steps must be 1 or more, not {steps}")
    attached = Attached(name, steps, made)
    attached._loop.start()  # noqa: SLF001 (its own)
    try:
        yield attached
    except BaseException as error:
        attached._end(error)  # noqa: SLF001 (likewise)
        raise
    attached._end(None)  # noqa: SLF001 (likewise)
