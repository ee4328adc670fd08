"""A backend that turns on its judge, or is right only where it thinks that somebody looks."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

from backbay.proof import Workload, observe
from backbay_conformance import conform, suite
from backbay_conformance.answers import Given, HandedOn, Opening, Referring
from backbay_conformance.case import Case, Failed
from backbay_conformance.running import refer, run_case
from backbay_conformance.subject import Subject
from backbay_conformance.travelling import NotPortableError, packed, travelled, unpacked

RACE = Path(__file__).parents[2] / "backbay" / "tests" / "race"
CHEATS = runpy.run_path(str(RACE / "cheats.py"))["CHEATS"]
CPU = torch.device("cpu")


def subject_of(compiler, answers, **keywords):
    return Subject(compiler, name="tried", device=CPU, answers=answers, **keywords)


def graph_as_it_is(graph_module, example_inputs):
    return graph_module.forward


def sevens(graph_module, example_inputs):
    return lambda *args: tuple(torch.full_like(x, 7.0) for x in graph_module(*args))


def judged(run, compiler):
    """Run a case in this process, as if it were two; return what its judge says."""
    case = Case(id="contract/tried", run=run)
    referring = Referring(compiles=False)
    refer(case, subject_of(graph_as_it_is, referring))
    answers = HandedOn([referring.openings[0]])
    result = run_case(case, subject_of(compiler, answers))
    referring.judge(answers.given, answers.tensors, whole=result.status in {"pass", "vacuous"})
    return result.status


def sine_agrees(subject):
    subject.agrees(lambda x: x.sin(), torch.randn(3, 4))


def sine_is_near(subject):
    x = torch.randn(3, 4)
    subject.near(subject.compile(lambda x: x.sin())(x), x.sin())


def sine_is_the_same(subject):
    x = torch.randn(3, 4)
    got = subject.compile(lambda x: x.sin())(x)
    subject.same(got, x.sin(), status="fail_behaviour", what="sine")


@pytest.mark.parametrize("run", [sine_agrees, sine_is_near, sine_is_the_same])
def test_what_is_handed_on_is_not_judged(run):
    assert judged(run, lambda gm, _: lambda *args: gm(*args)) in {"pass", "vacuous"}
    with pytest.raises(Failed) as failed:
        judged(run, sevens)
    assert failed.value.status in {"fail_value", "fail_behaviour"}


def test_what_is_not_handed_on_counts_as_right():
    def silent(subject):
        if isinstance(subject.answers, Referring):
            sine_is_near(subject)
        subject.compile(lambda x: x + 1)(torch.ones(2))

    with pytest.raises(Failed, match="0 of 1 results"):
        judged(silent, graph_as_it_is)


def test_who_runs_a_case_is_told_the_golden():
    seen = []

    def looks(subject):
        golden = subject.golden(Workload(torch.nn.Tanh(), (torch.randn(3),)), train=False)
        seen.append(golden)

    judged(looks, graph_as_it_is)
    assert not hasattr(seen[-1], "eager")
    assert not hasattr(seen[-1], "truth")


def test_how_the_judge_ended_is_lost():
    answers = HandedOn([[Opening(ended="eager_unstable", reason="it scatters")]])
    result = run_case(Case(id="contract/tried", run=sine_agrees), subject_of(sevens, answers))
    assert (result.status, result.reason) == ("eager_unstable", "it scatters")


def test_values_are_lost_on_their_way():
    x = torch.randn(3, 4)
    sparse = x.relu().to_sparse()
    value = {"a": [x, None, 2, 1.5, True, "text", complex(1, 2)], 3: (sparse, float("inf"))}
    got = travelled(value)
    assert torch.equal(got["a"][0], x)
    assert got["a"][1:] == (None, 2, 1.5, True, "text", 1 + 2j)
    assert torch.equal(got[3][0].to_dense(), sparse.to_dense())
    assert got[3][1] == float("inf")
    workload = Workload(torch.nn.Linear(4, 2), (x,))
    outcome = observe(workload.model, workload, train=True)
    again = travelled(outcome)
    assert again.gradients.keys() == outcome.gradients.keys()
    assert again.parameters == outcome.parameters
    assert torch.equal(again.tensors["output"], outcome.tensors["output"])
    with pytest.raises(NotPortableError):
        packed(torch.nested.nested_tensor([x, x]), {})


@pytest.mark.parametrize(
    "forged",
    [
        None,
        7,
        [],
        ["tensor"],
        ["tensor", "0", "nowhere"],
        ["tensor", "9", "cpu"],
        ["pickle", "x"],
        ["plain", [1]],
        ["outcome", {}],
        ["outcome", None],
        ["tuple", 3],
        ["dict", [["plain"]]],
    ],
)
def test_what_is_forged_ends_the_judge(forged):
    referring = Referring(compiles=False)
    sine_is_near(subject_of(graph_as_it_is, referring))
    given = [Given(sample=0, value=forged)]
    with pytest.raises(Failed, match="can't be read"):
        referring.judge(given, {"0": torch.ones(1)}, whole=True)


def test_what_is_nested_without_end_ends_the_judge():
    value = ["plain", None]
    for _ in range(5000):
        value = ["tuple", [value]]
    with pytest.raises(Exception, match="too deeply"):
        unpacked(value, {})


def test_what_only_makes_sense_compiled_is_not_asked():
    """Uncompiled, the case ends early: then Dynamo alone is what it is run with."""

    def counts(subject):
        x = torch.randn(3)
        got = subject.compile(lambda x: x.sin())(x)
        if not subject.graphs:
            raise OtherwiseError
        subject.near(got, x.sin())

    class OtherwiseError(Exception):
        pass

    case = Case(id="contract/tried", run=counts)
    uncompiled, compiled = Referring(compiles=False), Referring(compiles=True)
    assert refer(case, subject_of(graph_as_it_is, uncompiled))
    assert not refer(case, subject_of(graph_as_it_is, compiled))
    assert (uncompiled.asked, compiled.asked) == (0, 1)


HOSTILE = [f"{RACE / 'hostile.py'}:{x}" for x in ("replaces_the_judge", "replaces_what_is_noted")]
WHERE = (
    "mutation/change_of_an_input_is_dropped",
    "aliasing/result_is_the_next_input",
    "aliasing/view_of_an_input_is_a_copy",
    "calls/many_calls_drift",
    "calls/what_the_caller_writes_to_a_result_comes_back",
    "calls/two_modules_of_one_class_share_weights",
    "capture/break_in_the_graph_loses_a_value",
    "randomness/state_of_the_generator_stays_where_it_was",
    "state/call_leaves_state_changed",
    "state/memory_of_results_is_never_freed",
    "state/two_threads_disturb_each_other",
)
"""Cases of level contract, in one of which each cheat is found out."""


@pytest.fixture(scope="module")
def asked():
    """Each of these cases, with what its results are held against."""
    known = suite.collected("cpu", [1])
    found = []
    for case in (known[f"contract/{x}"] for x in WHERE):
        referring = Referring(compiles=False)
        if refer(case, subject_of(graph_as_it_is, referring)):
            referring = Referring(compiles=True)
            refer(case, subject_of(graph_as_it_is, referring))
        found.append((case, referring))
    return found


@pytest.fixture
def _nothing_leaks():
    yield
    torch.set_default_dtype(torch.float32)
    while _get_current_dispatch_mode_stack():
        _pop_mode()


def statuses(asked, compiler, **keywords):
    for case, referring in asked:
        answers = HandedOn([referring.openings[0]])
        status = run_case(case, subject_of(compiler, answers, **keywords)).status
        try:
            referring.judge(answers.given, answers.tensors, whole=status == "pass")
        except Failed as failed:
            status = failed.status
        yield status


@pytest.mark.slow
@pytest.mark.usefixtures("_nothing_leaks")
@pytest.mark.parametrize("name", sorted(CHEATS.keys() - {"wrong_after_call_100"}))
def test_a_cheat_is_right(asked, name):
    assert any(x.startswith("fail") for x in statuses(asked, CHEATS[name])), name


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_who_is_honest_is_wrong(asked, name):
    compiler = torch._dynamo.lookup_backend(name)
    got = list(statuses(asked, compiler, runs_graphs_as_they_are=True))
    assert got == ["pass"] * len(WHERE)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", HOSTILE)
def test_who_replaces_the_judge_in_its_process_is_right(name):
    only = ("contract/values/negative_zero*",)
    (result,) = conform(name, device="cpu", workers=1, only=only).results
    assert result.status.startswith("fail"), result


SLOW = """
import time
from pathlib import Path

def compiler(graph_module, example_inputs):
    def call(*args):
        if graph_module.graph.find_nodes(op="call_method", target="cumsum"):
            Path(__file__).with_name("reached").touch()
            time.sleep(600)
        return graph_module(*args)
    return call
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing(tmp_path, number, code):
    (tmp_path / "slow.py").write_text(SLOW)
    statement, temporary = tmp_path / "statement.json", tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "backbay", "conform", "slow.py:compiler", "--device", "cpu"]
    command += ["--case", "contract/values/negative_zero*", "--workers", "1"]
    command += ["--case", "contract/state/two_runs_differ", "--json", str(statement)]
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    try:
        watched = psutil.Process(process.pid)
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not (tmp_path / "reached").exists():
            time.sleep(0.1)
        assert list(temporary.glob("backbay-conform-*/*"))
        below = watched.children(recursive=True)
        process.send_signal(number)
        assert process.wait(60) == code
    finally:
        process.kill()
    made = json.loads(statement.read_text())
    assert made["partial"]
    assert [x["id"] for x in made["results"]] in (
        [],
        ["contract/values/negative_zero_is_lost"],
    )
    assert not any(x.is_running() and x.status() != "zombie" for x in below)
    assert not list(temporary.glob("backbay-*"))
