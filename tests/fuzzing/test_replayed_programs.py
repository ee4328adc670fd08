"""Random programs on a device that is made up: replays give what code does that runs as it is.

They are called often, at each of their sizes. What calls gave stays with the caller, who looks at
all of it in the end, and writes to some; some gradients accumulate, and some backwards wait for the
next forward. Programs that write their inputs are left out: they are not recorded.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import fake_device
import pytest
import torch
from aot_graphs import Way
from torch.fx import GraphModule

from backbay import compile_log
from backbay_conformance.fuzz.building import built, inputs_of
from backbay_conformance.fuzz.drawing import NoProgramError, program
from backbay_conformance.fuzz.program import Program
from backbay_conformance.fuzz.source import source
from backbay_optimizer.cuda_graphs import recording
from backbay_optimizer.cuda_graphs.buffers import Buffers, overlaps

SEEDS = range(40)
SWEEP = range(40, 1000)
REPLAYED = 0.7
"""Of all that are held, as many at least are replayed."""
CPU = torch.device("cpu")
Seen = list[Any]


class Filled(Buffers):
    """Has inputs' values at once: what this device captures it computes, and indices are read."""

    def __init__(self, inputs: Sequence[Any], places: Sequence[int]) -> None:
        super().__init__(inputs, places)
        self.fill(inputs)


class LikeInductors(Way):
    """Returns tensors of an address, a size and strides, which are no views of others."""

    def results(self, graph: GraphModule, given: Sequence[Any]) -> list[Any]:
        inputs = {id(x) for x in given}
        made = list(graph(*given))
        is_view = [isinstance(x, torch.Tensor) and x._is_view() for x in made]
        return [
            x.data if view and id(x) not in inputs else x
            for x, view in zip(made, is_view, strict=True)
        ]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setattr(recording, "Buffers", Filled)
    yield fake_device.install(monkeypatch)
    torch.compiler.reset()


def writes_its_inputs(drawn: Program) -> bool:
    module = built(drawn)
    for n in drawn.sizes:
        given = inputs_of(drawn, n, CPU)
        before = [x._version for x in given]
        with torch.no_grad():
            module(*given)
        if [x._version for x in given] != before:
            return True
    return False


def seen(drawn: Program, way: LikeInductors) -> Seen:
    """Return all that can be seen of many calls: tensors, and texts."""
    torch.compiler.reset()
    module, found, waiting = built(drawn), Seen(), list[torch.Tensor]()
    call = way(module, dynamic=drawn.dynamic)
    first, last = drawn.sizes[0], drawn.sizes[-1]
    for step, n in enumerate([first] * 5 + [last] * 5 + [*drawn.sizes] * 2 + [first] * 3):
        torch.manual_seed(step)
        given = inputs_at(drawn, n, step)
        if drawn.train:
            leaves = [leaf(x) for x in given]
            results = list(call(*leaves))
            learnt = [x for x in results if x.requires_grad]
            if step % 4 != 2:
                backward([*waiting, *learnt])
                learnt = []
            waiting = learnt
            found += [layouts(results, leaves), *(x.detach() for x in results)]
            found += leaves
        else:
            found += inferred(call, given, writes=step % 4 == 1)
        if step % 3 == 2:  # else gradients accumulate
            found += [x.grad for x in module.parameters()]
            module.zero_grad()
    gradients = [x.grad for x in found if isinstance(x, torch.Tensor) and x.is_leaf]
    return [*found, *gradients, *module.state_dict().values()]


def inputs_at(drawn: Program, n: int, step: int) -> tuple[torch.Tensor, ...]:
    """Return other numbers in each step, laid out and shared alike."""
    given = inputs_of(drawn, n, CPU)
    for x in given:
        if x.is_floating_point() and not overlaps(x):
            x.mul_(1 + step / 32)
    return given


def leaf(x: torch.Tensor) -> torch.Tensor:
    learns = x.is_floating_point() or x.is_complex()
    return x.detach().requires_grad_() if learns else x


def backward(results: Sequence[torch.Tensor]) -> None:
    if results:
        torch.autograd.backward(results, [torch.ones_like(x) for x in results])


@torch.no_grad()
def inferred(call: Any, given: Sequence[torch.Tensor], *, writes: bool) -> Seen:
    results = list(call(*given))
    said = layouts(results, given)
    is_own = places(results[:1])[0] not in places(given)
    if writes and is_own and results[0].is_floating_point():
        results[0].mul_(2)
    return [said, *results, *given]


def layouts(results: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> str:
    """Return how results are laid out, and which share memory with which, or with an input."""
    memory = places([*results, *given])
    bits = [(x.is_conj(), x.is_neg(), x.requires_grad) for x in results]
    how = [(x.stride(), x.storage_offset()) for x in results]
    return str(([memory.index(x) for x in memory if x], bits, how))


def places(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [x.untyped_storage().data_ptr() if x.numel() else 0 for x in tensors]


def replays_of(seed: int, device: dict[str, Any]) -> int | None:
    """Return how often a program was replayed, alike each time; None where it is left out."""
    try:
        drawn = program(seed)
    except NoProgramError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if writes_its_inputs(drawn):
                return None
            wanted = seen(drawn, LikeInductors(replays=False))
        except (RuntimeError, IndexError):  # of eager, or of torch's own, which can't compile it
            return None
        device["graphs"].clear()
        compile_log.clear()
        found = seen(drawn, LikeInductors(replays=True))
    said = f"{seed}: {[x.why for x in compile_log.records()]}\n{source(drawn)}"
    for one, other in zip(found, wanted, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other, said
            continue
        torch.testing.assert_close(
            one, other, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda x: f"{x}\n{said}"
        )
    return sum(x.replays for x in device["graphs"])


def assert_replays_are_alike(seeds: Sequence[int], device: dict[str, Any]) -> None:
    held = [x for x in (replays_of(seed, device) for seed in seeds) if x is not None]
    assert len(held) > len(seeds) / 3  # about half of them write inputs
    assert sum(x > 0 for x in held) > REPLAYED * len(held)


def test_a_replay_of_a_random_program_is_told_from_code_that_runs_as_it_is(device):
    assert_replays_are_alike(SEEDS, device)


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_of_many_random_programs_a_replay_is_told_from_code_that_runs_as_it_is(device):
    assert_replays_are_alike(SWEEP, device)
