"""A seeded defect is found first, with its line, and its remedy is tried and confirmed."""

from pathlib import Path

import msgspec
import pytest
import torch

import backbay
from backbay import diagnose
from backbay.diagnose import handler, trying
from backbay.diagnose.requests import Try
from backbay.diagnose.subject import Subject
from backbay.errors import InputError, ProofImpossible
from backbay.explain import failing
from backbay.session import Lost


def first(diagnosis):
    """Return the first finding, and the first thing that was tried for it."""
    found = diagnosis.findings[0]
    return found, found.trials[0]


def holds(trial, told):
    """Whether a trial is confirmed; by its counts alone where others keep the cores busy."""
    busy = any("cores busy" in x for x in told.notes)
    return trial.status == "confirmed" or (busy and trial.status == "worse")


def test_a_print_in_a_loop_is_the_first_finding_and_goes_with_a_setting(diagnosed, line):
    told = diagnosed("printing")
    found, trial = first(told)
    assert found.code == "BB105"
    assert found.line == line('print("a layer is done")')
    assert trial.remedy == "torch._dynamo.config.reorderable_logging_functions = {print}"
    assert holds(trial, told)
    assert (trial.before.graphs, trial.before.breaks) == (0, 1)
    assert (trial.after.graphs, trial.after.breaks) == (1, 0)
    assert told.sentence.startswith("BB105: print can't be compiled")
    # That nothing is compiled is what it leads to.
    assert [x.code for x in told.findings[:2]] == ["BB105", "BB106"]


def test_an_item_is_the_first_finding_and_goes_with_a_setting(diagnosed, line):
    told = diagnosed("reading")
    found, trial = first(told)
    assert found.code == "BB102"
    assert found.line == line("scale = h.abs().max().item()")
    assert trial.remedy == "torch._dynamo.config.capture_scalar_outputs = True"
    assert holds(trial, told)
    assert (trial.before.breaks, trial.after.breaks) == (1, 0)
    assert trial.sentence.startswith("1 graph break before, 0 after; the step is")
    assert "proven" not in trial.sentence


def test_the_two_sides_of_a_trial_are_taken_for_each_other(diagnosed, monkeypatch):
    def seconds(subject, *, warmups, calls, steady):
        return calls * (1e-3 if subject.remedy.settings else 2e-3)

    monkeypatch.setattr(Subject, "seconds", seconds)
    found, trial = first(diagnosed("reading"))
    assert trial.speedup == pytest.approx(2.0)
    assert (trial.before.step_ms, trial.after.step_ms) == pytest.approx((2.0, 1.0))
    assert found.saved_s == pytest.approx(1.0)


def test_what_is_not_proven_is_said(diagnosed, monkeypatch):
    told = diagnosed("drawing")
    _, trial = first(told)
    unproven = "its result was not proven right: "
    assert trial.sentence.endswith(f"{unproven}the model draws random numbers")
    assert trial.sentence in told.sentence

    def impossible(*_, **__):
        raise ProofImpossible("there is no float64")

    monkeypatch.setattr(trying, "make_golden", impossible)
    told = diagnosed("reading")
    _, trial = first(told)
    assert holds(trial, told)
    assert trial.after.breaks == 0
    assert trial.sentence.endswith(f"{unproven}there is no float64")


def test_a_remedy_with_which_the_result_is_wrong_or_an_error_is_neither_timed_nor_confirmed(
    diagnosed,
):
    def reads(graph):
        return any("item" in str(x.target) for x in graph.graph.nodes)

    def wrong(graph, _):
        return lambda *args: tuple(x + 1 for x in graph(*args)) if reads(graph) else graph(*args)

    def failing(graph, _):
        if reads(graph):
            raise ValueError("no values, please")
        return graph

    _, trial = first(diagnosed("reading", backend=wrong))
    assert trial.status == "wrong"
    assert trial.sentence.startswith("it changes the result: ")
    assert trial.before is None
    _, trial = first(diagnosed("reading", backend=failing))
    assert trial.status == "failed"
    assert trial.sentence.startswith("it raises: ")
    assert "no values, please" in trial.sentence


def test_a_growing_cache_is_the_first_finding_and_compiled_once_where_sizes_are_dynamic(
    diagnosed, line
):
    found, trial = first(diagnosed("caching"))
    assert found.code == "BB205"
    assert found.line == line("self.seen = torch.cat([self.seen, x])")
    assert "self.seen's dimension 0" in found.message
    assert not found.supposed
    assert "begin with a size of at least 2" in found.fixes[0]
    sources = "L['self'].seen, L['x']"
    assert trial.remedy == f'torch.compiler.config.dynamic_sources = "{sources}"'
    assert trial.after.recompiles < trial.before.recompiles
    assert torch.compiler.config.dynamic_sources == ""


def test_what_runs_uncompiled_has_the_lines_that_call_it(diagnosed, line):
    told = diagnosed("printing")
    names = {x.name: x.lines for x in told.inside.outside}
    called = line("x = layer(x).relu()")
    assert names["aten::linear"] == names["aten::relu"] == (called,)


def test_a_number_that_changes_is_the_first_finding_with_its_line(diagnosed, line):
    found, trial = first(diagnosed("counting"))
    assert found.code == "BB202"
    assert found.line == line("self.calls += 1")
    assert trial.remedy == "torch._dynamo.config.allow_unspec_int_on_nn_module = True"
    assert trial.after.recompiles < trial.before.recompiles


def test_a_batch_that_varies_is_the_first_finding_and_is_marked(diagnosed, line):
    told = diagnosed("varying", further=[torch.randn(5, 8), torch.randn(6, 8)])
    found, trial = first(told)
    assert found.code == "BB205"
    assert found.line == line("return self.lift(x).relu()")
    assert "x's dimension 0" in found.message
    assert not found.supposed
    assert trial.remedy == "torch._dynamo.mark_dynamic(x, 0)"
    assert (trial.before.recompiles, trial.after.recompiles) == (1, 0)


def test_a_batch_that_was_only_made_up_is_nothing_to_fix(diagnosed):
    told = diagnosed("varying", budget_s=0)
    assert [(x.code, x.supposed) for x in told.findings] == [("BB205", True)]
    assert told.sentence == "nothing was found that has to be fixed"


def test_what_only_its_author_can_change_is_not_tried_and_says_so(diagnosed):
    told = diagnosed("branching", budget_s=0)
    found = next(x for x in told.findings if x.code == "BB103")
    assert [x.status for x in found.trials] == ["not_tried"]
    assert found.trials[0].sentence.startswith("only a change of the code removes it")
    assert found.trials[0].before is None


def test_what_does_not_fit_into_the_budget_is_not_tried_and_says_so(diagnosed):
    found = diagnosed("reading", budget_s=0).findings[0]
    assert [x.status for x in found.trials] == ["not_tried"]
    assert "--budget" in found.trials[0].sentence


def test_a_model_that_raises_is_explained_and_nothing_is_measured(diagnosed):
    told = diagnosed("raising")
    assert told.findings[0].code == "BB603"
    assert told.inside is None


def test_the_state_of_the_model_is_as_before(models):
    model, args = models.caching()
    told = diagnose.run(
        backbay.Workload(model, args),
        backend="eager",
        limits=diagnose.Limits(budget_s=600, timing_s=0.1),
    )
    assert told.findings[0].trials[0].after is not None
    assert model.seen.shape == (1, 8)


def test_its_findings_can_be_failed_on(diagnosed):
    told = diagnosed("reading", budget_s=0)
    assert [x.code for x in failing(told, ["BB1"])] == ["BB102"]


def test_json_is_read_back_as_it_was(diagnosed):
    told = diagnosed("reading", budget_s=0)
    read = msgspec.json.decode(msgspec.json.encode(told), type=diagnose.Diagnosis)
    assert read == told
    assert read.schema == "backbay.diagnose/1"


def test_a_process_that_dies_with_a_remedy_is_a_failed_trial(models, monkeypatch):
    class Dying(handler.DiagnoseHandler):
        def answer(self, request):
            if isinstance(request, Try):
                raise Lost("it crashed with signal 11")
            return super().answer(request)

    monkeypatch.setattr(handler, "DiagnoseHandler", Dying)
    model, args = models.reading()
    told = diagnose.run(
        backbay.Workload(model, args),
        backend="eager",
        limits=diagnose.Limits(budget_s=600, timing_s=0.1),
    )
    assert told.findings[0].trials[0].status == "failed"
    assert "signal 11" in told.findings[0].trials[0].sentence


def test_a_model_that_raises_while_it_is_measured_has_nothing_that_has_to_be_fixed(diagnosed):
    def tiring(graph_module, example_inputs):
        calls = 0

        def call(*args):
            nonlocal calls
            calls += 1
            if calls > 6:
                raise ValueError("too tired")
            return graph_module(*args)

        return call

    told = diagnosed("clean", backend=tiring)
    assert any("nothing was measured: ValueError: too tired" in x for x in told.notes)
    found = told.findings[0]
    assert (found.code, found.severity, found.message) == (
        "BB602",
        "error",
        "ValueError: too tired",
    )
    assert failing(told, ("BB602",))


def test_a_process_that_is_killed_leaves_its_folders(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import pathlib, tempfile\n"
        "import torch\n"
        "def adding():\n"
        "    pathlib.Path(__file__).with_name('where').write_text(tempfile.gettempdir())\n"
        "    return (lambda x: x + 1), (torch.ones(3),)\n"
    )
    limits = diagnose.Limits(budget_s=0.1, timing_s=0.1)
    diagnose.run(f"{tmp_path}/mine.py:adding", backend="eager", device="cpu", limits=limits)
    where = Path((tmp_path / "where").read_text())
    assert where.name.startswith("backbay-diagnose-")
    assert not where.exists()


@pytest.mark.parametrize("wrong", [{"backend": "inductr"}, {"dtype": "int3"}])
def test_what_does_not_exist_is_refused_before_anything_is_compiled(wrong):
    with pytest.raises(InputError):
        diagnose.run("decoder", **wrong)


def test_another_layout_is_tried_and_is_not_taken_for_a_wrong_result(diagnosed):
    told = diagnosed("convolving")
    found = next(x for x in told.findings if x.code == "BB704")
    assert "2 convolutions" in found.message
    assert found.trials[0].remedy == "model.to(memory_format=torch.channels_last)"
    assert found.trials[0].status in {"confirmed", "no_gain", "worse"}


def test_a_limit_that_was_reached_is_raised_and_all_versions_are_compiled(diagnosed):
    told = diagnosed("counting", further=[torch.randn(4, 8)] * 9)
    found = next(x for x in told.findings if x.code == "BB204")
    (trial,) = found.trials
    assert trial.remedy == "torch._dynamo.config.recompile_limit = 64"
    assert trial.before is not None, trial.sentence
    # It compiles more: what a limit keeps from running uncompiled is no gain in counts.
    assert trial.before.recompiles < trial.after.recompiles


def test_a_mark_is_not_left_on_the_users_own_tensor(models):
    model, args = models.varying()
    told = diagnose.run(
        backbay.Workload(model, args),
        backend="eager",
        limits=diagnose.Limits(budget_s=600, timing_s=0.1),
    )
    assert told.findings[0].trials[0].remedy == "torch._dynamo.mark_dynamic(x, 0)"
    assert not hasattr(args[0], "_dynamo_dynamic_indices")
