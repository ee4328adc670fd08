"""Copies of tensors that lie in memory as the original does: strides, offset and gaps included.

``Tensor.clone`` closes gaps, and what was to be shown of a strided input is then shown of another.
"""

import torch

_NEAR = 1 << 16
"""So many elements before and after a tensor are copied with it, or as many as it spans."""


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
