"""Makes what a backend gives fit for torch's minifier, while that is at work.

After Dynamo, the minifier calls what a backend gives, and reads its parameters as a module's; and
it hands all arguments as one list to what says that it is boxed, as AOTAutograd's does and is not.
From torch 2.11 to 2.15 it so takes every graph for broken that torch's own ``eager``, ``aot_eager``
and ``inductor`` compile. A module suits it. That costs a call, so it is not made otherwise.
"""

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from backbay.kit.codegen import Compiled

_MINIFIER = "torch._dynamo.repro.after_dynamo"
_BACKENDS = ("dynamo_minifier_backend", "dynamo_accuracy_minifier_backend")


class _Module(torch.nn.Module):
    """Compiled code, as a module without parameters: Dynamo made them inputs."""

    def __init__(self, compiled: "Compiled") -> None:
        super().__init__()
        self._compiled = (compiled,)  # in a tuple: a module in here has no say

    def forward(self, *arguments: Any) -> Any:
        return self._compiled[0](*arguments)


def minifiable(compiled: "Compiled") -> "Compiled":
    """Give compiled code as a module if torch's minifier called for it; else as it is."""
    from torch._dynamo import config  # noqa: PLC0415 (imports Dynamo)

    if config.repro_after != "dynamo" and not _minifying(sys._getframe(1)):  # noqa: SLF001
        return compiled
    return _Module(compiled)


def _minifying(frame: FrameType | None) -> bool:
    """Tell whether a backend of the minifier's is calling; the script that it runs in says not."""
    while frame is not None:
        if frame.f_code.co_name in _BACKENDS and frame.f_globals.get("__name__") == _MINIFIER:
            return True
        frame = frame.f_back
    return False
