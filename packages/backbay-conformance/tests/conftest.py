"""What the suite's own tests share."""

import os
from pathlib import Path

import pytest

_HERE = str(Path(__file__).parent)
_PATH = os.environ.get("PYTHONPATH", "")

# The seeded faults are backends for child processes too, which find them by name.
os.environ["PYTHONPATH"] = os.pathsep.join(x for x in (_HERE, _PATH) if x)


@pytest.fixture(autouse=True)
def _judge_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process that judges: each would import torch for 5 s.

    `test_judging` has it as it is. These faults don't turn on their judge.
    """
    if request.module.__name__.endswith("test_judging"):
        return
    from backbay.session import LocalClient
    from backbay_conformance import pool
    from backbay_conformance.requests import SERVICE

    def judge() -> LocalClient:
        from backbay_conformance.handler import CaseHandler

        return LocalClient(SERVICE, CaseHandler(), {})

    monkeypatch.setattr(pool, "judge_in", lambda _caches: judge)
