"""Load the user's own workload: call their function, check what it gives, put it on the device."""

import dataclasses
import functools
import importlib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.utils import _pytree as pytree

import backbay
from backbay.errors import WorkloadInvalid, WorkloadNotFound
from backbay.registry.target import TargetNotFound
from backbay.workloads.reference import Reference
from backbay.workloads.workload import Workload

_WANTED = "return (model, args), (model, args, kwargs) or a backbay.Workload"
_OUR_FILES = str(Path(backbay.__file__).parent)
_IMPORT_SYSTEM = str(Path(importlib.__file__).parent)


def build_own(
    reference: Reference, *, dtype: torch.dtype, device: torch.device, train: bool
) -> Workload:
    """Call the user's function and give what it returns as a workload.

    The model and its floating-point inputs are moved to ``device`` and ``dtype``; inputs of other
    dtypes to ``device`` only. Parameters are left as the user made them.

    Raises:
        WorkloadNotFound: there is no such file, module or function.
        WorkloadInvalid: the user's code raised (``__cause__`` has the exception, ``__notes__`` a
            traceback that begins in their code), or returned something else.
    """
    function = _function(reference)
    workload = _as_workload(reference.name, _call(reference.name, function))
    return _placed(workload, reference.name, dtype=dtype, device=device, train=train)


def _function(reference: Reference) -> Callable[[], Any]:
    assert reference.target is not None
    try:
        loaded = _call(reference.name, reference.target.load)
    except TargetNotFound as error:
        raise WorkloadNotFound(f"workload {reference.name}: {error}") from error
    if not callable(loaded):
        raise WorkloadInvalid(
            f"{reference.name} is a {type(loaded).__name__}, not a function: "
            f"put it in a function without arguments, and {_WANTED}"
        )
    return loaded  # type: ignore[no-any-return] # callable() says no more than that


def _call(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except TargetNotFound:
        raise
    except (Exception, SystemExit) as error:
        raise _invalid(name, error) from error


def _invalid(name: str, error: BaseException) -> WorkloadInvalid:
    theirs = _from_their_frame(error.__traceback__)
    first_line = next(iter(str(error).splitlines()), "")
    where = f" at {_location(theirs)}" if theirs else ""
    invalid = WorkloadInvalid(f"{name} raised {type(error).__name__}{where}: {first_line}")
    lines = traceback.format_exception(type(error), error, theirs)
    invalid.add_note("".join(lines).rstrip())
    return invalid


def _from_their_frame(trace: TracebackType | None) -> TracebackType | None:
    """Cut our own frames, and the import system's, off the beginning of a traceback."""
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_ours(file: str) -> bool:
    return file.startswith((_OUR_FILES, _IMPORT_SYSTEM, "<frozen importlib"))


def _location(trace: TracebackType) -> str:
    """Return the last line of the user's file that was reached; a library's may come after."""
    frames = traceback.extract_tb(trace)
    last = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{last.filename}:{last.lineno}"


def _as_workload(name: str, returned: Any) -> Workload:
    if isinstance(returned, tuple) and len(returned) in (2, 3):
        returned = Workload(*returned)
    if not isinstance(returned, Workload):
        raise WorkloadInvalid(f"{name} returned {_described(returned)}: {_WANTED}")
    if not isinstance(returned.model, torch.nn.Module):
        raise WorkloadInvalid(
            f"{name} gave {_described(returned.model)} as the model: it must be a torch.nn.Module"
        )
    if not isinstance(returned.args, tuple | list):
        raise WorkloadInvalid(
            f"{name} gave {_described(returned.args)} as the positional inputs: "
            "they must be a tuple, (x,) where there is one"
        )
    if not isinstance(returned.kwargs, Mapping) or not all(
        isinstance(key, str) for key in returned.kwargs
    ):
        raise WorkloadInvalid(
            f"{name} gave {_described(returned.kwargs)} as the keyword inputs: "
            "they must be a dict from names to values"
        )
    return returned


def _described(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _placed(
    workload: Workload, name: str, *, dtype: torch.dtype, device: torch.device, train: bool
) -> Workload:
    place = functools.partial(_placed, name=name, dtype=dtype, device=device, train=train)
    reduced = workload.reduced
    args, kwargs = _inputs_on(
        (tuple(workload.args), dict(workload.kwargs)), dtype=dtype, device=device
    )
    return dataclasses.replace(
        workload,
        model=workload.model.to(device=device, dtype=dtype).train(train),
        args=args,
        kwargs=kwargs,
        name=name,
        reduced=None if reduced is None else lambda: place(reduced()),
    )


def _inputs_on(inputs: Any, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Move the tensors of a pytree; one that occurs twice stays one tensor."""
    moved: dict[int, torch.Tensor] = {}

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in moved:
            wanted = dtype if leaf.is_floating_point() else leaf.dtype
            placed = leaf.detach().to(device=device, dtype=wanted)
            moved[id(leaf)] = placed.requires_grad_(leaf.requires_grad)
        return moved[id(leaf)]

    return pytree.tree_map(move, inputs)
