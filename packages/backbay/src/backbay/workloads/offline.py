"""Keep a build from reaching the model hub: a race must give the same result without a network."""

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Make every request of huggingface_hub fail meanwhile; the setting is left as it was found.

    The constant is set because the environment variable of the same name is read once, at import:
    it would come too late for a process that has the library, and stay for one that has not.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        yield
        return
    constants: Any = importlib.import_module("huggingface_hub.constants")
    found = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = found
