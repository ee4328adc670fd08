"""Hashes of tensors, fast where the tensor is: no copy to the CPU, no pass in Python."""

import hashlib
import itertools
from collections.abc import Iterator

import torch

from backbay.errors import ProofImpossible
from backbay.proof.tree import leaves
from backbay.workloads.workload import Workload

_CHUNK = 1 << 22
"""Words of eight bytes hashed at a time: bounds the memory that hashing takes to about 100 MB."""
_ODD = 0x1E3779B97F4A7C15
"""A large odd number; its multiples modulo 2^64 are spread evenly (Knuth, TAOCP 6.4)."""


def digest(workload: Workload) -> str:
    """Hash what a workload computes from: parameters, buffers and inputs, and their names.

    Two processes that built the same workload on the same kind of device get the same digest.

    Raises:
        ProofImpossible: one is a nested tensor, which has no strides that bytes could be read by.
    """
    whole = hashlib.sha256(str(workload.model).encode())
    parts = itertools.chain(
        workload.model.named_parameters(),
        workload.model.named_buffers(),
        leaves(workload.args, "args"),
        leaves(dict(workload.kwargs), "kwargs"),
    )
    for name, value in parts:
        if isinstance(value, torch.Tensor) and value.is_nested:
            raise ProofImpossible(
                f"{name} is a nested tensor, which can't be written down: give the model its "
                "values and offsets, and have it made there"
            )
        whole.update(f"{name}={_described(value)};".encode())
    return whole.hexdigest()


def fingerprint(tensor: torch.Tensor) -> int:
    """Hash the bytes of a tensor to 64 bits; which element is where counts.

    A sum of words, each times an odd number that depends on its position, modulo 2^64: it can be
    summed in any order, and one changed word always changes it.
    """
    total = 0
    for start, words in _words(tensor.detach()):
        position = torch.arange(start, start + words.numel(), device=words.device)
        total += int((words * (position * _ODD * 2 + 1)).sum())
    return total % 2**64


def _words(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    if not tensor.numel():
        return
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    flat = tensor.resolve_conj().resolve_neg().contiguous().flatten()
    if flat.stride(0) != 1:  # of one element, any stride is contiguous; a view of bytes needs 1
        flat = flat.clone(memory_format=torch.contiguous_format)
    data = flat.view(torch.uint8)
    whole = data.numel() // 8 * 8
    words = data[:whole].view(torch.int64) if data.storage_offset() % 8 == 0 else None
    if words is None:
        words = data[:whole].clone().view(torch.int64)
    for start in range(0, words.numel(), _CHUNK):
        yield start, words[start : start + _CHUNK]
    if whole < data.numel():
        yield words.numel(), data[whole:].to(torch.int64)


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{fingerprint(value):016x}"
    # An object's repr may hold its address, which no other process shares.
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text
