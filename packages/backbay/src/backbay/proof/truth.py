"""Eager in float64, whatever the model does about precision: the truth that results are held to.

``model.double()`` is not it: a model that casts to float32 inside, or makes a float32 constant,
goes on in float32. Here every operator, forward and backward, gets float64 in place of every
lower precision, as tensor or as dtype argument. Float8 is left alone: who stores float8 means to
quantise, and the truth of a quantised model is quantised.
"""

import contextlib
import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from backbay.errors import ProofImpossible
from backbay.proof.copying import copied
from backbay.workloads.workload import Workload

RAISED = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
"""What is computed with in place of each low precision."""

aten = torch.ops.aten


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Compute everything in float64 inside; the default dtype is as it was afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64():
            yield
    finally:
        torch.set_default_dtype(before)


class InFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no stub
    """Raises every low-precision tensor and dtype that an operator is given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Tensors from outside (a constant in a closure, a cache in a plain attribute) stay as they
        # are: each has one float64 twin here, which also takes what is written to it.
        self._twins: Any = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is aten.view.dtype and _reads_bits(*args):
            raise ProofImpossible(
                "the model reads the bits of a floating-point tensor (Tensor.view of a dtype), "
                "which have no counterpart in float64"
            )
        args, kwargs = pytree.tree_map(self._raised, (args, kwargs or {}))
        if func is aten._grouped_mm.default:  # noqa: SLF001 (its ATen name)
            return _grouped_mm(*args, **kwargs)
        return func(*args, **kwargs)

    def _raised(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return RAISED.get(value, value)
        if isinstance(value, torch.Tensor) and value.dtype in RAISED:
            return self._twin(value)
        return value

    def _twin(self, value: torch.Tensor) -> torch.Tensor:
        twin: torch.Tensor | None = self._twins.get(value)
        if twin is None:
            twin = value.to(RAISED[value.dtype])
            self._twins[value] = twin
        return twin


def _grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,  # noqa: ARG001 (always float64 here)
) -> torch.Tensor:
    """Multiply group by group; torch's own operator has no float64 kernel.

    Groups are cut from the rows of ``left`` (m, k) for ``right`` (g, k, n), or from the inner
    dimension of ``left`` (m, k) and ``right`` (k, n). ``offs`` holds the g ends of the groups.
    """
    if offs is None or bias is not None:
        return torch.bmm(left, right)
    ends = offs.tolist()
    starts = [0, *ends[:-1]]
    if right.dim() == 3:  # noqa: PLR2004
        result = left.new_zeros(left.shape[0], right.shape[2])
        for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
            result[start:end] = left[start:end] @ right[group]
        return result
    parts = [left[:, s:e] @ right[s:e] for s, e in zip(starts, ends, strict=True)]
    return torch.stack(parts)


def raised(workload: Workload) -> Workload:
    """Copy a workload with every low-precision parameter, buffer and input in float64.

    Raises:
        ProofImpossible: the model cannot be copied.
    """
    # What is in the memo is not copied by deepcopy but used: parameters never exist twice in the
    # working precision, and tensors that are tied stay tied.
    memo: dict[int, Any] = {}
    for tensor in [*workload.model.parameters(), *workload.model.buffers()]:
        twin = _raised_input(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            twin = torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = twin
    for module in workload.model.modules():  # a weight norm's weight has a graph of its own
        attributes = (x for x in vars(module).values() if isinstance(x, torch.Tensor))
        memo |= {id(x): x.detach().clone() for x in attributes if not x.is_leaf}
    try:
        model = copy.deepcopy(workload.model, memo)
    except Exception as error:
        raise ProofImpossible(
            f"the float64 truth needs a copy of the model, and copy.deepcopy raised {error!r}"
        ) from error
    copied = _Copies().of((workload.args, dict(workload.kwargs)))
    return dataclasses.replace(workload, model=model, args=copied[0], kwargs=copied[1])


class _Copies:
    """Copies inputs into float64; those that share memory share it as copies, too."""

    def __init__(self) -> None:
        self._tensors: dict[int, torch.Tensor] = {}
        self._memories: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._shared: Counter[int] = Counter()

    def of(self, inputs: Any) -> Any:
        """Copy every tensor of nested inputs."""
        tensors = [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
        different = {id(x): x for x in tensors if x.layout == torch.strided}
        self._shared.update(_memory(x) for x in different.values())
        return pytree.tree_map(self._copied, inputs)

    def _copied(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._tensors:
            self._tensors[id(value)] = self._copy(value)
        return self._tensors[id(value)]

    def _copy(self, value: torch.Tensor) -> torch.Tensor:
        # Memory that is copied whole keeps what a dense copy loses: its other views, and the
        # elements between those of a view with gaps. Leaves never share: each has its gradient.
        plain = value.layout == torch.strided and not value.is_conj() and not value.is_neg()
        if not plain or value.requires_grad or self._shared[_memory(value)] == 1:
            return cast("torch.Tensor", _raised_input(value))
        key = (_memory(value), value.dtype)
        if key not in self._memories:
            flat = torch.empty(0, dtype=value.dtype, device=value.device)
            self._memories[key] = _raised_input(flat.set_(value.untyped_storage()))
        whole = self._memories[key]
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def _memory(value: torch.Tensor) -> int:
    # Its address would say nothing of empty memory.
    return int(value.untyped_storage()._cdata)  # noqa: SLF001


def _reads_bits(source: torch.Tensor, target: torch.dtype) -> bool:
    """Return whether a view of a dtype takes floating-point numbers apart, or makes them."""
    whole = not (source.is_floating_point() or source.is_complex())
    return not whole or target.is_floating_point or target.is_complex


def _raised_input(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    twin = copied(value, RAISED.get(value.dtype, value.dtype))
    return twin.requires_grad_(value.requires_grad)
