"""The process between a client and its child, on Linux: nothing that the child starts outlives it.

It is a subreaper: whatever loses its parent below it becomes its own child, daemons included. It
ends all of them when the child has ended, and when the client closes the child's standard input,
which the death of the client's process does as well. Then it ends as the child did.

The process of who asks is never made a subreaper: its orphans are its own affair.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import time

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STDIN = 0
_PAUSE_S = 0.01
_PATIENCE_S = 8.0
"""For descendants to die; who waits for a driver can't. Less than a client waits."""
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def supervise() -> None:
    """Return in a child of this process, which supervises it from now on."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = os.getpid()
    child = os.fork()
    if child:
        status = None
        with contextlib.suppress(Exception):
            status = _watch(child)
        _end_descendants()
        _end_as(status)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:  # it was gone before the line above
        os._exit(1)
    os.setpgid(0, 0)  # who is paused with its group is the child: a supervisor must go on


def _watch(child: int) -> int | None:
    """Return how the child ended, or None where the client wants it to end."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for sent in (signal.SIGCHLD, *_ENDING):
        signal.signal(sent, _noted)
    poll = select.poll()
    poll.register(told, select.POLLIN)
    poll.register(_STDIN, 0)  # what is in it is the child's; that it was closed is always told
    while (status := _reaped(child)) is None:
        ready = dict(poll.poll())
        numbers = os.read(told, 1 << 10) if told in ready else b""
        if _STDIN in ready or _ENDING.intersection(numbers):
            return None
    return status


def _noted(*_: object) -> None:
    """Do nothing: the number of the signal is in the pipe."""


def _reaped(child: int) -> int | None:
    """Return how the child ended, if it did; orphans that ended are gone afterwards."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in {0, child}:
            return status if pid else None


def _end_descendants() -> None:
    """Kill all descendants, until there are none or the patience is at its end."""
    myself = psutil.Process()
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(psutil.Error):
            for descendant in myself.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    descendant.kill()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_PAUSE_S)


def _end_as(status: int | None) -> None:
    """End as the child did, so that who started this process sees how."""
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left one, if any
        with contextlib.suppress(OSError):  # some signals can't be caught anyway
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
