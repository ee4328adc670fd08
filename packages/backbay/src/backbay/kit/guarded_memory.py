"""Triton's interpreter, with each access of a kernel held to the tensors that it was given.

The interpreter reads and writes whatever addresses a kernel computes, and an access beside a tensor
seldom shows in a result. Here it ends the kernel, as it does under compute-sanitizer on a GPU; so
does one that reaches another part of the process's memory, which compute-sanitizer may miss.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from backbay.errors import InputError

_ACCESSES = {
    "create_masked_load": ("reads", 0, 1),
    "create_masked_store": ("writes", 0, 2),
    "create_atomic_rmw": ("updates", 1, 3),
    "create_atomic_cas": ("updates", 0, None),
}
"""What the interpreter's builder calls: a verb, and which arguments are the pointers and the mask.
Every other load and store, also through descriptors, comes to one of these."""


@functools.cache
def guard_memory() -> None:
    """Have Triton's interpreter end a kernel that reads or writes beside the tensors of its launch.

    Call it first in a process that was started with ``TRITON_INTERPRET=1``; it holds until that
    process ends. A test of kernels starts such a process::

        from backbay.kit.guarded_memory import guard_memory

        guard_memory()
        y = kernel.launch(kernel.forward_kernel, torch.randn(1023))

    Such a launch raises Triton's ``InterpreterError``, whose cause is an ``IndexError`` that has
    the kernel's name. Tensors that share a storage count as one: from the first element of any to
    the last.

    Raises:
        InputError: the process was started without ``TRITON_INTERPRET=1``, or this version of
            Triton has another interpreter.
        ImportError: Triton is not installed.
    """
    triton: Any = importlib.import_module("triton")
    if not triton.knobs.runtime.interpret:
        raise InputError(
            "guard_memory guards what Triton's interpreter runs: start the process with "
            "TRITON_INTERPRET=1"
        )
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    builder, guarded = interpreter.InterpreterBuilder, _Guarded()
    try:
        for name, place in _ACCESSES.items():
            _wrap(builder, name, functools.partial(guarded.checked, *place))
        _wrap(interpreter.GridExecutor, "_init_args_hst", guarded.begun)
        nothing = interpreter._LangPatchScope  # noqa: SLF001 (Triton has no hook for it)
        _wrap(interpreter, "_patch_lang", functools.partial(guarded.patched_once, nothing))
    except AttributeError as error:
        raise InputError(
            f"guard_memory knows the interpreters of Triton 3.6 and 3.7, and this is Triton "
            f"{triton.__version__} ({error}): test the kernels with one of those"
        ) from error


def _wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    setattr(owner, name, wrapper(getattr(owner, name)))


class _Guarded:
    """The kernel that runs, and its memory; with what takes the place of Triton's functions."""

    def __init__(self) -> None:
        self.kernel = ""
        self.modules = set[str]()
        """Those whose names are the interpreter's in this launch."""
        self.starts, self.ends = np.zeros((2, 0), dtype=np.int64)
        """Of each piece of memory, in order."""

    def begun(self, real: Any) -> Any:
        """Return the function that a launch begins with: it notes what memory the kernel has."""

        def begin(executor: Any, *given: Any) -> Any:
            arguments = real(executor, *given)  # copies, where tensors are on a GPU
            spans: dict[int, tuple[int, int]] = {}
            for tensor in map(_tensor_of, pytree.tree_leaves(arguments)):
                if isinstance(tensor, torch.Tensor) and tensor.numel():
                    memory, (start, end) = tensor.untyped_storage().data_ptr(), _span(tensor)
                    others = spans.get(memory, (start, end))
                    spans[memory] = min(start, others[0]), max(end, others[1])
            starts, ends = np.array(sorted(spans.values()), np.int64).reshape(-1, 2).T
            self.starts, self.ends = starts, np.maximum.accumulate(ends)  # memories may overlap
            self.kernel = executor.fn.__name__
            self.modules.clear()
            return arguments

        return begin

    def patched_once(self, nothing: Any, real: Any) -> Any:
        """Return the function that replaces a module's names: once a launch.

        Triton does it at each call of a device function, too, for 1 ms.
        """

        def patch(function: Any) -> Any:
            module = function.__globals__["__name__"]
            if module in self.modules:
                return nothing()
            self.modules.add(module)
            return real(function)

        return patch

    def checked(self, verb: str, pointers: int, mask: int | None, real: Any) -> Any:
        """Return the function that makes an access, which it checks first."""

        def access(builder: Any, *given: Any, **named: Any) -> Any:
            self.check(verb, given[pointers], None if mask is None else given[mask])
            return real(builder, *given, **named)

        return access

    def check(self, verb: str, pointers: Any, mask: Any) -> None:
        """Check that each element which is not masked is in one piece of memory."""
        at = np.asarray(pointers.data, np.int64)
        if mask is not None:
            inside = np.asarray(mask.data, bool)  # a mask that is computed may be of integers
            at = np.broadcast_to(at, inside.shape)[inside]
        size = pointers.get_element_ty().primitive_bitwidth // 8
        place = np.searchsorted(self.starts, at, side="right")
        ends = np.concatenate([[0], self.ends])[place]  # before the first piece nothing may be
        outside = np.count_nonzero(at + size > ends)
        if outside:
            raise IndexError(
                f"{self.kernel} {verb} {outside} of {at.size} elements outside of all tensors "
                "that it was given: mask them, or mend their offsets"
            )


def _tensor_of(argument: Any) -> Any:
    """Return what a descriptor, or a tensor that Triton reads in another dtype, is made of."""
    while not isinstance(argument, torch.Tensor) and hasattr(argument, "base"):
        argument = argument.base
    return argument


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()
