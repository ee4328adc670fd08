"""What ``reduce-overhead`` does in a case: ``python torchs_own_mode.py inference|training CASE``.

Prints the first line of the error that tells it from the default mode, or "nothing".
"""

import subprocess
import sys

import device_training_cases  # noqa: F401 (which adds cases)
import graph_cases
import training_cases
from graph_cases import assert_trains_as_default, torchs
from training_cases import raised


def inference(name):
    return raised(graph_cases.CASES[name], torchs)


def training(name):
    return raised(assert_trains_as_default, training_cases.CASES[name], torchs)


def in_a_process_of_its_own(kind, name):
    """Return the fault, which may be that a signal ends the process that was to print it."""
    command = [sys.executable, __file__, kind.__name__, name]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode <= 0, ran.stderr  # not a crash: the case itself could not be run
    return f"signal {-ran.returncode}" if ran.returncode else ran.stdout.splitlines()[-1]


if __name__ == "__main__":
    _kind, _name = sys.argv[1:]
    sys.stdout.write({"inference": inference, "training": training}[_kind](_name))
