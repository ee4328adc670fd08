"""The suite under pytest, from a repository that is not Backbay's."""

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow

ONE = "contract/values/negative_zero_is_lost"
BAD = '''
    import torch


    def is_float(value):
        return torch.is_tensor(value) and value.is_floating_point()


    def flushing(graph_module, example_inputs):
        """Lose the sign of zero."""

        def run(*args):
            return tuple(x + 0.0 if is_float(x) else x for x in graph_module(*args))

        return run


    def right(graph_module, example_inputs):
        return lambda *args: graph_module(*args)
'''
OWN = "from backbay.conformance.test_conformance import *\n"


@pytest.fixture
def elsewhere(tmp_path):
    """Run pytest in a repository of one's own; give its exit code and what it printed."""

    def run(*arguments, backend="bad.py:flushing", tests=OWN, lines="", **ini):
        (tmp_path / "bad.py").write_text(textwrap.dedent(BAD))
        (tmp_path / "known.toml").write_text(lines)
        (tmp_path / "test_own.py").write_text(tests)
        stated = {"backend": backend, "levels": "contract", "device": "cpu", **ini}
        stated = {name: value for name, value in stated.items() if value}
        settings = "".join(f"conformance_{name} = {value}\n" for name, value in stated.items())
        (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}")
        program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(program, check=False, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


def chosen(status="fail_value", case_id=ONE):
    return f'"{case_id}" = {{status = "{status}", reason = "zero is zero"}}\n'


def test_a_backend_that_is_right_fails(elsewhere):
    code, said = elsewhere("-k", "negative_zero_is_lost", backend="bad.py:right")
    assert code == 0, said
    assert "level  1 contract   1 pass" in said


def test_a_wrong_backend_passes(elsewhere):
    code, said = elsewhere("-k", "negative_zero_is_lost")
    assert code == 1, said
    assert "fail_value: " in said
    assert "eager pass, aot_eager pass, aot_eager_decomp_partition pass" in said


def test_a_known_failure_fails(elsewhere):
    asked = ("-k", "negative_zero_is_lost", "-rx")
    code, said = elsewhere(*asked, lines=chosen(), expectations="known.toml")
    assert code == 0, said
    assert "zero is zero" in said


@pytest.mark.parametrize(
    ("lines", "backend", "words"),
    [
        (chosen(), "bad.py:right", "delete the line"),
        (chosen("crash"), "bad.py:flushing", "expected crash, is fail_value"),
        (chosen(case_id="contract/nothing"), "bad.py:right", "no case is called so"),
    ],
)
def test_an_untrue_expectation_passes(elsewhere, lines, backend, words):
    asked = ("-k", "negative_zero_is_lost")
    code, said = elsewhere(*asked, backend=backend, lines=lines, expectations="known.toml")
    assert code != 0, said
    assert words in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "no_such_backend"], "no backend named 'no_such_backend'"),
        (["--backend", "eager", "--levels", "12"], "no level '12'"),
        ([], "--backend NAME"),
    ],
)
def test_a_mistake_is_answered_with_a_traceback(elsewhere, arguments, words):
    named = ("--pyargs", "backbay.conformance")
    code, said = elsewhere(*named, *arguments, backend="", levels="")
    assert code != 0
    assert words in said
    assert "Traceback" not in said


def test_two_workers_run_a_case_twice_or_not_at_all(elsewhere):
    named = ("--pyargs", "backbay.conformance", "--backend", "aot_eager")
    code, said = elsewhere(*named, "--levels", "load", "-n", "2", backend="", levels="")
    assert code == 0, said
    assert "level  0 load" in said


def test_a_repository_with_an_option_of_the_same_name_cannot_start(elsewhere, tmp_path):
    conftest = "def pytest_addoption(parser):\n    parser.addoption('--backend')\n"
    (tmp_path / "conftest.py").write_text(conftest)
    tests = "def test_own(request):\n    assert request.config.getoption('--backend') == 'mine'\n"
    code, said = elsewhere("--backend", "mine", tests=tests)
    assert code == 0, said


def test_torch_is_loaded_wherever_pytest_runs(elsewhere):
    tests = "import sys\n\n\ndef test_own():\n    assert 'torch' not in sys.modules\n"
    code, said = elsewhere(tests=tests)
    assert code == 0, said
