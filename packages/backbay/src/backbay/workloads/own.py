"""Load the user's own workload: call their function, check what it gives, put it on the device."""

import dataclasses
import functools
import importlib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

import backbay
from backbay.errors import WorkloadInvalid, WorkloadNotFound
from backbay.registry.target import TargetNotFound
from backbay.workloads.batches import with_tensors
from backbay.workloads.reference import Reference
from backbay.workloads.workload import Workload

_WANTED = "return (model, args), (model, args, kwargs) or a backbay.Workload"
_NOT_THEIRS = (
    str(Path(backbay.__file__).parent),
    str(Path(importlib.__file__).parent),
    "<frozen importlib",
)
"""Beginnings of files of ours, and of the import system's."""


def build_own(
    reference: Reference, *, dtype: torch.dtype, device: torch.device, train: bool
) -> Workload:
    """Call the user's function and return what it returns as a workload.

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
    theirs = error.__traceback__
    while theirs is not None and theirs.tb_frame.f_code.co_filename.startswith(_NOT_THEIRS):
        theirs = theirs.tb_next
    where = ""
    if theirs is not None:
        # The last line of their file that was reached; a library's may come after.
        frames = traceback.extract_tb(theirs)
        last = [frame for frame in frames if frame.filename == frames[0].filename][-1]
        where = f" at {last.filename}:{last.lineno}"
    first_line = next(iter(str(error).splitlines()), "")
    invalid = WorkloadInvalid(f"{name} raised {type(error).__name__}{where}: {first_line}")
    lines = traceback.format_exception(type(error), error, theirs)
    invalid.add_note("".join(lines).rstrip())
    return invalid


def _as_workload(name: str, returned: Any) -> Workload:
    if isinstance(returned, tuple) and len(returned) in (2, 3):
        returned = Workload(*returned)
    if not isinstance(returned, Workload):
        raise WorkloadInvalid(f"{name} returned {_described(returned)}: {_WANTED}")
    if not isinstance(returned.model, torch.nn.Module):
        raise WorkloadInvalid(
            f"{name} gave {_described(returned.model)} as the model: it must be a torch.nn.Module "
            "or a function"
        )
    if any(map(is_lazy, returned.model.parameters())):
        raise WorkloadInvalid(
            f"{name} gave a model with a lazy layer that has no parameters yet: call it once, "
            "model(*args), before it is returned"
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
    if any(not isinstance(x, tuple | list) or len(x) != 2 for x in returned.further):  # noqa: PLR2004
        raise WorkloadInvalid(
            f"{name} gave further calls that are no pairs: each is (args, kwargs), ((x,), {{}}) "
            "where there is one input"
        )
    return returned


def _described(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _placed(
    workload: Workload, name: str, *, dtype: torch.dtype, device: torch.device, train: bool
) -> Workload:
    def moved(tensor: torch.Tensor) -> torch.Tensor:
        wanted = dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(device=device, dtype=wanted)

    place = functools.partial(_placed, name=name, dtype=dtype, device=device, train=train)
    reduced = workload.reduced
    own = (tuple(workload.args), dict(workload.kwargs))
    further = tuple((tuple(x), dict(y)) for x, y in workload.further)
    (args, kwargs), further = with_tensors((own, further), moved)
    return dataclasses.replace(
        workload,
        model=_moved(workload.model, dtype, device).train(train),
        args=args,
        kwargs=kwargs,
        further=further,
        name=name,
        reduced=None if reduced is None else lambda: place(reduced()),
    )


def _moved(model: torch.nn.Module, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
    if not any(x.is_complex() for x in (*model.parameters(), *model.buffers())):
        return model.to(device=device, dtype=dtype)

    def real_alone(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    # `to` would drop the imaginary part of what is complex.
    moved = model.to(device=device)
    moved._apply(real_alone)  # type: ignore[no-untyped-call] # noqa: SLF001 (in place, as `to` does)
    return moved
