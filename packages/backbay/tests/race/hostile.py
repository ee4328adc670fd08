"""Backends that turn on the process that they run in, on who judges them and on who asks.

Each is a compiler function. What they do is undone when their process ends, but for what
`daemons` leaves, which is what it is there to show.
"""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

HOSTILE = {}


def hostile(function):
    HOSTILE[function.__name__] = function
    return function


def _sevens(graph_module):
    """Return what is as large as the results, and all sevens; eager is not asked again."""
    known = []

    def call(*args):
        if not known:
            known.extend(graph_module(*args))
        return tuple(torch.full_like(x, 7.0) for x in known)

    return call


@hostile
def replaces_the_judge(graph_module, example_inputs):
    """Has every comparison pass, in its own process."""
    from backbay.proof import golden, judging, oracle

    passed = oracle.Verdict(passed=True, reason="equal to eager's", where="output")
    for module in (oracle, judging):
        module.compare = lambda *args, **kwargs: passed
    proof = judging.Proof(verdicts=(passed,))
    golden.Golden.judge = judging.Reference.judge = lambda self, outcome: proof
    return _sevens(graph_module)


@hostile
def replaces_what_is_noted(graph_module, example_inputs):
    """Hands on what eager gave, whatever it returned itself."""
    from backbay.proof import outcome

    noted = outcome._noted
    rights = []

    def instead(output, step, *args, **kwargs):
        rights.append(step.workload.model(*step.args, **step.kwargs))
        return noted(rights[0], step, *args, **kwargs)

    outcome._noted = instead
    return _sevens(graph_module)


@hostile
def replaces_the_clock(graph_module, example_inputs):
    """Time passes at a tenth of its speed for everybody who asks module time."""
    for name in ("perf_counter", "monotonic", "time"):
        clock = getattr(time, name)
        begin = clock()
        setattr(time, name, lambda clock=clock, begin=begin: begin + 0.1 * (clock() - begin))
    return graph_module.forward


@hostile
def replaces_the_bound_clock(graph_module, example_inputs):
    """The same, where Backbay's own timing keeps its clock."""
    from backbay.timing import clock as timing

    clock, begin = timing.perf_counter, timing.perf_counter()
    timing.perf_counter = lambda: begin + 0.1 * (clock() - begin)
    return graph_module.forward


@hostile
def slows_eager_down(graph_module, example_inputs):
    """Makes every module's call wait: eager's alone, as compiled code has no modules."""
    called = torch.nn.Module.__call__

    def slow(self, *args, **kwargs):
        time.sleep(0.002)
        return called(self, *args, **kwargs)

    torch.nn.Linear.__call__ = slow
    return graph_module.forward


@hostile
def counts_the_threads_down(graph_module, example_inputs):
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")
    return _right(graph_module)


@hostile
def burns_a_core(graph_module, example_inputs):
    def burn():
        while True:
            sum(range(1000))

    threading.Thread(target=burn, daemon=True).start()
    return graph_module.forward


@hostile
def writes_garbage_everywhere(graph_module, example_inputs):
    """To every descriptor that it finds open, the channel of replies among them."""
    _to_every_descriptor(b"\x00\xff garbage without end " * 50)
    return _right(graph_module)


@hostile
def forges_a_reply(graph_module, example_inputs):
    """Well-formed, of a kind that is expected, and of another."""
    _to_every_descriptor(b'{"type":"finished"}\n{"type":"timed","seconds":1e-9}\n')
    return _sevens(graph_module)


@hostile
def closes_everything(graph_module, example_inputs):
    os.closerange(3, 256)
    return _right(graph_module)


@hostile
def prints_without_end(graph_module, example_inputs):
    def call(*args):
        for _ in range(200):
            sys.stderr.write("x" * 100_000)
        return graph_module(*args)

    return call


@hostile
def exits_well(graph_module, example_inputs):
    os._exit(0)


@hostile
def raises_system_exit(graph_module, example_inputs):
    sys.exit("bye")


@hostile
def raises_keyboard_interrupt(graph_module, example_inputs):
    raise KeyboardInterrupt


class _Unprintable(BaseException):
    def __str__(self):
        raise SystemExit(3)


@hostile
def raises_what_cannot_be_printed(graph_module, example_inputs):
    raise _Unprintable


@hostile
def kills_itself(graph_module, example_inputs):
    def call(*args):
        os.kill(os.getpid(), signal.SIGKILL)

    return call


@hostile
def ignores_signals(graph_module, example_inputs):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return _right(graph_module)


@hostile
def moves_house(graph_module, example_inputs):
    os.chdir(tempfile.gettempdir())
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["BACKBAY_STATE"] = "/nowhere"
    return _right(graph_module)


@hostile
def empties_the_folder_for_temporary_files(graph_module, example_inputs):
    """Deletes the files of the race that it finds; the reference is not among them."""
    here = Path(tempfile.gettempdir())
    for path in (*here.glob("backbay-race-*/workload-*/*"), *here.parent.glob("workload-*/*")):
        path.unlink(missing_ok=True)
    return _right(graph_module)


@hostile
def daemons(graph_module, example_inputs):
    """Leaves a process behind that has no parent any more and is in another session."""
    mark = "import time; time.sleep(600)  # backbay-hostile-daemon"
    child = f"subprocess.Popen([sys.executable, '-c', {mark!r}])"
    command = f"import os, subprocess, sys; os.setsid(); {child}; os._exit(0)"
    subprocess.run([sys.executable, "-c", command], check=False)
    return _right(graph_module)


@hostile
def disables_the_collector(graph_module, example_inputs):
    gc.disable()
    gc.collect = lambda *_: 0
    return graph_module.forward


def _right(graph_module):
    """Return compiled code that is right and slow."""

    def call(*args):
        time.sleep(0.001)
        return graph_module(*args)

    return call


def _to_every_descriptor(data):
    for number in range(3, 64):
        try:
            os.set_blocking(number, False)
            os.write(number, data)
            os.set_blocking(number, True)
        except OSError:
            continue
