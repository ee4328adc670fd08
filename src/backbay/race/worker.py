"""The child process of a race: answers requests from standard input until it is closed.

Run as ``python -m backbay.race.worker``. Replies go to the standard output that the process was
born with; what any library or model prints goes to standard error, so that it can't be taken for a
reply.
"""

import faulthandler
import os
import sys
from pathlib import Path

import msgspec

from backbay.race.job import Request


def main() -> None:
    """Answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.enable()  # the stack of a segmentation fault ends up in the log
    sys.path.append(str(Path.cwd()))  # last, so that nothing there hides an installed package
    from backbay.race.bench import Bench  # noqa: PLC0415 (torch may print: not before dup2)

    bench = Bench()
    for line in sys.stdin.buffer:
        reply = bench.answer(msgspec.json.decode(line, type=Request))
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()


if __name__ == "__main__":
    main()
