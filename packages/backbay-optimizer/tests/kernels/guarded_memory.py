"""Triton's interpreter, with each access held to the tensors that a kernel was given.

It reads and writes whatever addresses a kernel computes; beside a tensor that seldom shows. This is
what compute-sanitizer finds on a GPU, and also what lies in another part of the same memory.
"""

from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from triton.runtime import interpreter

INTERPRETER: Any = interpreter
BUILDER: Any = interpreter.InterpreterBuilder
EXECUTOR: Any = interpreter.GridExecutor


def guard() -> None:
    """Have kernels end that leave their tensors, from now on and for good."""
    spans: dict[int, tuple[int, int]] = {}
    patched: set[str] = set()
    begin, patch = EXECUTOR._init_args_hst, INTERPRETER._patch_lang

    def begins(self: Any, *given: Any) -> Any:
        spans.clear()
        patched.clear()
        given = begin(self, *given)
        for tensor in pytree.tree_leaves(given):
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                memory, (start, end) = tensor.untyped_storage().data_ptr(), _span(tensor)
                others = spans.get(memory, (start, end))
                spans[memory] = min(start, others[0]), max(end, others[1])
        return given

    # Triton does it for each call of a device function, too, though the launch has: for 1 ms.
    def patch_once(function: Any) -> Any:
        module = function.__globals__["__name__"]
        if module in patched:
            return INTERPRETER._LangPatchScope()
        patched.add(module)
        return patch(function)

    def check(pointers: Any, mask: Any) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        inside = mask.data.astype(bool)  # a mask that is computed may be of integers
        at = np.broadcast_to(pointers.data, inside.shape)[inside].astype(np.int64)
        known = np.array(sorted(spans.values()), dtype=np.int64).reshape(-1, 2)
        if not at.size:
            return
        place = np.searchsorted(known[:, 0], at, side="right") - 1
        outside = (place < 0) | (at + size > known[place, 1])
        assert not outside.any(), (
            f"{outside.sum()} of {at.size} accesses are outside of all tensors"
        )

    def checked(name: str, position: int) -> None:
        real = getattr(BUILDER, name)

        def access(self: Any, *given: Any) -> Any:
            check(given[position], given[_MASKS[name]])
            return real(self, *given)

        setattr(BUILDER, name, access)

    EXECUTOR._init_args_hst = begins
    INTERPRETER._patch_lang = patch_once
    checked("create_masked_load", 0)
    checked("create_masked_store", 0)
    checked("create_atomic_rmw", 1)


_MASKS = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3}


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()
