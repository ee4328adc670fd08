"""What a Triton kernel writes is found once, not at every call of it that is compiled.

Torch compiles a kernel to Triton's own code and follows its pointers, when it makes a graph
functional and twice more in Inductor, forward and backward. The answer depends on the kernel, its
constants and the dtypes of its tensors, so layers that are alike have the same one
(``docs/upstream.md``).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensor

from backbay_optimizer.inductor.patches import Patch

_NAMES = ("identify_accessed_tensors", "identify_mutated_tensors")
"""Torch's analysis in 2.13, and in 2.11."""
_CONSTANTS = (bool, int, float, str, type(None))


_found: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""What torch found, by kernel and arguments. A backward is compiled when it first runs, after the
graph that has its kernels' answers."""


def forget() -> None:
    """Have each kernel looked at again, as in a new process."""
    _found.clear()


@contextlib.contextmanager
def analyses_kept() -> Iterator[None]:
    """Keep what torch finds out of Triton kernels until this ends, and use what was kept before."""
    from torch._higher_order_ops import triton_kernel_wrap  # noqa: PLC0415 (as late as Inductor)

    name = next((x for x in _NAMES if hasattr(triton_kernel_wrap, x)), None)
    if name is None:
        yield
        return
    with _patch.held(triton_kernel_wrap, name):
        yield


class _Kept:
    def __init__(self, analyse: Callable[..., Any]) -> None:
        self._analyse = analyse

    def __call__(
        self, kernel: Any, kwargs: dict[str, Any], tma_descriptor_metadata: Mapping[str, Any]
    ) -> Any:
        known = None if tma_descriptor_metadata else _key(kernel, kwargs)
        if known is None:
            return self._analyse(kernel, kwargs, tma_descriptor_metadata)
        function, kinds = known
        answers = _found.setdefault(function, {})
        if kinds not in answers:
            answers[kinds] = self._analyse(kernel, kwargs, tma_descriptor_metadata)
        found = answers[kinds]
        return list(found) if isinstance(found, list) else found  # 2.11's is the caller's


_patch = Patch(_Kept)


def _key(kernel: Any, arguments: Mapping[str, Any]) -> tuple[Any, frozenset[Any]] | None:
    """Return what an answer depends on, as torch takes it; None if that is not known."""
    from triton.runtime.autotuner import Autotuner  # noqa: PLC0415 (there is a kernel: it is here)

    if isinstance(kernel, Autotuner):
        if kernel.configs:
            arguments = {**arguments, **kernel.configs[0].kwargs}
        kernel = kernel.fn
    kinds = {name: _kind(x) for name, x in arguments.items()}
    return None if None in kinds.values() else (kernel, frozenset(kinds.items()))


def _kind(argument: Any) -> tuple[str, str] | None:
    import sympy  # type: ignore[import-untyped] # noqa: PLC0415 (as late as Inductor)
    from torch._inductor.ir import TensorBox  # noqa: PLC0415 (likewise)
    from triton.language import dtype  # noqa: PLC0415 (there is a kernel: it is here)

    if isinstance(argument, (FakeTensor, TensorBox)):
        return "tensor", str(argument.dtype)
    if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool, sympy.Expr)):
        return "symbol", ""  # torch takes 2 for all of them
    if type(argument) in _CONSTANTS or isinstance(argument, dtype):
        return type(argument).__name__, repr(argument)
    return None
