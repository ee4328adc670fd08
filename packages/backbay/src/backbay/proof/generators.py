"""torch's random generators: the state that a run starts from, and what it makes of it.

A run that draws moves a generator on. Only a run that seeds it, or writes an earlier state into it,
leaves what does not depend on where it was: whoever draws afterwards draws the same each time.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

_FAR = 1 << 20
"""Draws between two states that are told apart by what a call makes of them. A call that draws
until it is content may take some more from one than from the other, but never so many."""
_UNLIKELY = 0x0B5E_ED5A_7E11
"""Nobody else seeds with it: who leaves another seed has seeded."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Start:
    """Where a run started from."""

    seed: int
    """That of every generator."""
    generators: Mapping[str, torch.Generator]
    """By device: those that there were. Another may come into being meanwhile."""

    def seeded(self) -> tuple[str, ...]:
        """Return the generators that were seeded since: drawing leaves seeds as they are."""
        return tuple(name for name, x in self.generators.items() if self._is_seeded(x))

    def states(self) -> Mapping[str, torch.Tensor]:
        """Return the state that each generator is in now."""
        return {name: x.get_state() for name, x in self.generators.items()}

    def _is_seeded(self, generator: torch.Generator) -> bool:
        if generator.initial_seed() != self.seed:
            return True
        fresh = torch.Generator(generator.device).manual_seed(self.seed)
        return torch.equal(generator.get_state(), fresh.get_state())


@contextmanager
def started(seed: int, *, drawn: int = 1) -> Iterator[Start]:
    """Put every generator into a state that is not what a seed gives; afterwards it is as it was.

    Args:
        seed: what the state follows from.
        drawn: how many numbers have been drawn since that was seeded.
    """
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch has no stub
    devices = [torch.cuda.current_device()] if on_gpu else []
    generators = {f"cuda:{i}": torch.cuda.default_generators[i] for i in devices}
    start = Start((seed ^ _UNLIKELY) & _MASK, {"cpu": torch.default_generator, **generators})
    with torch.random.fork_rng(devices=devices):
        if torch.accelerator.is_available():
            torch.manual_seed(start.seed)
        else:
            # The other would note a stack trace for each accelerator that may come into being
            # later: most of the time that a small proof takes, and memory that is never given back.
            torch.default_generator.manual_seed(start.seed)
        for generator in start.generators.values():
            _draw(generator, drawn)
        yield start


def forgetting(call: Callable[[], object], seed: int) -> tuple[str, ...]:
    """Return the generators that two calls leave in the same state, from states that differ."""
    ends = []
    for drawn in (1, _FAR):
        with started(seed, drawn=drawn) as start:
            call()
            ends.append(start.states())
    one, other = ends
    return tuple(name for name, x in one.items() if name in other and torch.equal(x, other[name]))


def _draw(generator: torch.Generator, count: int) -> None:
    if generator.device.type == "cpu":
        torch.rand(count, generator=generator, device="cpu")
    else:  # one kernel, however many numbers it draws, moves CUDA's on by as little as 4
        generator.set_offset(4 * count)
