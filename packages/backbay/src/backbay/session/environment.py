"""This process's environment, changed for a while."""

import contextlib
import os
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set variables until the block ends; then they are as they were, or absent again."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
