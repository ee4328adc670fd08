"""Faults under a context (threads, autocast, randomness, operators of operators), and of errors."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.nn import functional

from mutants.harness import (
    Backend,
    Faults,
    Plan,
    Run,
    aot,
    dynamo,
    instead_of,
)
from mutants.mutant import Compiled, Mutant
from mutants.numerics import aten, once

_SWITCH_S = 0.002
_TURNS = 3
_hops = torch.ops.higher_order


def _one_set_of_registers(run: Run, _graph: Any, _inputs: Any) -> Run:
    registers: list[Any] = []

    def call(*args: Any) -> Any:
        registers[:] = args
        if threading.active_count() > 1:
            time.sleep(_SWITCH_S)  # where another thread's call comes in
        return run(*registers)

    return call


def _no_autocast(run: Run, _graph: Any, inputs: Any) -> Run:
    kinds = {x.device.type for x in inputs if isinstance(x, torch.Tensor)} or {"cpu"}

    def call(*args: Any) -> Any:
        with torch.autocast(kinds.copy().pop(), enabled=False):
            return run(*args)

    return call


def _one_mask() -> Faults:
    masks: dict[Any, torch.Tensor] = {}

    def masked(
        op: Any, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Any:
        if not training or p in {0, 1}:
            return op(x, p, training, inplace)
        key = (tuple(x.shape), p, x.device)
        if key not in masks:
            masks[key] = torch.rand(x.shape, device=x.device) >= p
        return x * masks[key].to(x.dtype) / (1 - p)

    return lambda target: masked if target is functional.dropout else None


def _own_randomness(op: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.random.fork_rng():
        torch.seed()
        return op(*args, **kwargs)


def _is_random(target: Any) -> Any:
    seeded = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return _own_randomness if seeded else None


def _first_branch(_op: Any, _predicate: Any, first: Any, _second: Any, operands: Any = ()) -> Any:
    return first(*operands)


def _one_turn_less(_op: Any, condition: Any, body: Any, carried: Any, further: Any = ()) -> Any:
    before = carried
    while bool(condition(*carried, *further)):
        before, carried = carried, body(*carried, *further)
    return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in before)


def _unwritten(op: Any, *args: Any, **kwargs: Any) -> Any:
    bases = kwargs.get("_all_bases") or []
    before = [x.clone() if isinstance(x, torch.Tensor) else x for x in bases]
    right = op(*args, **kwargs)
    return (*right[: len(right) - len(before)], *before) if before else right


def _unchecked_weights(op: Any, weights: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if weights.is_floating_point():
        weights = weights.nan_to_num(0.0, 1.0, 0.0).clamp(min=torch.finfo(weights.dtype).tiny)
    return op(weights, *args, **kwargs)


def _all_runtime_errors(run: Run, _graph: Any, _inputs: Any) -> Run:
    def call(*args: Any) -> Any:
        try:
            return run(*args)
        except Exception as error:
            raise RuntimeError(f"kernel failed: {error}") from error

    return call


def _goes_on(run: Run, graph: torch.fx.GraphModule, _inputs: Any) -> Run:
    output = next(x for x in graph.graph.nodes if x.op == "output")
    values = [x.meta.get("example_value") for x in output.args[0]]

    def call(*args: Any) -> Any:
        try:
            return run(*args)
        except (RuntimeError, IndexError):
            if not all(isinstance(x, torch.Tensor) for x in values):
                raise
            return tuple(
                torch.zeros([int(n) for n in x.shape], dtype=x.dtype, device=x.device)
                for x in values
            )

    return call


def _threads(compiled: Compiled) -> Any:
    function = compiled(torch.sin)
    function(torch.ones(2))
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(function, [torch.full((2,), float(i)) for i in range(8)]))


def _cast(compiled: Compiled) -> Any:
    function = compiled(torch.mm)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return function(torch.ones(2, 2), torch.ones(2, 2)).dtype


def _two_masks(compiled: Compiled) -> Any:
    function = compiled(lambda x: functional.dropout(x, 0.5))
    return torch.equal(*(function(torch.ones(64)) for _ in range(2)))


def _seeded_twice(compiled: Compiled) -> Any:
    function = compiled(lambda x: x + torch.rand_like(x))
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(function(torch.ones(64)))
    return torch.equal(*results)


def _branch(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def _loop(x: torch.Tensor) -> Any:
    from torch import _higher_order_ops

    loop: Any = _higher_order_ops.while_loop
    return loop(lambda i, _: i < _TURNS, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))


@torch.library.custom_op("backbay_faults::add_one", mutates_args={"x"})
def _add_one(x: torch.Tensor) -> None:
    x.add_(1)


def _custom(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    _add_one(y)
    return y * 2


def _unchecked(compiled: Compiled) -> Any:
    return compiled(lambda x: torch.multinomial(x, 1))(torch.tensor([-1.0, 2.0]))


def _out_of_range(compiled: Compiled) -> Any:
    return compiled(functional.embedding)(torch.tensor([9]), torch.ones(3, 2))


FAULTS = [
    Mutant(
        name="threads_share_registers",
        family="context",
        fault="Calls from two threads keep their arguments in one place.",
        level="contract",
        compiler=Backend("threads_share_registers", dynamo(Plan(around=_one_set_of_registers))),
        shown_by=_threads,
    ),
    Mutant(
        name="autocast_ignored",
        family="context",
        fault="What is compiled runs as though autocast were off.",
        level="context",
        compiler=Backend("autocast_ignored", dynamo(Plan(around=_no_autocast))),
        shown_by=_cast,
    ),
    Mutant(
        name="one_dropout_mask_for_all",
        family="context",
        fault="Dropout draws its mask at the first call, and uses it at every further one.",
        level="contract",
        compiler=Backend("one_dropout_mask_for_all", dynamo(Plan(faults=_one_mask))),
        shown_by=_two_masks,
    ),
    Mutant(
        name="seed_ignored",
        family="context",
        fault="Random operators draw from a generator of their own that manual_seed does not seed.",
        level="contract",
        compiler=Backend("seed_ignored", aot(Plan(faults=lambda: _is_random))),
        shown_by=_seeded_twice,
    ),
    Mutant(
        name="cond_takes_first_branch",
        family="context",
        fault="A conditional takes its first branch whatever the predicate says.",
        level="context",
        compiler=Backend(
            "cond_takes_first_branch", dynamo(Plan(faults=instead_of({_hops.cond: _first_branch})))
        ),
        shown_by=once(_branch, -torch.ones(2)),
    ),
    Mutant(
        name="loop_runs_once_less",
        family="context",
        fault="A while loop runs once less than it should.",
        level="context",
        compiler=Backend(
            "loop_runs_once_less",
            dynamo(Plan(faults=instead_of({_hops.while_loop: _one_turn_less}))),
        ),
        shown_by=once(_loop, torch.ones(2)),
    ),
    Mutant(
        name="custom_operators_write_unseen",
        family="context",
        fault="What reads a tensor after a custom operator changed it reads it as before.",
        level="context",
        link="https://github.com/pytorch/pytorch/issues/127821",
        compiler=Backend(
            "custom_operators_write_unseen",
            aot(
                Plan(
                    faults=instead_of(
                        {
                            _hops.auto_functionalized: _unwritten,
                            _hops.auto_functionalized_v2: _unwritten,
                        }
                    )
                )
            ),
        ),
        shown_by=once(_custom, torch.ones(2)),
    ),
    Mutant(
        name="probabilities_are_not_checked",
        family="errors",
        fault="Draws by negative, infinite or NaN weights give something, and eager raises.",
        level="errors",
        link="https://github.com/pytorch/pytorch/issues/185246",
        compiler=Backend(
            "probabilities_are_not_checked",
            aot(Plan(faults=instead_of({aten.multinomial: _unchecked_weights}))),
        ),
        shown_by=_unchecked,
    ),
    Mutant(
        name="every_error_is_a_runtime_error",
        family="errors",
        fault="An error of another class than RuntimeError becomes one, so nobody's except "
        "catches it.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/184340",
        compiler=Backend(
            "every_error_is_a_runtime_error", dynamo(Plan(around=_all_runtime_errors))
        ),
        shown_by=_out_of_range,
    ),
    Mutant(
        name="errors_give_zeros",
        family="errors",
        fault="Where an operator raises, the result is zeros.",
        level="contract",
        compiler=Backend("errors_give_zeros", dynamo(Plan(around=_goes_on))),
        shown_by=_out_of_range,
    ),
]
