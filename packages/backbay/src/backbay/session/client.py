"""The clients that carry requests to a handler: in a child process, or in this one."""

import abc
import contextlib
import functools
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import psutil

from backbay.causes import one_line
from backbay.session.channel import NONCE_BYTES, Channel, NotAFrameError
from backbay.session.environment import changed_environment
from backbay.session.log import Log
from backbay.session.protocol import Failure, Handler, Lost, Refusal, Refused, replied, replies

if TYPE_CHECKING:
    from backbay.session.session import Service

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_WORKER = "backbay.session.worker"
_FATAL = "Fatal Python error: "
_THREAD = "Current thread "
"""What faulthandler begins with, and begins the stack with, whose lines follow, innermost first."""
_WATCH_S = 0.05
_GRACE_S = 10.0
_LOG_S = 1.0
"""For the end of a log, once its writer is dead."""
_LONGEST = 400
"""Characters of a dead process's last words: a row of a table, not a log."""
_FORGED = "it wrote to Backbay's channel"


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
    """Asks a child process, in a process group of its own.

    What the child prints goes to a log, whose end becomes the reason when it dies. On Linux nothing
    that it starts outlives it, or this process: see `supervisor`. Elsewhere a descendant that
    cuts its ties, as daemons do, is not found again.
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
        self._replies = service.replies
        self._most_printed = most_printed
        folders = os.pathsep.join([str(Path.cwd())] if path is None else path)
        # -P: a folder called `triton` or `torch` beside the user must not be imported.
        # -u: what is printed just before a crash is what explains it.
        command = [sys.executable, "-P", "-u", "-m", _WORKER, service.handler, folders]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except OSError as error:
            raise Lost(f"no process could be started: {error}", "failed") from error
        # Made now: later the number may be another process's.
        self._root = psutil.Process(self._process.pid)
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        assert pipes[0] is not None
        assert pipes[1] is not None
        assert pipes[2] is not None
        self._stdin, self._channel, self._log = pipes[0], Channel(pipes[1]), Log(pipes[2])
        self._stopped = False

    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        """Return the reply to a request; see `Client`."""
        deadline = time.monotonic() + timeout_s
        nonce = secrets.token_hex(NONCE_BYTES // 2).encode()
        try:
            with contextlib.suppress(BrokenPipeError):  # it is dead: there is no reply either
                self._stdin.write(b"%b %b\n" % (nonce, msgspec.json.encode(request)))
                self._stdin.flush()
            received = self._received(nonce, deadline)
            message = replies(self._replies[type(request)]).decode(received)
        except TimeoutError:
            raise self._ended(f"no answer within {timeout_s:g} s", "timeout") from None
        except EOFError:
            raise self._post_mortem(deadline) from None
        except NotAFrameError:
            raise self._ended(_FORGED, "failed") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._ended(f"{_FORGED}: {one_line(error)}", "failed") from error
        reply: Reply = _unless_refused(message)
        return reply

    def stop(self) -> None:
        """Pause the process until `resume`: an idle process disturbs the others."""
        if not self._stopped and hasattr(signal, "SIGSTOP"):
            self._signal(self._group, signal.SIGSTOP)
            self._stopped = True

    def resume(self) -> None:
        """Let the process go on."""
        if self._stopped:
            self._signal(self._group, signal.SIGCONT)
            self._stopped = False

    def end(self) -> None:
        """Kill the child and its descendants, those that left its process group included.

        Also when the child is already dead: its group may live on.
        """
        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            descendants = self._root.children(recursive=True)
        with contextlib.suppress(OSError):
            self._stdin.close()
        if sys.platform == "linux":  # its supervisor kills them all, and dies last
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        self._signal(self._process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        for descendant in descendants:
            with contextlib.suppress(psutil.Error):
                descendant.kill()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # who waits for a driver can't die
            self._process.wait(_GRACE_S)
        self._channel.close()

    def printed(self) -> str:
        """Return the end of what the child printed; all of it is known once the child has ended."""
        return self._log.text(patience_s=_LOG_S)

    def _received(self, nonce: bytes, deadline: float) -> bytes:
        """Return the reply; see `Channel.receive`.

        Raises:
            Lost: it printed too much, and was ended.
        """
        if self._most_printed is None:
            return self._channel.receive(nonce, timeout_s=deadline - time.monotonic())
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                return self._channel.receive(nonce, timeout_s=min(left, _WATCH_S))
            if self._log.printed_bytes > self._most_printed:
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
        self.end()
        printed = self.printed()
        return Lost(reason, status, printed=printed, too_much_printed=too_much_printed)

    @functools.cached_property
    def _group(self) -> int:
        """The child's process group; on Linux the process that was started is its supervisor."""
        if sys.platform == "linux":
            with contextlib.suppress(psutil.Error, ValueError):
                first: psutil.Process = min(self._root.children(), key=lambda x: x.create_time())
                return int(first.pid)
        return self._process.pid

    def _signal(self, group: int, number: int) -> None:
        """Send a signal to a process group, where there are groups."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)


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
        self._replies = service.replies
        self._environment = contextlib.ExitStack()
        self._environment.enter_context(changed_environment(environment))

    def ask(self, request: Request, *, timeout_s: float) -> Reply:  # noqa: ARG002 (see above)
        """Return the reply to a request; see `Client`."""
        travelled = self._requests.decode(msgspec.json.encode(request))
        message = msgspec.json.encode(replied(self._handler, travelled))
        try:
            reply: Reply = _unless_refused(replies(self._replies[type(request)]).decode(message))
        except msgspec.MsgspecError as error:
            raise Lost(f"{_FORGED}: {one_line(error)}", "failed") from error
        return reply

    def end(self) -> None:
        """Put the environment back; the handler outlives its clients."""
        self._environment.close()


def _unless_refused(message: Any) -> Any:
    if isinstance(message, Refusal):
        raise Refused(message.reason, input_error=message.input_error, detail=message.detail)
    return message


def _last_words(printed: str) -> str:
    """Word what a dead process left in its log: where it was, or else its last line."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    fatal = next((x for x in lines if x.startswith(_FATAL)), None)
    if fatal is None:
        return f"; it last printed: {_short(lines[-1])}" if lines else ""
    began = next((i for i, x in enumerate(lines) if x.startswith(_THREAD)), lines.index(fatal))
    where = next((x for x in lines[began:] if x.startswith("File ")), None)
    what = fatal.removeprefix(_FATAL)
    return _short(f": {what}" if where is None else f": {what}, in {where.removeprefix('File ')}")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
