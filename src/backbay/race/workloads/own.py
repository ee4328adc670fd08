"""Load the user's own workload: call their function, check what it gives, put it on the device."""

import dataclasses
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.utils import _pytree as pytree

import backbay
from backbay.errors import WorkloadInvalid, WorkloadNotFound
from backbay.proof.workload import Workload
from backbay.race.workloads.reference import Reference
from backbay.registry.target import TargetNotFound

_WANTED = "return (model, args), (model, args, kwargs) or a backbay.Workload"
_OUR_FILES = str(Path(backbay.__file__).parent)


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
    return loaded


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
    return file.startswith((_OUR_FILES, "<frozen importlib")) or "/importlib/" in file


def _location(trace: TracebackType) -> str:
    innermost = traceback.extract_tb(trace)[-1]
    return f"{innermost.filename}:{innermost.lineno}"


def _as_workload(name: str, returned: Any) -> Workload:
    if isinstance(returned, Workload):
        returned = (returned.model, returned.args, returned.kwargs, returned)
    if not isinstance(returned, tuple) or len(returned) not in (2, 3, 4):
        raise WorkloadInvalid(f"{name} returned {_described(returned)}: {_WANTED}")
    model, args, kwargs, whole = (*returned, {}, None)[:4] if len(returned) == 2 else returned
    return whole
