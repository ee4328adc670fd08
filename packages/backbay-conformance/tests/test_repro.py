"""A failure's file shows the failure: by itself, small, and of a good backend nothing."""

import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import repro_cases
from backbay.session import Session
from backbay_conformance.record import Result
from backbay_conformance.repro import Limits, write
from backbay_conformance.requests import SuiteSetup

HERE = Path(__file__).with_name("repro_cases.py")


class Here:
    """Makes repros of the cases of this folder, in this process."""

    def ask(self, request, *, timeout_s):
        from backbay_conformance.repro.making import made

        return made(request)

    def end(self):
        torch.compiler.reset()


@pytest.fixture(autouse=True)
def our_cases(monkeypatch):
    from backbay_conformance import suite
    from backbay_conformance.repro import capturing

    def collected(*_, **__):
        return repro_cases.CASES

    monkeypatch.setattr(capturing, "collected", collected)
    monkeypatch.setattr(suite, "collected", collected)


def written(case: str, backend: str, status: str, folder: Path, **limits):
    setup = SuiteSetup(
        backend=f"{HERE}:{backend}", device="cpu", seed=0, levels=(1,), profile="full"
    )
    references = {"eager": "pass", "aot_eager": "pass"}
    result = Result(
        id=f"contract/repro/{case}",
        level=1,
        status=status,
        reason="it is so",
        reference_backends=references,
    )
    (repro,) = write(
        [result], folder, setup=setup, limits=Limits(**limits), open_session=lambda: Session(Here)
    )
    return repro


def ended(repro) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, repro.path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def ended_here(monkeypatch, capfd):
    """Run a file in this process: `shown` says what a process of its own makes of it."""

    def run(repro, *arguments: str) -> tuple[int, str]:
        torch.compiler.reset()
        monkeypatch.setattr(sys, "argv", [repro.path, *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        capfd.readouterr()
        try:
            runpy.run_path(repro.path, run_name="__main__")
        except SystemExit as end:
            code, last = end.code, ""
        except Exception as error:  # noqa: BLE001 (Python ends with 1, whatever it is)
            code, last = 1, str(error)
        else:
            code, last = 0, ""
        said = capfd.readouterr()
        if isinstance(code, str):  # Python prints it, and ends with 1
            code, last = 1, code
        return code or 0, said.out + said.err + last

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "backend", "status", "said"),
    [
        ("tanh_in_the_middle_is_wrong", "wrong_tanh", "fail_value", "output 0 is wrong"),
        ("gradient_of_tanh_is_wrong", "wrong_gradient_of_tanh", "fail_grad", "gradient of input 0"),
        ("tanh_in_the_middle_is_wrong", "raises_at_tanh", "fail_error", "no kernel for tanh"),
        ("tanh_in_the_middle_is_wrong", "crashes_at_tanh", "crash", "the process ended with -11"),
    ],
)
def test_a_repro_is_long_shows_nothing_or_blames_a_good_backend(  # noqa: PLR0917 (what pytest gives)
    case, backend, status, said, tmp_path, ended_here
):
    repro = written(case, backend, status, tmp_path)
    text = Path(repro.path).read_text()
    assert repro.kind == "graph", repro.note
    assert repro.shown, text
    assert repro.note == ""
    assert repro.nodes_before > 30
    assert repro.nodes <= 2, text
    assert "tanh" in text
    assert text.count("\n") == repro.lines < 40, text
    assert "import backbay" not in text
    assert "# eager: pass, aot_eager: pass, " in text
    code, text = ended_here(repro)
    assert code == 1
    assert said in text
    code, text = ended_here(repro, "eager")
    assert code == 0, text


def test_what_no_single_graph_shows_is_left_without_a_file(tmp_path, ended_here):
    case = "second_call_gives_what_the_first_gave"
    repro = written(case, "remembers", "fail_behaviour", tmp_path)
    assert (repro.kind, repro.shown) == ("source", True), repro.note
    assert "a graph alone does not show" in repro.note
    assert repro.lines < 40
    assert ended(repro).returncode == 1
    assert ended_here(repro, "eager")[0] == 0


def test_a_case_that_only_compares_is_left_without_its_inputs(tmp_path, ended_here):
    repro = written("program_of_two_inputs", "wrong_tanh", "fail_behaviour", tmp_path)
    text = Path(repro.path).read_text()
    assert (repro.kind, repro.shown) == ("source", True), text
    assert "torch.linspace(-1, 1, 5, device=s.device), torch.ones(5), train=False, calls=2" in text
    assert "Tensors" not in text
    assert ended_here(repro, "eager")[0] == 0


@pytest.mark.slow
def test_minimising_goes_past_its_time(tmp_path):
    start = time.monotonic()
    case = "tanh_in_the_middle_is_wrong"
    repro = written(case, "slowly_wrong_tanh", "fail_value", tmp_path, seconds=3.0)
    assert repro.nodes_before > 30
    assert repro.seconds < time.monotonic() - start + 1
    assert repro.nodes > 1  # a second a question leaves no time for more
    assert repro.shown


@pytest.mark.slow
def test_a_large_graph_is_minimised_for_ever(tmp_path):
    repro = written("a_long_graph_is_wrong", "wrong_tanh", "fail_value", tmp_path, nodes=100)
    assert repro.nodes == repro.nodes_before > 100
    assert "not minimised" in repro.note
    assert "lines" in repro.note  # it says that it is longer than one reads
    assert repro.shown


def test_a_pass_or_an_expected_failure_gets_a_file(tmp_path):
    setup = SuiteSetup(backend="eager", device="cpu", seed=0, levels=(1,), profile="full")
    case = "contract/repro/tanh_in_the_middle_is_wrong"
    results = [
        Result(id=case, level=1, status="pass"),
        Result(id=case, level=1, status="upstream"),
        Result(id=case, level=1, status="fail_value", expected="known since 2025"),
    ]
    assert write(results, tmp_path, setup=setup) == []
    with pytest.raises(ValueError, match="give setup"):
        write(results, tmp_path)
