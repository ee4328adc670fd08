"""Seeded faults: good backends with one thing wrong in each, which the suite must catch.

They are made after bug reports and after what authors of backends get wrong, never after a case of
the suite. A fifth is set aside in the files ``held_out_*.py``: who writes cases does not open them.

Each is a backend for any process: ``backbay conform mutants:gelu_is_tanh``.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    from mutants.catalog import MUTANTS
    from mutants.good import GOOD_TWINS

    if name in GOOD_TWINS:
        return GOOD_TWINS[name]
    if name in MUTANTS:
        return MUTANTS[name].compiler
    raise AttributeError(f"there is no faulty backend {name!r}")
