"""Plans of kernels that a search found on this machine's GPUs, kept on disk.

They are in Backbay's store, beside decisions. What cannot be read, or others may have written, is
searched again.
"""

import hashlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import torch
from torch import Tensor

import backbay
from backbay.decisions import Store, StoreError
from backbay_optimizer.kernels.conditions import device_code

_log = logging.getLogger(__name__)
_P = TypeVar("_P", bound=NamedTuple)


class FoundPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel's, for inputs of one kind."""

    fields: tuple[int | str | bool, ...]


_known: "dict[str, NamedTuple | str]" = {}
"""Of this process: a store that can't be written forgets."""


def key_of(
    launch: Callable[..., Any], settings: Any, given: Sequence[Any], device: torch.device
) -> str:
    """Return a digest of all that a search depends on.

    Args:
        launch: what launches the kernel, in the module that has its device code beside it.
        settings: what else it depends on: anything whose ``repr`` tells it apart.
        given: what the kernel is launched with: tensors, numbers and strings.
        device: the GPU.
    """
    kinds = [
        (tuple(x.shape), x.stride(), str(x.dtype)) if isinstance(x, Tensor) else x for x in given
    ]
    code = device_code(sys.modules[launch.__module__])
    whole = (launch.__module__, launch.__qualname__, code, settings, kinds, _machine(device))
    return hashlib.sha256(repr(whole).encode()).hexdigest()


def _machine(device: torch.device) -> tuple[str, ...]:
    import triton  # noqa: PLC0415 (there is a kernel: it is here)

    gpu = torch.cuda.get_device_name(device)
    return gpu, str(torch.version.cuda), triton.__version__, backbay.__version__


def read(key: str, plan: _P) -> _P | str | None:
    """Return the plan that is kept under a key, which is of the type of another one.

    If a search of this process found none, why; None if nothing is kept.
    """
    if key in _known:
        return cast("_P | str", _known[key])
    found = _store().measured(FoundPlan, key)
    if found is None or [*map(type, found.fields)] != [*map(type, plan)]:
        return None
    return plan._replace(**dict(zip(plan._fields, found.fields, strict=True)))


def write(key: str, plan: NamedTuple) -> None:
    """Keep a plan; where that can't be written, it is for this process, and the log says so."""
    _known[key] = plan
    try:
        _store().keep_measured(key, FoundPlan(fields=tuple(plan)))
    except StoreError as error:
        _log.warning("a plan is not kept, and is searched in the next process: %s", error)


def write_none(key: str, why: str) -> None:
    """Keep that a search found no plan, for this process: the next one may have more memory."""
    _known[key] = why


def _store() -> Store:
    return Store(on_problem=lambda why: _log.warning("plans are searched again: %s", why))
