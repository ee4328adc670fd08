"""Small wrong backends, one mistake each, for the tests of the levels."""

import copy
import itertools

import torch
from torch.utils import _pytree as pytree


def contiguity_assumed(gm, example_inputs):
    """Reads the memory of an input as if it had no gaps."""

    def packed(x):
        if not isinstance(x, torch.Tensor) or x.requires_grad:
            return x
        strides = torch.empty(x.shape, device="meta").stride()
        return x.as_strided(x.shape, strides)

    return lambda *args: gm(*map(packed, args))


def float64_computed_in_float32(gm, example_inputs):
    def low(x):
        is_double = isinstance(x, torch.Tensor) and x.dtype == torch.float64
        return x.float() if is_double else x

    def high(x):
        is_float = isinstance(x, torch.Tensor) and x.dtype == torch.float32
        return x.double() if is_float else x

    return lambda *args: pytree.tree_map(high, gm(*map(low, args)))


def integers_returned_as_floats(gm, example_inputs):
    def wrong(x):
        is_whole = isinstance(x, torch.Tensor) and x.dtype == torch.int64
        return x.float() if is_whole else x

    return lambda *args: pytree.tree_map(wrong, gm(*args))


def gradient_detached(gm, example_inputs):
    def detached(x):
        return x.detach() if isinstance(x, torch.Tensor) else x

    return lambda *args: pytree.tree_map(detached, gm(*args))


class _OffByAPercent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.01


def gradient_off_by_a_percent(gm, example_inputs):
    def passed(x):
        grows = isinstance(x, torch.Tensor) and x.requires_grad
        return _OffByAPercent.apply(x) if grows else x

    return lambda *args: pytree.tree_map(passed, gm(*args))


class _OnceOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.detach() * 1.0


def second_gradient_cut(gm, example_inputs):
    """The gradient of a gradient misses what flows through the first one's cotangent."""

    def passed(x):
        grows = isinstance(x, torch.Tensor) and x.requires_grad
        return _OnceOnly.apply(x) if grows else x

    return lambda *args: pytree.tree_map(passed, gm(*args))


def validation_swallowed(gm, example_inputs):
    def run(*args):
        try:
            return gm(*args)
        except (IndexError, RuntimeError):
            return tuple(torch.zeros(()) for _ in gm.graph.output_node().args[0])

    return run


def size_baked_in(gm, example_inputs):
    for x in example_inputs:
        if isinstance(x, torch.SymInt):
            int(x)
    return lambda *args: gm(*args)


def first_offset_kept(gm, example_inputs):
    """Remembers where the inputs of the first call began."""
    first = []

    def run(*args):
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        if not first:
            first.extend(x.storage_offset() for x in tensors)
        moved = dict(zip(map(id, tensors), first, strict=False))
        return gm(
            *(
                x.as_strided(x.shape, x.stride(), moved[id(x)]) if id(x) in moved else x
                for x in args
            )
        )

    return run


def mutation_dropped(gm, example_inputs):
    def copy(x):
        return x.clone() if isinstance(x, torch.Tensor) else x

    return lambda *args: gm(*map(copy, args))


def state_updates_dropped(gm, example_inputs):
    """Writes to copies of the tensors that the graph holds: an optimizer's parameters."""
    return lambda *args: copy.deepcopy(gm)(*args)


def another_result_every_time(gm, example_inputs):
    calls = itertools.count()

    def run(*args):
        shift = 1 + 2e-7 * next(calls)
        return pytree.tree_map(lambda x: x * shift if _is_float(x) else x, gm(*args))

    return run


def one_thread_forgotten(gm, example_inputs):
    """Right with several threads, and half done with one."""

    def run(*args):
        share = 0.5 if torch.get_num_threads() == 1 else 1.0
        return pytree.tree_map(lambda x: x * share if _is_float(x) else x, gm(*args))

    return run


def single_row_rounded_otherwise(gm, example_inputs):
    def run(*args):
        alone = any(isinstance(x, torch.Tensor) and x.shape[:1] == (1,) for x in args)
        shift = 1 + 2e-7 * alone
        return pytree.tree_map(lambda x: x * shift if _is_float(x) else x, gm(*args))

    return run


def _is_float(x):
    return isinstance(x, torch.Tensor) and x.dtype == torch.float32
