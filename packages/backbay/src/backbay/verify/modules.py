"""The modules of a model: which calls which, and each compiled by itself, on eager's inputs."""

import contextlib
import copy
import functools
import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from backbay.causes import one_line
from backbay.errors import ProofImpossible
from backbay.proof import Golden, Step, Workload, evidence, make_golden, observe, unchanged
from backbay.proof.golden import proof_context
from backbay.reporting.lines import Place, innermost
from backbay.verify.requests import Alone, AlonePrepared, Call, Gave, PrepareAlone, Situation
from backbay.verify.situations import FIRST, Situations, kept, room

_HERE = str(Path(__file__))


class _Caught(BaseException):
    """A module was called with these inputs: the way out of a forward, which no `except` stops."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.inputs = (args, kwargs)


def called(workload: Workload, seed: int) -> tuple[Call, ...]:
    """Return the modules that one eager run calls, in order; of each its first call."""
    found: dict[str, Call] = {}
    stack: list[str] = []

    def enter(name: str, module: torch.nn.Module, _args: Any, _kwargs: Any) -> None:
        if name not in found:
            frames = traceback.extract_stack() if stack else []
            places = [Place(x.filename, x.lineno or 0, x.name) for x in frames]
            found[name] = Call(
                module=name,
                caller=stack[-1] if stack else None,
                type=type(module).__name__,
                forward=forward_of(module),
                called_at=innermost(x for x in places if x.file != _HERE),
            )
        stack.append(name)

    def leave(*_: Any) -> None:
        stack.pop()

    with contextlib.ExitStack() as hooks:
        for name, module in workload.model.named_modules():
            entering = module.register_forward_pre_hook(
                functools.partial(enter, name), with_kwargs=True, prepend=True
            )
            leaving = module.register_forward_hook(leave, always_call=True)
            hooks.callback(entering.remove)
            hooks.callback(leaving.remove)
        _run(workload, seed)
    return tuple(found.values())


def inputs_to(
    workload: Workload, module: str, seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return what a module is first called with in eager, copied; None if it is not called."""

    def catch(_module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        raise _Caught(args, kwargs)

    hook = workload.model.get_submodule(module).register_forward_pre_hook(
        catch, with_kwargs=True, prepend=True
    )
    try:
        _run(workload, seed)
    except _Caught as caught:
        args, kwargs = pytree.tree_map(_copied, caught.inputs)
        return args, kwargs
    finally:
        hook.remove()
    return None


def forward_of(module: torch.nn.Module) -> str:
    """Return where a module's forward is written, ``file:line``; empty where nobody knows."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _run(workload: Workload, seed: int) -> None:
    step = Step(workload, train=False, seed=seed)
    with kept(workload.model), unchanged(step, seed=seed):
        step(workload.model)


def _copied(value: Any) -> Any:
    """Copy an input: what the model does with it later must not be seen."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 (an object that can't be copied is shared)
        return value


def prepared_alone(workload: Workload, request: PrepareAlone) -> AlonePrepared:
    """Make the truth of one module alone, where there is one, and keep it in a file."""
    situations = Situations.prepared(workload, request.course)
    try:
        with _module_in(situations, FIRST, request.module):
            pass  # it must be called there, too
        with _module_in(situations, request.situation, request.module) as alone:
            train, golden = _golden(alone, situations)
    except ProofImpossible as error:
        return AlonePrepared(unproven=str(error))
    except Exception as error:  # noqa: BLE001 (alone, a module may not run at all)
        return AlonePrepared(unproven=f"alone, uncompiled, it raises {one_line(error)}")
    golden.save(request.path)
    return AlonePrepared(
        train=train,
        reduced=golden.reduced,
        draws_random=golden.draws_random,
        math_attention=golden.math_attention,
    )


def given_alone(situations: Situations, asked: Mapping[str, Any], request: Alone) -> Gave:
    """Compile one module by itself, in the first situation, and run it in the one asked for.

    What it gives goes to a file.
    """
    torch.compiler.reset()
    model, how = situations.workload.model, request.prepared
    try:
        with _module_in(situations, FIRST, request.module) as first:
            pass
        with _module_in(situations, request.situation, request.module) as alone:
            pass
        with (
            room(),
            proof_context(draws_random=how.draws_random, math_attention=how.math_attention),
            _uncompiled(model, request.eager),
        ):
            # Not as a full graph: of what is kept from compiling inside, each is a break.
            call = torch.compile(
                model.get_submodule(request.module), dynamic=situations.course.dynamic, **asked
            )
            counters.clear()
            if request.situation != FIRST:
                observe(call, first, train=how.train, seed=situations.seed)
            with situations.state_of(request.situation):
                outcome = observe(call, alone, train=how.train, seed=situations.seed)
            if not counters["stats"]["unique_graphs"]:
                return Gave(status="not_compiled", reason="Dynamo gave the backend no graph")
            evidence.write(outcome, request.path)
            return Gave()
    except Exception as error:  # noqa: BLE001 (whatever a backend raises is the result)
        return Gave(status="failed", reason=one_line(error))


@contextlib.contextmanager
def _module_in(situations: Situations, situation: Situation, path: str) -> Iterator[Workload]:
    """Put the model into a situation; yields the module with what it is called with there."""
    with situations.state_of(situation):
        whole = situations.called_with(situation)
        if not path:
            yield whole
            return
        inputs = inputs_to(whole, path, situations.seed)
        if inputs is None:
            raise ProofImpossible("it is not called")
        module = whole.model.get_submodule(path)
        yield Workload(model=module, args=inputs[0], kwargs=inputs[1], name=path)


def _golden(alone: Workload, situations: Situations) -> tuple[bool, Golden]:
    """Make the module's own truth; one that has no gradients is judged without them."""
    if situations.train:
        with contextlib.suppress(ProofImpossible):
            return True, make_golden(alone, train=True, seed=situations.seed)
    return False, make_golden(alone, train=False, seed=situations.seed)


@contextlib.contextmanager
def _uncompiled(model: torch.nn.Module, paths: Sequence[str]) -> Iterator[None]:
    """Keep Dynamo out of some modules of a model."""
    modules = [model.get_submodule(path) for path in paths]
    before: list[Any] = [vars(x).get("forward") for x in modules]
    for module in modules:
        module.forward = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module, forward in zip(modules, before, strict=True):
            vars(module).pop("forward", None)
            if forward is not None:
                module.forward = forward
