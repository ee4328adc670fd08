"""A failure of torch's operator data that no graph shows has a program all the same."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from backbay.session import Session
from backbay_conformance.levels import sampled
from backbay_conformance.record import LEVELS, Result
from backbay_conformance.repro import write
from backbay_conformance.repro.making import made
from backbay_conformance.requests import SuiteSetup


class Here:
    """Makes repros in this process."""

    def ask(self, request, *, timeout_s):
        return made(request)

    def end(self):
        torch.compiler.reset()


def written(case_id: str, backend: str, status: str, folder: Path):
    level = LEVELS.index(case_id.partition("/")[0])
    setup = SuiteSetup(backend=backend, device="cpu", seed=0, levels=(level,), profile="full")
    result = Result(id=case_id, level=level, status=status, reason="it is so")
    (repro,) = write([result], folder, setup=setup, open_session=lambda: Session(Here))
    return repro


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ >= "2.15", reason="torch 2.15 has the check")
def test_an_input_that_must_be_refused_has_no_program(tmp_path, monkeypatch):
    repro = written("errors/aminmax/3", "aot_eager", "lost_validation", tmp_path)
    assert (repro.kind, repro.shown) == ("operator", True), repro.note
    assert repro.lines < 40
    torch.compiler.reset()
    monkeypatch.setattr(sys, "argv", [repro.path, "eager"])
    with pytest.raises(SystemExit) as end:  # it is `shown` that tells of a process of its own
        runpy.run_path(repro.path, run_name="__main__")
    assert not end.value.code


@pytest.mark.slow
def test_memory_that_is_not_shared_has_no_program(tmp_path):
    backend = "mutants:needless_contiguous_copies"
    repro = written("ops/contiguous/float32", backend, "fail_metadata", tmp_path)
    assert (repro.kind, repro.shown) == ("operator", True), repro.note


def test_the_inputs_of_a_program_are_others_than_the_case_s():
    case_id = "ops/sin/float32"
    sampled.seed(case_id, 3)
    mine = torch.rand(2)
    torch.manual_seed(sampled.seed_of(case_id, 3))
    assert torch.equal(torch.rand(2), mine)
