"""A child process that a race can lose: asked with a time limit, ended with all it started."""

import collections
import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from backbay.processes import ProcessTree
from backbay.race.job import Reply, Request
from backbay.race.record import Status

_TAIL_LINES = 8
_END_OF_OUTPUT = None


class ChildLost(Exception):  # noqa: N818 (what happened to the child, not an error of the race)
    """The child is gone; its status tells a hang from a crash."""

    def __init__(self, reason: str, status: Status = "crashed") -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Child:
    """One child process that answers requests in order.

    It runs in a process group of its own. What it prints goes to a log; its last lines become the
    reason when it dies.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._log = tempfile.NamedTemporaryFile(  # noqa: SIM115 (closed with the child)
            prefix="backbay-child-", suffix=".log", delete=False
        )
        self._process = subprocess.Popen(
            # -P: a folder called `triton` or `torch` beside the user must not be imported.
            [sys.executable, "-P", "-m", "backbay.race.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self._tree = ProcessTree(self._process)
        self._replies: queue.Queue[bytes | None] = queue.Queue()
        self._stopped = False
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        """Give the child itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the child and everything that it started."""
        self.end()

    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        """Send a request and wait for its reply.

        Raises:
            ChildLost: the child died, or did not answer in time and was ended.
        """
        stdin = _pipe(self._process.stdin)
        try:
            stdin.write(msgspec.json.encode(request) + b"\n")
            stdin.flush()
            line = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            self.end()
            raise ChildLost(f"no answer within {timeout_s:g} s", "timeout") from None
        except OSError:
            line = _END_OF_OUTPUT
        if line is _END_OF_OUTPUT:
            raise ChildLost(self._post_mortem())
        reply: Reply = msgspec.json.decode(line, type=Reply)
        return reply

    def stop(self) -> None:
        """Take the processor away until `resume`: an idle process disturbs the others."""
        if not self._stopped and hasattr(signal, "SIGSTOP"):
            self._tree.signal(signal.SIGSTOP)
            self._stopped = True

    def resume(self) -> None:
        """Give the processor back."""
        if self._stopped:
            self._tree.signal(signal.SIGCONT)
            self._stopped = False

    def end(self) -> None:
        """Kill the child with all its descendants; also when it is already dead."""
        self._tree.kill()
        self._log.close()
        with contextlib.suppress(OSError):
            _pipe(self._process.stdin).close()
        Path(self._log.name).unlink(missing_ok=True)

    def _read(self) -> None:
        for line in _pipe(self._process.stdout):
            self._replies.put(line)
        self._replies.put(_END_OF_OUTPUT)

    def _post_mortem(self) -> str:
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        with Path(self._log.name).open(encoding="utf-8", errors="replace") as log:
            lines = [line.strip() for line in collections.deque(log, _TAIL_LINES) if line.strip()]
        said = f"; it last printed: {lines[-1]}" if lines else ""
        return f"the process died ({how}){said}"


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # both were opened as pipes
    return stream
