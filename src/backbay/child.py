"""A child process that may be lost: asked with a time limit, ended with all that it started."""

import collections
import contextlib
import faulthandler
import gc
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Generic, Literal, Self, TypeVar

import msgspec

from backbay.processes import ProcessTree

Request = TypeVar("Request")
Reply = TypeVar("Reply")

Loss = Literal["crashed", "timeout", "failed"]
"""How a child was lost: it died, did not answer in time, or could not do its work at all."""

_TAIL_LINES = 400
_FATAL = "Fatal Python error: "
_THREAD = "Current thread "
"""What faulthandler begins with, and begins the stack with, whose lines follow, innermost first."""
_END_OF_OUTPUT = None


class ChildLost(Exception):  # noqa: N818 (what happened to the child, not an error of the race)
    """The child is gone; its status tells a hang from a crash."""

    def __init__(self, reason: str, status: Loss = "crashed") -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Child(Generic[Request, Reply]):
    """One child process that answers requests in order, one JSON object a line each way.

    It runs in a process group of its own. What it prints goes to a log; its last lines become the
    reason when it dies.
    """

    def __init__(
        self, module: str, replies: type[Reply] | Any, environment: Mapping[str, str]
    ) -> None:
        """Start it.

        Args:
            module: what is run, as ``python -m`` takes it; it calls `answer_requests`.
            replies: the type of its replies, as msgspec decodes it; may be a union.
            environment: variables that it gets beside this process's own.
        """
        self._decoder = msgspec.json.Decoder(replies)
        self._log = tempfile.NamedTemporaryFile(  # noqa: SIM115 (closed with the child)
            prefix="backbay-child-", suffix=".log", delete=False
        )
        self._process = subprocess.Popen(
            # -P: a folder called `triton` or `torch` beside the user must not be imported.
            [sys.executable, "-P", "-m", module],
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
        reply: Reply = self._decoder.decode(line)
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
        return f"the process died ({how}){_said(lines)}"


def _said(lines: list[str]) -> str:
    """Word what a dead process left in its log: where it was, or else its last line."""
    fatal = next((x for x in lines if x.startswith(_FATAL)), None)
    if fatal is None:
        return f"; it last printed: {lines[-1]}" if lines else ""
    began = next((i for i, x in enumerate(lines) if x.startswith(_THREAD)), lines.index(fatal))
    where = next((x for x in lines[began:] if x.startswith("File ")), None)
    what = fatal.removeprefix(_FATAL)
    return f": {what}" if where is None else f": {what}, in {where.removeprefix('File ')}"


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # both were opened as pipes
    return stream


def answer_requests(
    requests: type[Request] | Any, prepare: Callable[[], Callable[[Request], Reply]]
) -> None:
    """Be the child: answer requests from standard input until it is closed.

    Replies go to the standard output that the process was born with; what any library or model
    prints goes to standard error, so that it can't be taken for a reply.

    Args:
        requests: the type of the requests, as msgspec decodes it; may be a union.
        prepare: called once what is printed is out of the way; gives what answers a request.
    """
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.enable()  # the stack of a segmentation fault ends up in the log
    sys.path.append(str(Path.cwd()))  # last, so that nothing there hides an installed package
    answer, decoder = _prepared(prepare), msgspec.json.Decoder(requests)
    for line in sys.stdin.buffer:
        replies.write(msgspec.json.encode(answer(decoder.decode(line))) + b"\n")
        replies.flush()


def _prepared(prepare: Callable[[], Callable[[Request], Reply]]) -> Callable[[Request], Reply]:
    gc.disable()  # to import torch makes objects that stay: looking at them takes a fifth of it
    try:
        return prepare()
    finally:
        gc.enable()
