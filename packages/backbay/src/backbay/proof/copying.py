"""Copies of tensors that lie in memory as the original does: strides, offset and gaps included.

``Tensor.clone`` closes gaps, and what was to be shown of a strided input is then shown of another.
"""

from collections.abc import Sequence

import torch

_NEAR = 1 << 16
"""So many elements before and after a tensor are copied with it, or as many as it spans."""

_ALIGNED = 64
"""Bytes: what compiled code may rely on."""


def copied(value: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Copy a tensor, detached, in its own dtype or another, laid out as it is."""
    value = value.detach()
    dtype = dtype or value.dtype
    if not _is_plain(value) or _is_whole(value):
        return value.to(dtype, copy=True)
    offset, first, last = value.storage_offset(), *_copied_part(value)
    memory = torch.zeros(last, dtype=dtype, device=value.device)
    memory[first:].copy_(value.as_strided((last - first,), (1,), first))
    # Not `as_strided`: that would be a view, which a leaf need not be.
    empty = torch.empty(0, dtype=dtype, device=value.device)
    return empty.set_(memory.untyped_storage(), offset, value.shape, value.stride())


def copied_together(values: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Copy those tensors that are partly the same memory, so that their copies are as well.

    Returns:
        The copies, each by the `id` of its original; nothing of what shares no memory.
    """
    distinct = {id(x): x for x in values if _is_plain(x) and x.numel()}.values()
    sharing = [x for x in distinct if any(_overlap(x, y) for y in distinct if y is not x)]
    made: dict[int, torch.Tensor] = {}
    for pointer in {_storage(x) for x in sharing}:
        group = [x for x in sharing if _storage(x) == pointer]
        # Not all of it, which may be a data set; but as aligned as it was.
        first = min(_bytes(x)[0] for x in group) // _ALIGNED * _ALIGNED
        length = max(_bytes(x)[1] for x in group) - first
        device, storage = group[0].device, group[0].untyped_storage()
        part = torch.empty(0, dtype=torch.uint8, device=device).set_(
            storage, first, (length,), (1,)
        )
        memory = part.clone().untyped_storage()
        for value in group:
            offset = value.storage_offset() - first // value.element_size()
            empty = torch.empty(0, dtype=value.dtype, device=device)
            made[id(value)] = empty.set_(memory, offset, value.shape, value.stride())
    return made


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors may have elements in the same memory."""
    if _storage(one) != _storage(other):
        return False
    (begin, end), (first, last) = map(_bytes, (one, other))
    return begin < last and first < end


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _bytes(value: torch.Tensor) -> tuple[int, int]:
    """Return where a tensor's elements begin and end in its storage."""
    pairs = zip(value.shape, value.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs)
    first, size = int(value.storage_offset()), value.element_size()
    return first * size, (first + int(span)) * size


def is_expanded(value: torch.Tensor) -> bool:
    """Whether some elements are the same memory, so that nothing can be written into it."""
    return value.layout == torch.strided and any(
        stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)
    )


def _is_plain(value: torch.Tensor) -> bool:
    """Return whether a tensor's elements are what stands in its memory."""
    if type(value) is not torch.Tensor or value.layout != torch.strided:
        return False
    return not (value.is_conj() or value.is_neg() or value.is_quantized or value.is_mkldnn)


def _is_whole(value: torch.Tensor) -> bool:
    """Return whether `clone` lays it out alike."""
    dense: bool = torch.ops.aten.is_non_overlapping_and_dense(value)
    return not value.numel() or (dense and value.storage_offset() == 0)


def _copied_part(value: torch.Tensor) -> tuple[int, int]:
    """Return from where to where memory is copied: an operator may read what is near, too.

    ``as_strided`` does. But a batch that is a slice of a data set must not bring it all along.
    """
    pairs = zip(value.shape, value.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs)
    first, last = int(value.storage_offset()), int(value.storage_offset() + span)
    end = value.untyped_storage().nbytes() // value.element_size()
    near = max(span, _NEAR)
    return (0 if first <= near else first), (end if end - last <= near else last)
