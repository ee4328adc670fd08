"""Judges what backends give, in a process in which no backend was loaded. No torch here.

The reference is made in one process; another keeps it, where nobody who is judged can write it,
and compares. From the processes of backends come files of bytes, never a verdict.

::

    with Judge(setup, folder) as judge:
        prepared = judge.prepare()
        judge.reveal(1, folder / "inputs")          # what a backend is called with
        ...                                         # it writes folder / "given"
        judge.verdict([Piece(path=..., inputs=1, picked=prepared.seeds[1])])
"""

from backbay.judge.client import Judge, JudgeLost
from backbay.judge.requests import Judged, Judgement, Piece, Prepared

__all__ = ["Judge", "JudgeLost", "Judged", "Judgement", "Piece", "Prepared"]
