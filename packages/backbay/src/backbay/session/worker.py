"""The child process of every session: ``python -P -u -m backbay.session.worker MODULE:HANDLER``.

What the handler is made of may print when it is imported, and so may what it runs. Requests come
from the standard input, and replies go to the standard output, that the process was born with.
Whoever reads from standard input here finds nothing, and all that is printed goes to standard
error.
"""

import faulthandler
import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from backbay.errors import keep_silent
from backbay.session.channel import framed
from backbay.session.protocol import Handler, replied


def main(handler: str, path: str) -> None:
    """Answer requests until standard input is closed.

    Args:
        handler: ``module:attribute``, which returns the handler when it is called.
        path: folders to import from, after all that Python has by itself.
    """
    if sys.platform == "linux":
        from backbay.session.supervisor import supervise  # noqa: PLC0415 (there is none elsewhere)

        supervise()
    requests, pipe = os.fdopen(os.dup(0), "rb"), os.dup(1)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    keep_silent()
    faulthandler.enable()  # the stack of a segmentation fault ends up in the log
    # Last, so that nothing there hides an installed package.
    sys.path.extend(x for x in path.split(os.pathsep) if x not in sys.path)
    identity = os.fstat(pipe).st_ino
    handles = _made(handler)
    decoder = msgspec.json.Decoder(handles.requests)
    for line in requests:
        nonce, _, request = line.partition(b" ")
        reply = msgspec.json.encode(replied(handles, decoder.decode(request)))
        _write(framed(reply, nonce), pipe, identity)


def _made(name: str) -> Handler[Any, Any]:
    module, _, attribute = name.partition(":")
    gc.disable()  # to import torch makes objects that stay: looking at them takes a fifth of it
    try:
        made: Handler[Any, Any] = getattr(importlib.import_module(module), attribute)()
        return made
    finally:
        gc.enable()


def _write(reply: bytes, pipe: int, identity: int) -> None:
    """Write a reply, or leave: a handler may have closed the pipe, or another file has its number.

    The process then ends at once: who asks waits for either.
    """
    try:
        if os.fstat(pipe).st_ino != identity:
            os._exit(1)
        while reply:
            reply = reply[os.write(pipe, reply) :]
    except OSError:
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
