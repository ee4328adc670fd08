"""A backend that turns on its judge, or is right only where it thinks that somebody looks."""

import runpy
from pathlib import Path

import pytest
import torch

from backbay.proof import Workload, observe
from backbay_conformance import conform
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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", HOSTILE)
def test_who_replaces_the_judge_in_its_process_is_right(name):
    statement = conform(name, device="cpu", workers=1, only=("contract/values/negative_zero*",))
    assert [x.status for x in statement.results] != ["pass"], statement.results
    assert not statement.passed
