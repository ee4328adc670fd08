"""Receives a child's replies: frames of a nonce that the child was told, a length and the bytes.

Whatever runs in the child may write to any descriptor. What is not such a frame is never believed,
and never kept: at most one reply is.
"""

import contextlib
import queue
import threading
import time
from typing import IO

NONCE_BYTES = 32
"""Of a nonce in hexadecimal, as it travels."""
_LENGTH_BYTES = 8
_MOST_BYTES = 1 << 28
"""That a reply may have."""
_CHUNK_BYTES = 1 << 16
_MOST_CHUNKS = 4
_END = b""


class NotAFrameError(Exception):
    """Something else than the frame that is waited for was on the channel."""


def framed(reply: bytes, nonce: bytes) -> bytes:
    """Return a reply as it travels."""
    return nonce + len(reply).to_bytes(_LENGTH_BYTES, "big") + reply


def unframed(received: bytearray, nonce: bytes) -> bytes | None:
    """Return the reply in what was received, or None while some of it is to come.

    Raises:
        NotAFrameError: it has another nonce, is too long, or something follows it.
    """
    begin = len(nonce) + _LENGTH_BYTES
    if not received.startswith(nonce[: len(received)]):
        raise NotAFrameError
    if len(received) < begin:
        return None
    length = int.from_bytes(received[len(nonce) : begin], "big")
    if length > _MOST_BYTES or len(received) > begin + length:
        raise NotAFrameError
    return bytes(received[begin:]) if len(received) == begin + length else None


class Channel:
    """The end of a pipe that replies come from; a thread reads it, which works everywhere."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._chunks: queue.Queue[bytes] = queue.Queue(_MOST_CHUNKS)  # a flood waits in the pipe
        self._received = bytearray()
        self._closed = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def receive(self, nonce: bytes, *, timeout_s: float) -> bytes:
        """Return the reply that has this nonce.

        Raises:
            TimeoutError: it is not there in time; it can be waited for again.
            EOFError: the sender closed the channel, or ended, before it wrote all of it.
            NotAFrameError: something else is there.
        """
        deadline = time.monotonic() + timeout_s
        while (reply := unframed(self._received, nonce)) is None:
            try:
                chunk = self._chunks.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if chunk is _END:
                raise EOFError
            self._received += chunk
        self._received.clear()
        return reply

    def close(self) -> None:
        """Let go of what was not received; the sender is gone, which who still waits is told."""
        self._closed.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._chunks.get_nowait()
        # The end may have been among what was let go, before the thread that waits for it woke up.
        with contextlib.suppress(queue.Full):
            self._chunks.put_nowait(_END)

    def _read(self) -> None:
        with self._pipe:
            while not self._closed.is_set() and (chunk := self._chunk()):
                self._chunks.put(chunk)
        self._chunks.put(_END)

    def _chunk(self) -> bytes:
        try:
            return self._pipe.read1(_CHUNK_BYTES)  # type: ignore[attr-defined,no-any-return]
        except (OSError, ValueError):
            return _END
