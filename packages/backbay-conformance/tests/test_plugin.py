"""The suite under pytest, from a repository that is not Backbay's."""

import subprocess
import sys
import textwrap
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.slow

BAD = '''
    import torch


    def flushed(value):
        """Lose NaN, the sign of zero, and what is all but zero."""
        if not torch.is_tensor(value) or not value.is_floating_point():
            return value
        number = torch.nan_to_num(value, posinf=float("inf"), neginf=-float("inf"))
        return torch.where(number.abs() < torch.finfo(value.dtype).tiny, 0.0, number)


    def flushing(graph_module, example_inputs):
        return lambda *args: tuple(flushed(x) for x in graph_module(*args))
'''
OWN = "from backbay_conformance.test_conformance import *\n"


@pytest.fixture(scope="module")
def pytest_in():
    """Run pytest in a repository of one's own; return its exit code and what it printed."""

    def run(folder, *arguments, tests=OWN, lines="", **ini):
        (folder / "bad.py").write_text(textwrap.dedent(BAD))
        (folder / "known.toml").write_text(lines)
        (folder / "test_own.py").write_text(tests)
        settings = "".join(f"conformance_{name} = {value}\n" for name, value in ini.items())
        (folder / "pytest.ini").write_text(f"[pytest]\n{settings}")
        program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(program, check=False, cwd=folder, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


STATED = {
    "backend": "bad.py:flushing",
    "levels": "contract",
    "profile": "full",
    "device": "cpu",
}


def line(case, status="fail_value"):
    return f'"contract/values/{case}" = {{status = "{status}", reason = "known of {case}"}}\n'


KNOWN = line("subnormal_numbers_are_flushed")


@pytest.fixture(scope="module")
def judged(pytest_in, tmp_path_factory):
    """Run a case of each kind once; return the counts, and to each case its kind and its words."""
    folder = tmp_path_factory.mktemp("judged")
    lines = KNOWN + line("nan_is_lost", "crash") + line("rounding_is_not_half_to_even")
    cases = (
        "negative_zero_is_lost", "subnormal_numbers_are_flushed", "nan_is_lost",
        "rounding_is_not_half_to_even", "infinity_becomes_nan",
    )  # fmt: skip
    arguments = ("-k", " or ".join(cases), "--junit-xml", "said.xml", "-rx")
    code, said = pytest_in(folder, *arguments, lines=lines, expectations="known.toml", **STATED)
    assert code == 1, said
    found = {}
    for case in ET.parse(folder / "said.xml").iter("testcase"):
        kinds = [(x.tag, f"{x.get('message')}\n{x.text}") for x in case if x.tag != "properties"]
        name = case.attrib["name"].partition("[")[2].rstrip("]").rpartition("/")[2]
        found[name] = kinds[0] if kinds else ("passed", "")
    assert set(found) == set(cases)
    return said, found


def test_a_backend_that_is_right_fails(judged):
    said, found = judged
    assert found["infinity_becomes_nan"] == ("passed", "")
    assert "level  1 contract   2 pass, 3 fail_value" in said


def test_a_wrong_backend_passes(judged):
    _, found = judged
    kind, words = found["negative_zero_is_lost"]
    assert kind == "failure"
    assert "fail_value: " in words
    assert "eager pass, aot_eager pass, aot_eager_decomp_partition pass" in words


def test_a_known_failure_fails(judged):
    _, found = judged
    kind, words = found["subnormal_numbers_are_flushed"]
    assert kind == "skipped"  # which it is not; JUnit's files know no better word
    assert "known of subnormal_numbers_are_flushed" in words


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("rounding_is_not_half_to_even", "delete the line"),
        ("nan_is_lost", "expected crash, is fail_value"),
    ],
)
def test_an_untrue_expectation_passes(judged, case, words):
    _, found = judged
    assert found[case][0] == "failure"
    assert words in found[case][1]


def test_an_expectation_of_no_case_passes(pytest_in, tmp_path):
    stated = {"lines": line("nothing"), "expectations": "known.toml", **STATED}
    code, said = pytest_in(tmp_path, **stated)
    assert code != 0, said
    assert "no case is called so" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "no_such_backend"], "no backend named 'no_such_backend'"),
        (["--backend", "eager", "--levels", "12"], "no level '12'"),
        ([], "--backend NAME"),
    ],
)
def test_a_mistake_is_answered_with_a_traceback(pytest_in, tmp_path, arguments, words):
    named = ("--pyargs", "backbay_conformance")
    code, said = pytest_in(tmp_path, *named, *arguments)
    assert code != 0
    assert words in said
    assert "Traceback" not in said


def test_two_workers_run_a_case_twice_or_not_at_all_or_a_known_failure_fails(pytest_in, tmp_path):
    named = ("--pyargs", "backbay_conformance", "--expectations", "known.toml")
    options = [f"--{name}={value}" for name, value in STATED.items()]
    chosen = ("-k", "infinity_becomes_nan or subnormal_numbers_are_flushed", "-n", "2")
    code, said = pytest_in(tmp_path, *named, *options, *chosen, lines=KNOWN)
    assert code == 0, said
    assert "level  1 contract   1 pass, 1 fail_value" in said
    assert "1 passed, 1 xfailed" in said


def test_a_repository_with_an_option_of_the_same_name_cannot_start(pytest_in, tmp_path):
    conftest = "def pytest_addoption(parser):\n    parser.addoption('--backend')\n"
    (tmp_path / "conftest.py").write_text(conftest)
    tests = "def test_own(request):\n    assert request.config.getoption('--backend') == 'mine'\n"
    code, said = pytest_in(tmp_path, "--backend", "mine", tests=tests, **STATED)
    assert code == 0, said


def test_torch_is_loaded_wherever_pytest_runs(pytest_in, tmp_path):
    tests = "import sys\n\n\ndef test_own():\n    assert 'torch' not in sys.modules\n"
    code, said = pytest_in(tmp_path, tests=tests, **STATED)
    assert code == 0, said
