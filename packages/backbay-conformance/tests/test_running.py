"""One case: its status, what counts as having run, and to whom a failure is charged."""

import functools

import pytest
import torch

from backbay import compile_log
from backbay.reference_backends import references_below
from backbay.registry import Traits
from backbay_conformance.attribution import attributed
from backbay_conformance.case import Case, Collection, EagerUnstable, Failed, NotRunnable
from backbay_conformance.record import FAILURES
from backbay_conformance.running import run_case
from backbay_conformance.subject import Subject
from backbay_conformance.watching import is_graph_itself


def interpreted(graph_module, example_inputs, **options):
    """Compile to something of its own, which is right."""

    def run(*args):
        return torch.fx.Interpreter(graph_module).run(*args)

    return run


def doubled(graph_module, example_inputs):
    """Multiply the first result by two."""

    def run(*args):
        first, *rest = graph_module(*args)
        return (first * 2, *rest)

    return run


def subject_of(compiler, **keywords):
    return Subject(compiler, name="tried", device=torch.device("cpu"), **keywords)


def case_of(run, **keywords):
    return Case(id="contract/tried", run=run, **keywords)


def sine(subject):
    subject.agrees(torch.sin, torch.randn(5))


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (sine, "pass"),
        (lambda s: s.agrees(torch.sin, torch.randn(5), train=True), "pass"),
        (lambda s: s.compile(torch.sin)(torch.ones(2)) and None, "fail_error"),  # ambiguous bool
        (lambda _: 1 / 0, "fail_error"),
        (lambda _: (_ for _ in ()).throw(Failed("fail_behaviour", "why")), "fail_behaviour"),
        (lambda _: (_ for _ in ()).throw(EagerUnstable("why")), "eager_unstable"),
        (lambda _: (_ for _ in ()).throw(NotRunnable("why")), "not_runnable"),
        (lambda _: None, "vacuous"),
    ],
)
def test_a_case_has_another_status(run, status):
    assert run_case(case_of(run), subject_of(interpreted)).status == status


def test_a_case_that_compiles_nothing_passes_where_it_says_so():
    assert run_case(case_of(lambda _: None, compiles=False), subject_of(doubled)).status == "pass"


@pytest.mark.parametrize(
    ("function", "train", "status"),
    [
        (torch.sin, False, "fail_value"),
        (lambda x: (x.sin(), x.add_(1))[0], False, "fail_value"),
        (lambda x: x.unsqueeze(0), False, "fail_metadata"),  # a copy, and eager's is a view
    ],
)
def test_a_wrong_result_has_another_status(function, train, status):
    def run(subject):
        subject.agrees(function, torch.randn(5) + 3, train=train)

    result = run_case(case_of(run), subject_of(doubled))
    assert (result.status, bool(result.reason)) == (status, True)


def test_a_detached_result_is_called_right_in_training():
    def detaching(graph_module, example_inputs):
        return lambda *args: [x.detach() for x in graph_module(*args)]

    def run(subject):
        subject.agrees(torch.sin, torch.randn(5), train=True)

    assert run_case(case_of(run), subject_of(detaching)).status == "fail_grad"


def test_a_dropped_mutation_is_called_right():
    def forgetful(graph_module, example_inputs):
        return lambda *args: graph_module(*(x.clone() for x in args))

    def run(subject):
        subject.agrees(lambda x: x.add_(1).sum(), torch.randn(5))

    assert run_case(case_of(run), subject_of(forgetful)).status == "fail_mutation"


@pytest.mark.parametrize(
    "give_back",
    [
        lambda gm, _: gm,
        lambda gm, _: gm.forward,
        lambda gm, _: gm.__call__,
        lambda gm, _: functools.partial(gm.forward),
        lambda gm, _: torch.fx.Interpreter(gm).run,
    ],
)
def test_a_silent_fall_back_to_eager_passes(give_back):
    result = run_case(case_of(sine), subject_of(give_back))
    assert result.status == "vacuous"
    assert "left every graph to eager" in result.reason
    debug = subject_of(give_back, runs_graphs_as_they_are=True)
    assert run_case(case_of(sine), debug).status == "pass"


def test_a_graph_that_was_rewritten_in_place_counts_as_left_alone():
    def rewriting(graph_module, example_inputs):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.sin):
            node.update_kwarg("out", None)
        graph_module.recompile()
        return graph_module.forward

    assert run_case(case_of(sine), subject_of(rewriting)).status == "pass"


def test_what_the_compile_log_says_fell_back_passes():
    def compiler(graph_module, example_inputs):
        record = compile_log.Record(
            asked="tried", ran="inductor", why="no such luck", fell_back=True
        )
        compile_log.note(record)
        return interpreted(graph_module, example_inputs)

    result = run_case(case_of(sine), subject_of(compiler))
    assert (result.status, "inductor" in result.reason) == ("vacuous", True)


def test_a_graph_that_is_compiled_and_never_run_passes():
    def run(subject):
        subject.compile(torch.sin)(torch.ones(2))
        for graph in subject.graphs:
            graph.runs = 0

    assert run_case(case_of(run), subject_of(interpreted)).status == "vacuous"


def test_what_runs_the_graph_itself_is_not_recognised():
    graph_module = torch.fx.symbolic_trace(lambda x: x.sin())
    other = torch.fx.symbolic_trace(lambda x: x.cos())
    assert is_graph_itself(graph_module.forward, graph_module)
    assert not is_graph_itself(other.forward, graph_module)
    assert not is_graph_itself(lambda *args: graph_module(*args), graph_module)
    assert not is_graph_itself(None, graph_module)


@pytest.mark.parametrize(
    ("traits", "needs", "status"),
    [
        (Traits(training=False), {"training"}, "unsupported"),
        (Traits(training=None), {"training"}, "pass"),
        (Traits(dtypes=("float32",)), {"bfloat16"}, "unsupported"),
        (Traits(dtypes=("float32",)), {"float32"}, "pass"),
        (Traits(dynamic_shapes=True), {"dynamic_shapes"}, "pass"),
    ],
)
def test_what_a_backend_declares_is_not_heeded(traits, needs, status):
    case = case_of(sine, needs=frozenset(needs))
    assert run_case(case, subject_of(interpreted, traits=traits)).status == status


def test_global_state_leaks_from_one_case_into_the_next():
    def leaking(subject):
        sine(subject)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)  # noqa: FBT003

    run_case(case_of(leaking), subject_of(interpreted))
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32
    assert not torch.are_deterministic_algorithms_enabled()


def raising(name):
    def compiler(graph_module, example_inputs):
        raise RuntimeError(name)

    return compiler


@pytest.mark.parametrize(
    ("bad", "status", "below"),
    [
        ((), "fail_error", {"eager": "pass", "aot_eager": "pass"}),
        (("aot_eager",), "upstream", {"eager": "pass", "aot_eager": "fail_error"}),
        (("eager", "aot_eager"), "upstream", {"eager": "fail_error"}),
    ],
)
def test_a_failure_is_charged_to_another_backend(bad, status, below):
    def run_on(reference):
        return run_case(case, subject_of(raising(reference) if reference in bad else interpreted))

    case = case_of(sine)
    result = run_case(case, subject_of(raising("tried")))
    assert result.status in FAILURES
    found = attributed(result, ("eager", "aot_eager"), run_on)
    assert (found.status, found.reference_backends) == (status, below)


def test_a_reference_that_fails_otherwise_takes_the_blame():
    case = case_of(sine)
    result = run_case(case, subject_of(raising("tried")))
    found = attributed(result, ("eager",), lambda _: run_case(case, subject_of(doubled)))
    assert (found.status, found.reference_backends) == ("fail_error", {"eager": "fail_value"})


def test_what_dynamo_captures_for_nobody_is_held_against_a_backend():
    case = case_of(lambda _: None)
    result = run_case(case, subject_of(interpreted))
    found = attributed(
        result, ("eager", "aot_eager"), lambda _: run_case(case, subject_of(interpreted))
    )
    assert found.status == "not_runnable"


def test_a_backend_stands_on_other_references():
    assert references_below("eager") == ()
    assert references_below("aot_eager_decomp_partition") == ("eager", "aot_eager")
    assert references_below("mine")[-1] == "aot_eager_decomp_partition"
    assert references_below("mine", ["inductor"])[-1] == "inductor"
    assert references_below("mine", ["eager"])[-1] == "aot_eager_decomp_partition"


def test_two_cases_share_a_name():
    level = Collection("contract")
    level.case()(sine)
    with pytest.raises(ValueError, match="contract/sine"):
        level.case()(sine)


def test_a_parametrized_case_gets_another_name():
    level, got = Collection("context", "themes"), []

    @level.parametrized(["one", "two"], compiles=False)
    def wrong(subject, name):
        got.append(name)

    assert [x.id for x in level] == ["context/themes/wrong/one", "context/themes/wrong/two"]
    for case in level:
        run_case(case, subject_of(interpreted))
    assert got == ["one", "two"]


def test_what_dynamo_captures_for_nobody_is_held_against_dynamo():
    case = case_of(lambda _: None)
    result = run_case(case, subject_of(interpreted))
    assert result.status == "vacuous"
    assert attributed(result, (), pytest.fail).status == "not_runnable"


@pytest.mark.parametrize(
    ("got", "wanted", "status"),
    [
        (torch.ones(2), torch.ones(2) * 2, "fail_value"),
        (torch.ones(2), torch.ones(3), "fail_metadata"),
        (torch.ones(2), torch.ones(2).double(), "fail_metadata"),
        ([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.ones(3)], "fail_metadata"),
        ([torch.ones(2) * 2, torch.ones(2)], [torch.ones(2), torch.ones(3)], "fail_value"),
        ([torch.ones(1), []], [torch.zeros(1), [1]], "fail_metadata"),
        ({"a": torch.ones(2)}, {"a": torch.ones(3)}, "fail_metadata"),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, "fail_value"),
        (1.0, 2.0, "fail_value"),
        (1.0, torch.ones(()), "fail_metadata"),
        ([torch.ones(2)], torch.ones(2), "fail_metadata"),
        ("an object", torch.ones(2), "fail_metadata"),
    ],
)
def test_another_kind_of_tensor_is_called_another_value(got, wanted, status):
    subject = Subject(lambda gm, _: gm, name="x", device=torch.device("cpu"))
    with pytest.raises(Failed) as failed:
        subject.near(got, wanted)
    assert failed.value.status == status


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (1.0, torch.ones(1)),
        (torch.ones(1), 1.0),
        (1.0, torch.ones(2)),
        (torch.tensor([complex(0.0, 1.0)]), torch.tensor([complex(-0.0, 1.0)])),
    ],
)
def test_what_is_no_tensor_or_has_another_sign_is_the_same_to_the_bit(got, wanted):
    subject = Subject(lambda gm, _: gm, name="x", device=torch.device("cpu"))
    with pytest.raises(Failed, match="differs") as failed:
        subject.same(got, wanted, status="fail_value", what="it differs")
    assert failed.value.status == "fail_value"
    for one in (got, wanted):
        subject.same(one, one, status="fail_value", what="it differs")


def test_complex_nan_is_not_the_same_as_itself():
    nan = torch.tensor([complex(float("nan"), 1.0), complex(2.0, float("nan"))])
    subject = Subject(lambda gm, _: gm, name="x", device=torch.device("cpu"))
    subject.same(nan, nan.clone(), status="fail_value", what="it differs")
    with pytest.raises(Failed):
        subject.same(nan, nan.conj(), status="fail_value", what="it differs")
