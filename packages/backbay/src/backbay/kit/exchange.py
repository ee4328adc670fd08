"""Tensors to and from what other runtimes hold, without copies where there can be none."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import torch


def shared_array(tensor: torch.Tensor) -> Any:
    """Return a NumPy array of a CPU tensor's own memory, whether or not gradients are recorded.

    NumPy has no bfloat16: its bits are an array of ``uint16``.
    """
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def aligned(tensor: torch.Tensor, multiple: int = 64) -> torch.Tensor:
    """Return a tensor that is contiguous and begins at a multiple of so many bytes.

    It is the tensor itself, where that holds. Torch's own memory begins so, a part of it need not;
    some runtimes want it of all that they take through DLPack.
    """
    tensor = tensor.detach().contiguous()
    return tensor.clone() if tensor.data_ptr() % multiple else tensor


def as_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return what an engine gave as a tensor of the same memory.

    Args:
        value: a tensor, an array of NumPy's, or anything that speaks DLPack.
        dtype: what it should be; ``uint16`` is read as the bits of bfloat16.

    Raises:
        TypeError: it is of another dtype.
    """
    tensor = value if isinstance(value, torch.Tensor) else _from_elsewhere(value)
    if tensor.dtype == dtype:
        return tensor
    if tensor.dtype == torch.uint16 and dtype == torch.bfloat16:
        return tensor.view(dtype)
    raise TypeError(f"the engine gave {tensor.dtype} where the graph has {dtype}")


def _from_elsewhere(value: Any) -> torch.Tensor:
    if not hasattr(value, "__array_interface__"):
        tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(value)
        return tensor
    # An array that can't be written to would be shared with a warning, and may be the engine's own.
    return torch.from_numpy(value if value.flags.writeable else value.copy())


def laid_out(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a tensor with given strides: itself where it has them, else a copy."""
    if tuple(tensor.stride()) == tuple(strides):
        return tensor
    expanded = [d for d, x in enumerate(strides) if x == 0 and tensor.shape[d] > 1]
    base = tensor
    for dim in expanded:
        base = base.narrow(dim, 0, 1)
    made = torch.empty_strided(base.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(base).expand(tensor.shape)


def overlapping(given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> set[int]:
    """Return the numbers of results that lie where an input does, or a result before them."""
    taken: list[tuple[int, int]] = []
    for first, end in sorted(map(_extent, given)):
        if taken and first < taken[-1][1]:
            taken[-1] = taken[-1][0], max(end, taken[-1][1])
        else:
            taken.append((first, end))
    found = set()
    for number, (first, end) in enumerate(map(_extent, made)):
        place = bisect_left(taken, (end,))
        if place and first < taken[place - 1][1]:
            found.add(number)
        else:
            taken.insert(place, (first, end))
    return found


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte, and of that behind its last."""
    first = tensor.data_ptr()
    if tensor.is_contiguous():
        return first, first + tensor.nbytes
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size()
