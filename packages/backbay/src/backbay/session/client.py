"""The clients that carry requests to a handler: in a child process, or in this one."""

import abc
import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import psutil

from backbay.session.protocol import (
    Failure,
    Handler,
    Lost,
    Refusal,
    Refused,
    decode,
    encode,
    replied,
)

if TYPE_CHECKING:
    from backbay.session.session import Service

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_WORKER = "backbay.session.worker"
_TAIL_BYTES = 1 << 16
_FATAL = "Fatal Python error: "
_THREAD = "Current thread "
"""What faulthandler begins with, and begins the stack with, whose lines follow, innermost first."""
_END_OF_OUTPUT = b""
_POLL_S = 0.05
_GRACE_S = 10.0


class Client(abc.ABC, Generic[Request, Reply]):
    """Carries requests to one handler."""

    @abc.abstractmethod
    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        """Return the reply to a request.

        Raises:
            Lost: the process died, or did not answer in time and was ended.
            Refused: the handler raised.
        """

    def stop(self) -> None:
        """Pause the process until `resume`: an idle process disturbs the others."""

    def resume(self) -> None:
        """Let the process go on."""

    @abc.abstractmethod
    def end(self) -> None:
        """End the process, and all that it started."""


class ProcessClient(Client[Request, Reply]):
    """Asks a child process, the leader of a process group of its own.

    What the child prints goes to a log, whose end becomes the reason when it dies.
    """

    def __init__(
        self,
        service: "Service[Request, Reply]",
        environment: Mapping[str, str],
        *,
        path: Sequence[str] | None = None,
        most_printed: int | None = None,
    ) -> None:
        """Start it.

        Args:
            service: whose handler it has.
            environment: variables that it gets beside this process's own.
            path: folders that it imports from, after all others; default: the current one.
            most_printed: bytes; a child that prints more is ended.

        Raises:
            Lost: no process could be started.
        """
        self._decoder = msgspec.json.Decoder(service.replies | Refusal)
        self._most_printed = most_printed
        self._log = tempfile.NamedTemporaryFile(  # noqa: SIM115 (closed with the child)
            prefix="backbay-session-", suffix=".log", delete=False
        )
        folders = os.pathsep.join([str(Path.cwd())] if path is None else path)
        # -P: a folder called `triton` or `torch` beside the user must not be imported.
        # -u: what is printed just before a crash is what explains it.
        command = [sys.executable, "-P", "-u", "-m", _WORKER, service.handler, folders]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except OSError as error:
            self._forget_log()
            raise Lost(f"no process could be started: {error}", "failed") from error
        # Made now: later the number may be another process's.
        self._root = psutil.Process(self._process.pid)
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._stopped = False
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        """Return the reply to a request; see `Client`."""
        deadline = time.monotonic() + timeout_s
        try:
            with contextlib.suppress(BrokenPipeError):  # it is dead: there is no line either
                self._stdin.write(encode(request))
                self._stdin.flush()
            message = decode(self._line(deadline), self._decoder)
        except TimeoutError:
            raise self._ended(f"no answer within {timeout_s:g} s", "timeout") from None
        except EOFError:
            raise self._post_mortem(deadline) from None
        except msgspec.MsgspecError as error:
            raise self._ended(f"its answer can't be read: {error}", "crashed") from error
        reply: Reply = _unless_refused(message)
        return reply

    def stop(self) -> None:
        """Pause the process until `resume`: an idle process disturbs the others."""
        if not self._stopped and hasattr(signal, "SIGSTOP"):
            self._signal(signal.SIGSTOP)
            self._stopped = True

    def resume(self) -> None:
        """Let the process go on."""
        if self._stopped:
            self._signal(signal.SIGCONT)
            self._stopped = False

    def end(self) -> None:
        """Kill the child and its descendants, those that left its process group included.

        Also when the child is already dead: its group may live on.
        """
        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            descendants = self._root.children(recursive=True)
        self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        for descendant in descendants:
            with contextlib.suppress(psutil.Error):
                descendant.kill()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # who waits for a driver can't die
            self._process.wait(_GRACE_S)
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._forget_log()

    def printed(self) -> str:
        """Return the end of what the child has printed."""
        with contextlib.suppress(OSError), Path(self._log.name).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return log.read(_TAIL_BYTES).decode(errors="replace")
        return ""  # the child may have emptied the folder for temporary files

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(_END_OF_OUTPUT)

    def _line(self, deadline: float) -> bytes:
        """Return the next line of output.

        Raises:
            TimeoutError: there is none in time.
            Lost: it printed too much, and was ended.
        """
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                watched = self._most_printed is not None
                return self._lines.get(timeout=min(left, _POLL_S) if watched else left)
            if watched and os.fstat(self._log.fileno()).st_size > (self._most_printed or 0):
                raise self._ended("it printed too much", "failed", too_much_printed=True)
        raise TimeoutError

    def _post_mortem(self, deadline: float) -> Lost:
        """Return how the child died; one that closed its output may live on, until its time is up.

        Its descendants are left to `end`.
        """
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return self._ended("it closed its output and did not end", "timeout")
        how = f"exit code {code}" if code >= 0 else signal_name(-code)
        printed = self.printed()
        reason = f"the process died ({how}){_last_words(printed)}"
        return Lost(reason, "crashed", exit_code=code, printed=printed)

    def _ended(self, reason: str, status: Failure, *, too_much_printed: bool = False) -> Lost:
        printed = self.printed()
        self.end()
        return Lost(reason, status, printed=printed, too_much_printed=too_much_printed)

    def _signal(self, number: int) -> None:
        """Send a signal to the process group, where there are groups."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _forget_log(self) -> None:
        self._log.close()
        Path(self._log.name).unlink(missing_ok=True)


class LocalClient(Client[Request, Reply]):
    """Asks a handler in this process, through the same messages; isolates nothing.

    There is no time limit: a thread of this process can't be ended.
    """

    def __init__(
        self,
        service: "Service[Request, Reply]",
        handler: Handler[Request, Reply],
        environment: Mapping[str, str],
    ) -> None:
        self._handler = handler
        self._requests = msgspec.json.Decoder(handler.requests)
        self._replies = msgspec.json.Decoder(service.replies | Refusal)
        self._before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)

    def ask(self, request: Request, *, timeout_s: float) -> Reply:  # noqa: ARG002 (see above)
        """Return the reply to a request; see `Client`."""
        message = replied(self._handler, decode(encode(request), self._requests))
        reply: Reply = _unless_refused(decode(encode(message), self._replies))
        return reply

    def end(self) -> None:
        """Put the environment back; the handler outlives its clients."""
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        self._before = {}


def _unless_refused(message: Any) -> Any:
    if isinstance(message, Refusal):
        raise Refused(message.reason, input_error=message.input_error, detail=message.detail)
    return message


def _last_words(printed: str) -> str:
    """Word what a dead process left in its log: where it was, or else its last line."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    fatal = next((x for x in lines if x.startswith(_FATAL)), None)
    if fatal is None:
        return f"; it last printed: {lines[-1]}" if lines else ""
    began = next((i for i, x in enumerate(lines) if x.startswith(_THREAD)), lines.index(fatal))
    where = next((x for x in lines[began:] if x.startswith("File ")), None)
    what = fatal.removeprefix(_FATAL)
    return f": {what}" if where is None else f": {what}, in {where.removeprefix('File ')}"


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
