"""Operators with a kernel of their own; a file each, named after what it computes.

A kernel's file is read from top to bottom, always in this order:

1. the eager reference: what the operator means, in plain torch, with the formula;
2. the kernel, and its gradient's;
3. launching: how a tensor reaches the kernel (strides, devices, sizes);
4. when: what the kernel can't take (``refusal``), and when it is worth its launch (``pays``);
5. the registration with ``torch.library``: operators, fakes, gradients.

So that it is read first what is right, then how it is made fast, and last how torch is told.

Importing this package imports neither torch nor Triton. A kernel's module imports torch; the
operator in it is registered, and Triton imported, when the operator is first asked for::

    from backbay.kit.kernels.silu import silu

From then on it is ``torch.ops.backbay.silu`` as well. Without Triton, or where a kernel can't take
a tensor, an operator is its reference: slower, never wrong.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backbay.kit.kernels import silu as silu

__all__ = ["silu"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'backbay.kit.kernels' has no attribute {name!r}")
    return importlib.import_module(f"backbay.kit.kernels.{name}")


def __dir__() -> list[str]:
    return __all__
