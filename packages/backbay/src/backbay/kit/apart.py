"""Compiles a program in another process: for engines whose compilers enter Dynamo themselves.

``torch.export`` and ``torch._dynamo.reset`` fail, or break what goes on, inside of torch.compile.
In a process of its own nothing is being compiled. It needs psutil: an adapter that compiles so
names it among what it needs.
"""

import functools
import importlib
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch

from backbay.errors import InputError
from backbay.kit.program import Program
from backbay.session import Service, Session

LONGEST_S = 1800.0
"""For one program."""
Lower = Callable[[torch.export.ExportedProgram], bytes]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Compile the program that one file has, and write the result to another."""

    function: str
    """``module:name`` of what compiles."""
    exported: str
    compiled: str


class ApartHandler:
    """Compiles what it is given."""

    requests: ClassVar[Any] = Request

    def answer(self, request: Request) -> None:
        """Compile a program."""
        module, _, name = request.function.partition(":")
        lower: Lower = getattr(importlib.import_module(module), name)
        compiled = lower(torch.export.load(request.exported))
        Path(request.compiled).write_bytes(compiled)


SERVICE = Service[Request, None](f"{__name__}:ApartHandler", {Request: None})
_TURN = threading.Lock()


def compiled_apart(program: Program, lower: Lower) -> bytes:
    """Return what a function makes of `Program.exported` in another process.

    That process is started once, and serves all programs of this one.

    Args:
        program: what to compile.
        lower: a function of a module that can be imported, so that it is found there. It may call
            whatever is not allowed inside of torch.compile.

    Raises:
        InputError: the function can't be found there.
        NoReply: it raised, took longer than `LONGEST_S`, or took its process down.
    """
    function = f"{lower.__module__}:{lower.__qualname__}"
    if lower.__module__ == "__main__" or "." in lower.__qualname__:
        raise InputError(
            f"{function} is not found in another process: define it at the top of a module that "
            "can be imported"
        )
    with tempfile.TemporaryDirectory(prefix="backbay-apart-") as folder, _TURN:
        exported, compiled = Path(folder, "exported.pt2"), Path(folder, "compiled")
        torch.export.save(program.exported, exported)
        request = Request(function=function, exported=str(exported), compiled=str(compiled))
        _session().ask(request, timeout_s=LONGEST_S)
        return compiled.read_bytes()


@functools.cache
def _session() -> Session[Request, None]:
    return SERVICE.session()
