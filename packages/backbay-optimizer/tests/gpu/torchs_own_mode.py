"""What ``reduce-overhead`` does in a case: ``python torchs_own_mode.py inference|training CASE``.

Prints the first line of the error that tells it from the default mode, or "nothing".
"""

import subprocess
import sys

import device_training_cases  # noqa: F401 (which adds cases)
import graph_cases
import training_cases
from graph_cases import assert_as_default, torchs
from training_cases import raised


def inference(name):
    return raised(graph_cases.CASES[name], torchs)


def training(name):
    return raised(assert_as_default, training_cases.CASES[name], torchs)


def in_a_process_of_its_own(kind, name):
    """Return the fault, or how the process ended that was to print it."""
    command = [sys.executable, __file__, kind.__name__, name]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    return f"the process ends with {ran.returncode}" if ran.returncode else ran.stdout


if __name__ == "__main__":
    _kind, _name = sys.argv[1:]
    sys.stdout.write({"inference": inference, "training": training}[_kind](_name))
