"""Handlers that each do one thing that a process must not do."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import ClassVar

import msgspec

from backbay.errors import InputError, warn_of_experimental
from backbay.session import Service


class Do(msgspec.Struct, tag="do"):
    what: str
    number: int = 0


class Done(msgspec.Struct, tag="done"):
    number: int
    text: str = ""


class Doer:
    requests: ClassVar = Do

    def __init__(self):
        print("printed while it is made")  # noqa: T201
        self._count = 0

    def answer(self, request):
        self._count += 1
        text = getattr(self, request.what)(request) or ""
        return Done(number=self._count, text=text)

    def count(self, request):
        """Nothing but to be counted."""

    def prints(self, request):
        os.write(1, b'{"type": "done", "number": 1000}\n')
        print('{"type": "done", "number": 2000}')  # noqa: T201

    def raises(self, request):
        raise ValueError("no kernel\nand more")

    def blames(self, request):
        error = InputError("there is no such thing")
        error.add_note("line 1\nline 2")
        raise error

    def chooses_an_experimental_backend(self, request):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            warn_of_experimental("quick", "quick 1.0")
        return str(len(told))

    def segfaults(self, request):
        os.kill(os.getpid(), signal.SIGSEGV)

    def exits(self, request):
        print("the end", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(3)

    def hangs(self, request):
        time.sleep(600)

    def closes_all(self, request):
        os.closerange(0, 64)

    def floods(self, request):
        while True:
            os.write(2, b"x" * 10_000)

    def environment(self, request):
        return os.environ.get("TESTED", "absent")

    def pid(self, request):
        return str(os.getpid())

    def leaves_a_daemon(self, request):
        """Start a grandchild in a session, and so in a group, of its own."""
        program = "import time; time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
        return str(child.pid)

    def leaves_an_orphan(self, request):
        """Start a process that has no parent and is in a session of its own, as daemons do."""
        program = "import time; time.sleep(600)"
        how = "stdout=subprocess.DEVNULL, start_new_session=True"
        start = f"subprocess.Popen([sys.executable, '-c', {program!r}], {how})"
        between = f"import subprocess, sys; print({start}.pid)"
        done = subprocess.run(
            [sys.executable, "-c", between], stdout=subprocess.PIPE, text=True, env={}, check=True
        )
        return done.stdout.strip()

    def leaves_a_twin_and_dies(self, request):
        """The twin keeps every descriptor open, the channel among them."""
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)

    def forges(self, request):
        to_every_descriptor(b'{"type":"done","number":1000}\n')

    def forges_a_frame(self, request):
        reply = b'{"type":"done","number":1000}'
        to_every_descriptor(b"0" * 32 + len(reply).to_bytes(8, "big") + reply)

    def garbles(self, request):
        to_every_descriptor(b"\x00\xff\n" * 1000)

    def garbles_without_end(self, request):
        while True:
            to_every_descriptor(b"x" * 4096)

    def garbles_later(self, request):
        def later():
            time.sleep(0.2)
            to_every_descriptor(b"later")

        threading.Thread(target=later).start()

    def reads(self, request):
        return sys.stdin.read()

    def raises_a_surrogate(self, request):
        raise ValueError("\ud800")

    def prints_a_line_without_end_and_crashes(self, request):
        os.write(2, b"what matters\n")
        for _ in range(100):
            os.write(2, b"x" * 10_000)
        os.write(2, b"\n")
        os._exit(3)


def to_every_descriptor(data):
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(number, data)


class HalfDoer(Doer):
    def answer(self, request):
        from backbay.session import worker

        whole = worker._write

        def half(reply, pipe, identity):
            whole(reply[: len(reply) // 2], pipe, identity)
            os._exit(0)

        worker._write = sys.modules["__main__"]._write = half
        return Done(number=1)


SERVICE = Service("handlers:Doer", {Do: Done})
