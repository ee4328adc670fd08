"""Which module calls which, and with what: seen in eager, by hooks."""

import contextlib
import copy
import inspect
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from backbay.proof import Step, Workload
from backbay.reporting.lines import Place, innermost
from backbay.verify.requests import Call
from backbay.verify.situations import kept

_HERE = str(Path(__file__))


class _Caught(BaseException):
    """A module was called with these inputs: the way out of a forward, which no `except` stops."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.inputs = (args, kwargs)


def called(workload: Workload, seed: int) -> list[Call]:
    """List the modules that one eager run calls, in order; of each its first call."""
    found: dict[str, Call] = {}
    stack: list[str] = []

    def enter(module: torch.nn.Module, _args: Any, _kwargs: Any, *, name: str) -> None:
        if name not in found:
            found[name] = Call(
                module=name,
                caller=stack[-1] if stack else None,
                type=type(module).__name__,
                forward=forward_of(module),
                called_at=_caller() if stack else "",
            )
        stack.append(name)

    def leave(*_: Any) -> None:
        stack.pop()

    with contextlib.ExitStack() as hooks:
        for name, module in workload.model.named_modules():
            hook = _named(enter, name)
            entering = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
            leaving = module.register_forward_hook(leave, always_call=True)
            hooks.callback(entering.remove)
            hooks.callback(leaving.remove)
        _run(workload, seed)
    return list(found.values())


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
    with kept(workload.model), torch.random.fork_rng():
        torch.manual_seed(seed)
        step(workload.model)


def _named(function: Any, name: str) -> Any:
    def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        function(module, args, kwargs, name=name)

    return hook


def _caller() -> str:
    frames = traceback.extract_stack()
    places = [Place(x.filename, x.lineno or 0, x.name) for x in frames if x.filename != _HERE]
    return innermost(places)


def _copied(value: Any) -> Any:
    """Copy an input: what the model does with it later must not be seen."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 (an object that can't be copied is shared)
        return value
