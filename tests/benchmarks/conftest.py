"""What tests of benchmarks share."""

import gc
import importlib
import itertools
import sys
from pathlib import Path

import pytest
import torch

from backbay.session import LocalClient

FOLDER = str(Path(__file__).parents[2] / "benchmarks")
OURS = {
    *("speed", "models", "patterns", "newest", "limits", "compile_times"),
    *("layout_copies", "cuda_graphs"),
}


@pytest.fixture(scope="module")
def speed():
    """Return the benchmarks' modules by name; their folder is on the path as a script's is."""
    sys.path.insert(0, FOLDER)
    yield lambda name: importlib.import_module(name)
    sys.path.remove(FOLDER)
    for name in [x for x in sys.modules if x.split(".")[0] in OURS]:
        del sys.modules[name]


@pytest.fixture
def in_process(speed, monkeypatch):
    """Answer requests here, each way as JSON, as a child process would."""
    asked, handler = speed("speed.requests"), speed("speed.handler")

    class Here:
        def __init__(self):
            self.handler = handler.SpeedHandler()
            self.client = LocalClient(asked.SERVICE, self, {})

        def ask(self, request, *, timeout_s):
            return self.client.ask(request, timeout_s=timeout_s)

        requests = asked.Request

        def answer(self, request):
            return self.handler.answer(request)

        def end(self):
            self.handler = None

        def stop(self):
            self.stopped = True

        def resume(self):
            self.stopped = False

    monkeypatch.setattr(speed("speed.turns"), "started", Here)
    with torch._dynamo.config.patch(recompile_limit=256):  # the bench sets it for its process
        yield Here
    gc.unfreeze()  # the handler froze what there was


@pytest.fixture
def entry(speed):
    """Return what makes an entry whose runs are arms' milliseconds, or how they failed."""
    record, numbers = speed("speed.record"), itertools.count()

    def made(*runs, **more):
        found = []
        for run in runs:
            arms = {
                name: record.Sampled(status="ok", samples_ms=tuple(values))
                if isinstance(values, list)
                else record.Sampled(status=values)
                for name, values in run.items()
            }
            found.append(record.Run(created=f"run {next(numbers)}", arms=arms))
        where = record.Where(device="none", size="tiny", versions={"torch": "2"})
        return record.Entry(**{"name": "one", "where": where, "runs": tuple(found), **more})

    return made
