"""End a child process with everything that it started."""

import contextlib
import os
import signal
import subprocess
from typing import Any

import psutil

_GRACE_S = 10.0


class ProcessTree:
    """A child process, the leader of its own group, and all its descendants."""

    def __init__(self, process: "subprocess.Popen[Any]") -> None:
        self._process = process
        # Made now: later the number may be another process's.
        self._root = psutil.Process(process.pid)

    def signal(self, number: int) -> None:
        """Send a signal to the process group, where there are groups."""
        if not hasattr(os, "killpg"):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the child and its descendants, those that left its process group included.

        Also when the child is already dead: its group may live on.
        """
        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            descendants = self._root.children(recursive=True)
        self.signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        for descendant in descendants:
            with contextlib.suppress(psutil.Error):
                descendant.kill()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # who waits for a driver can't die
            self._process.wait(_GRACE_S)
