"""Each failure as one short file: plain torch, minimised, for the backend's author or PyTorch's.

::

    for repro in write(statement, Path("repros")):
        print(repro.case, repro.path, repro.note)

A file holds the graph that the backend was given, as a function, its inputs, and what is held
against float64; it prints what is wrong, and exits with 1 while that is so. A backend's name as its
argument runs another one. Nothing here imports torch: that happens in child processes.
"""

from backbay_conformance.repro.record import Limits, Repro
from backbay_conformance.repro.writing import write

__all__ = ["Limits", "Repro", "write"]
