"""What a race decides is kept, and compiles the model from then on."""

from pathlib import Path

import pytest
import torch

from backbay import compile_log, race
from backbay.choose import Arm, Store

SOURCE = """
import time
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()), (torch.randn(8, 16),)

def slow(graph_module, example_inputs):
    def call(*args):
        time.sleep(0.02)
        return graph_module(*args)
    return call
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    torch.compiler.reset()
    compile_log.clear()
    yield path
    torch.compiler.reset()


def raced(file: Path, store: Store | None):
    limits = race.Limits(timing_s=0.5)
    return race.run(
        f"{file}:model", backends=[f"{file}:slow"], device="cpu", limits=limits, store=store
    )


@pytest.mark.slow
def test_the_model_is_compiled_as_the_race_decided(file):
    report = raced(file, Store())
    (kept,) = Store().decisions()
    assert kept.arm == Arm(backend="eager")
    assert (kept.step, kept.dtype, kept.over_eager) == ("infer", "float32", None)
    assert kept.why.endswith("no arm was faster than eager")
    assert any(f"kept as {kept.name}" in note for note in report.notes)

    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
    compiled = torch.compile(model, backend="backbay.auto")
    with torch.no_grad():
        compiled(torch.randn(8, 16))
    assert [x.ran for x in compile_log.records()] == ["eager"]
    compiled(torch.randn(8, 16))  # gradients are recorded: nothing was decided for that
    assert compile_log.records()[-1].ran == "inductor"


@pytest.mark.slow
def test_what_cannot_be_kept_is_a_note_and_the_report_is_whole(file, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    report = raced(file, Store())
    assert report.decision[0].winner == "eager"
    assert any("the decision is not kept" in note for note in report.notes)
