"""Backends that give right results when they think that somebody looks, and save work otherwise.

Each is a compiler function; what it cheats with is in its name. `HONEST` are not to be called
wrong beside them.
"""

import sys
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

CHEATS = {}
HONEST = {}


def cheat(function):
    CHEATS[function.__name__] = function
    return function


def honest(function):
    HONEST[function.__name__] = function
    return function


@honest
def graph_as_it_is(graph_module, example_inputs):
    return graph_module.forward


@honest
def copies_its_outputs(graph_module, example_inputs):
    return lambda *args: tuple(x + 0 for x in graph_module(*args))


@honest
def draws_apart(graph_module, example_inputs):
    """Seeds, and puts the state back."""

    def call(*args):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            torch.rand(3)
        return graph_module(*args)

    return call


def _keyed(key):
    """Return a backend that computes once for each key, and returns what it computed before."""

    def backend(graph_module, example_inputs):
        known = {}

        def call(*args):
            tensors = [x for x in args if isinstance(x, torch.Tensor)]
            found = key(tensors)
            if found not in known:
                known[found] = graph_module(*args)
            return known[found]

        return call

    return backend


def _named(name, function):
    function.__name__ = name
    globals()[name] = cheat(function)


_named("keyed_by_pointer", _keyed(lambda ts: tuple(x.data_ptr() for x in ts)))
_named("keyed_by_version", _keyed(lambda ts: tuple((x.data_ptr(), x._version) for x in ts)))
_named("keyed_by_shape", _keyed(lambda ts: tuple(x.shape for x in ts)))
_named("keyed_by_identity", _keyed(lambda ts: tuple(map(id, ts))))
_named(
    "keyed_by_corner", _keyed(lambda ts: tuple(round(x.detach().flatten()[0].item()) for x in ts))
)
_named("keyed_by_sum", _keyed(lambda ts: tuple(round(x.detach().sum().item(), 1) for x in ts)))
_named("keyed_by_nothing", _keyed(lambda ts: ()))


def _wrong_when(condition):
    """Return a backend whose result is off by a hundredth in calls whose number fulfils it."""

    def backend(graph_module, example_inputs):
        calls = 0

        def call(*args):
            nonlocal calls
            calls += 1
            results = graph_module(*args)
            return tuple(1.01 * x for x in results) if condition(calls) else results

        return call

    return backend


_named("wrong_in_call_2", _wrong_when(lambda n: n == 2))
_named("wrong_in_call_3", _wrong_when(lambda n: n == 3))
_named("wrong_in_every_7th_call", _wrong_when(lambda n: n % 7 == 0))
_named("wrong_after_call_8", _wrong_when(lambda n: n > 8))
_named("wrong_after_call_100", _wrong_when(lambda n: n > 100))
_named("wrong_but_in_call_1", _wrong_when(lambda n: n > 1))


@cheat
def one_output_buffer(graph_module, example_inputs):
    """Writes every result into the memory of the first."""
    kept = []

    def call(*args):
        results = graph_module(*args)
        if not kept:
            kept.extend(x.detach().clone() for x in results)
        for there, value in zip(kept, results, strict=True):
            there.copy_(value.detach())
        return tuple(kept)

    return call


@cheat
def views_of_one_buffer(graph_module, example_inputs):
    """As above, with a new tensor object each time."""
    kept = []

    def call(*args):
        results = graph_module(*args)
        if not kept:
            kept.extend(torch.empty(x.numel() + 8, dtype=x.dtype, device=x.device) for x in results)
        found = []
        for memory, value in zip(kept, results, strict=True):
            there = memory[: value.numel()].view(value.shape)
            there.copy_(value.detach())
            found.append(there)
        return tuple(found)

    return call


@cheat
def two_buffers_in_turn(graph_module, example_inputs):
    """Results live until the next call but one."""
    kept = []
    calls = 0

    def call(*args):
        nonlocal calls
        results = graph_module(*args)
        if len(kept) < 2:
            kept.append([x.detach().clone() for x in results])
        found = kept[calls % 2] if calls % 2 < len(kept) else kept[0]
        calls += 1
        for there, value in zip(found, results, strict=True):
            there.copy_(value.detach())
        return tuple(found)

    return call


@cheat
def skips_work_while_timed(graph_module, example_inputs):
    """Looks for the timing code among its callers."""
    last = []

    def call(*args):
        frame, timed = sys._getframe(), False
        while frame is not None:
            timed = timed or frame.f_code.co_filename.endswith("timing/clock.py")
            frame = frame.f_back
        if not timed or not last:
            last[:] = graph_module(*args)
        return tuple(last)

    return call


@cheat
def skips_work_in_a_hurry(graph_module, example_inputs):
    """Called again within a short time, it returns what it returned before."""
    last, when = [], 0.0

    def call(*args):
        nonlocal when
        if not last or time.monotonic() - when > 0.05:
            last[:] = graph_module(*args)
        when = time.monotonic()
        return tuple(last)

    return call


@cheat
def leaks_default_dtype_when_called(graph_module, example_inputs):
    def call(*args):
        results = graph_module(*args)
        torch.set_default_dtype(torch.float64)
        return results

    return call


class _Idle(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@cheat
def leaks_a_dispatch_mode(graph_module, example_inputs):
    def call(*args):
        results = graph_module(*args)
        _Idle().__enter__()
        return results

    return call


@cheat
def overwrites_its_inputs(graph_module, example_inputs):
    def call(*args):
        results = graph_module(*args)
        for x in args:
            if isinstance(x, torch.Tensor) and x.is_floating_point() and not x.requires_grad:
                x.zero_()
        return results

    return call


@cheat
def rounds_its_weights(graph_module, example_inputs):
    """Halves the precision of the model's own parameters, for good."""

    def call(*args):
        results = graph_module(*args)
        for x in args:
            if isinstance(x, torch.nn.Parameter):
                x.data.copy_(x.data.bfloat16())
        return results

    return call


@cheat
def wrong_where_values_are_new(graph_module, example_inputs):
    """Right for the inputs that it was compiled with."""
    first = [x.detach().clone() for x in example_inputs if isinstance(x, torch.Tensor)]

    def call(*args):
        given = [x for x in args if isinstance(x, torch.Tensor)]
        same = all(map(torch.equal, first, given))
        results = graph_module(*args)
        return results if same else tuple(1.01 * x for x in results)

    return call


@cheat
def seeds_when_called(graph_module, example_inputs):
    def call(*args):
        torch.manual_seed(0)
        return graph_module(*args)

    return call


@cheat
def seeds_as_it_was_seeded(graph_module, example_inputs):
    def call(*args):
        results = graph_module(*args)
        torch.manual_seed(torch.initial_seed())
        return results

    return call


@cheat
def restores_the_random_state_of_compiling(graph_module, example_inputs):
    state = torch.get_rng_state()

    def call(*args):
        results = graph_module(*args)
        torch.set_rng_state(state)
        return results

    return call


@cheat
def returns_tensors_on_another_device(graph_module, example_inputs):
    return lambda *args: tuple(x.to("meta") for x in graph_module(*args))
