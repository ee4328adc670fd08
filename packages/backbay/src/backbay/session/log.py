"""The end of what a child prints: bounded in bytes, and in bytes a line.

It is read from a pipe all the time and kept here, so that a child that prints without end fills
neither a disk nor memory.
"""

import threading
from typing import IO

_TAIL_BYTES = 1 << 16
_LINE_BYTES = 1 << 12
"""Of a longer line the rest is dropped: it must not push out what explains a crash."""
_CHUNK_BYTES = 1 << 16


class Log:
    """What came from a pipe, read by a thread."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._kept = bytearray()
        self._in_line = 0
        self.printed_bytes = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self, *, patience_s: float) -> str:
        """Return what is kept, after the pipe has come to its end or patience has."""
        self._thread.join(patience_s)
        return bytes(self._kept[-_TAIL_BYTES:]).decode(errors="replace")

    def _read(self) -> None:
        with self._pipe:
            while chunk := self._pipe.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
                self.printed_bytes += len(chunk)
                self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        first, *others = chunk.split(b"\n")
        self._kept += first[: max(0, _LINE_BYTES - self._in_line)]
        self._in_line += len(first)
        for line in others:
            self._kept += b"\n" + line[:_LINE_BYTES]
            self._in_line = len(line)
        if len(self._kept) > 2 * _TAIL_BYTES:
            del self._kept[:-_TAIL_BYTES]
