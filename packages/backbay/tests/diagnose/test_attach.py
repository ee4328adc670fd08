"""A loop of the user's own is looked at, runs as it would without, and is let go."""

import logging
import threading
from pathlib import Path

import pytest
import torch
from torch._C._dynamo.eval_frame import set_guard_complete_hook

from backbay import diagnose
from backbay.diagnose import loop
from backbay.diagnose.attaching import _UNTRIED
from backbay.errors import InputError


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """Dynamo knows nothing before and after, and the limits of the machine are not kept."""
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(model, **settings):
    return torch.compile(model, backend="eager", **settings)


def looked_at(models, name, *, inputs=None, steps=1, rounds=12):
    """Call a model of models.py in a loop, and return what was found."""
    model, args = getattr(models, name)()
    call = compiled(model)
    with diagnose.attach(name, steps=steps) as attached, torch.no_grad():
        for number in range(rounds):
            call(*(args if inputs is None else (inputs(number),)))
    return attached.diagnosis


def hook():
    """Return torch's hook, which can only be seen by setting it."""
    found = set_guard_complete_hook(None)
    set_guard_complete_hook(found)
    return found


def test_a_break_in_a_loop_is_found_with_its_line_and_why_nothing_was_tried(models, line):
    told = looked_at(models, "reading")
    found = told.findings[0]
    assert (found.code, found.line) == ("BB102", line("scale = h.abs().max().item()"))
    (trial,) = found.trials
    assert trial.remedy == "torch._dynamo.config.capture_scalar_outputs = True"
    assert (trial.status, trial.sentence) == ("not_tried", _UNTRIED)
    assert told.sentence.startswith("BB102: ")
    assert [x.graphs for x in told.explanation.calls][:3] == [2, 0, 0]


def test_a_print_that_leaves_nothing_compiled_is_found_though_no_step_is_seen(models, line):
    told = looked_at(models, "printing")
    assert [x.code for x in told.findings] == ["BB105", "BB106"]
    assert told.findings[0].line == line('print("a layer is done")')
    assert told.inside is None
    assert "no kernels were timed: the loop ended after 1 step" in told.notes


def test_calls_of_another_thread_are_no_steps(models):
    model, args = models.varying()
    call = compiled(model)
    call(*args)
    with diagnose.attach(steps=1) as attached:
        for _ in range(3):
            other = threading.Thread(target=call, args=args)
            other.start()
            other.join()
    with pytest.raises(InputError, match="nothing was compiled: no function"):
        _ = attached.diagnosis


def test_a_batch_that_changes_is_the_loops_own(models):
    told = looked_at(models, "varying", inputs=lambda n: torch.randn(4 + n, 8))
    found = told.findings[0]
    assert found.code == "BB205"
    assert "x's dimension 0" in found.message
    assert not found.supposed
    assert told.explanation.calls[1].recompiles


def test_settings_are_what_the_loop_has(models):
    torch.manual_seed(7)
    settings = looked_at(models, "clean").settings
    assert (settings.workload, settings.arm, settings.mode) == ("clean", "eager", "infer")
    assert (settings.dtype, settings.device, settings.seed) == ("float32", "cpu", 7)


def test_a_loop_that_trains_is_said_to_train_and_what_is_not_compiled_is_in_its_step(models):
    model, (x,) = models.varying()
    call = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with diagnose.attach(steps=2) as attached:
        for _ in range(12):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(call(x), x).backward()
            optimizer.step()
    told = attached.diagnosis
    assert told.settings.mode == "train"
    outside = {x.name for x in told.inside.outside}
    assert {"aten::mse_loss", "Optimizer.step#SGD.step"} <= outside
    assert told.inside.step.wall_ms > 0
    assert "a step is from one call of Varying to the next" in told.notes


def test_a_step_is_a_call_of_what_is_called_first_however_many_parts_it_has():
    @compiled
    def first(x):
        torch._dynamo.graph_break()
        return x.sin()

    @compiled
    def second(x):
        return x.cos()

    with diagnose.attach(steps=1) as attached:
        for _ in range(3):
            x = first(torch.ones(3))
            second(second(x))
    calls = attached.diagnosis.explanation.calls
    assert [x.name for x in calls] == ["step 0", "step 1", "step 2"]
    assert [x.graphs for x in calls] == [2, 0, 0]


def test_whoever_says_where_steps_begin_is_believed():
    call = compiled(lambda x: x.sin())
    with diagnose.attach(steps=1) as attached:
        for _ in range(3):
            for _ in range(4):
                call(torch.ones(3))
            attached.step()
    assert len(attached.diagnosis.explanation.calls) == 4
    assert "a step is from one call of step() to the next" in attached.diagnosis.notes


def test_it_is_told_as_soon_as_enough_steps_are_over_and_then_nothing_is_watched():
    from torch._inductor import config

    call, told, x = compiled(lambda x: x.sin()), [], torch.ones(3)
    handlers = list(logging.getLogger("torch.__trace").handlers)
    cached = config.fx_graph_cache
    with diagnose.attach(steps=2, made=told.append) as attached:
        assert hook() is not None
        assert not config.fx_graph_cache
        with pytest.raises(InputError, match="when enough steps are over"):
            attached.diagnosis  # noqa: B018 (it raises)
        rounds = 0
        while not told:
            rounds += 1
            call(x)
        assert hook() is None
        assert config.fx_graph_cache == cached
        assert config.pre_grad_custom_pass is None
        assert list(logging.getLogger("torch.__trace").handlers) == handlers
        first = attached.diagnosis
        call(torch.ones(4))
    # One that compiles, two that don't, two that are timed, two that are profiled, and the end.
    assert rounds == 8
    assert told == [attached]
    assert attached.diagnosis is first
    assert len(first.explanation.graphs) == 1


def test_a_hook_that_was_there_is_called_and_comes_back():
    met, call = [], compiled(lambda x: x.sin())

    def theirs(fits):
        met.append(fits)
        return fits

    set_guard_complete_hook(theirs)
    try:
        with diagnose.attach():
            for _ in range(3):
                call(torch.ones(3))
        assert hook() is theirs
    finally:
        set_guard_complete_hook(None)
    assert met == [True, True]


def test_what_a_loop_raises_is_raised_and_noted():
    call = compiled(lambda x: x.sin())

    def rounds():
        for number in range(3):
            call(torch.ones(3))
            1 / (1 - number)

    with pytest.raises(ZeroDivisionError), diagnose.attach() as attached:
        rounds()
    assert any("ZeroDivisionError" in x for x in attached.diagnosis.notes)
    assert attached.diagnosis.explanation.problem is None


def test_what_a_backend_raises_is_the_first_finding():
    def broken(_graph, _inputs):
        raise ValueError("no such thing")

    call = torch.compile(lambda x: x.sin(), backend=broken)
    with pytest.raises(Exception, match="no such thing"), diagnose.attach() as attached:
        call(torch.ones(3))
    found = attached.diagnosis.findings[0]
    assert found.code == "BB602"
    assert "no such thing" in found.message


def test_where_nothing_is_compiled_it_says_so():
    with diagnose.attach() as attached:
        torch.ones(3).sin()
    with pytest.raises(InputError, match="nothing was compiled"):
        attached.diagnosis  # noqa: B018 (it raises)


def test_what_was_compiled_before_is_told_from_nothing():
    call = compiled(lambda x: x.sin())
    call(torch.ones(3))
    with diagnose.attach() as attached:
        call(torch.ones(3))
    with pytest.raises(InputError, match="had been compiled before"):
        attached.diagnosis  # noqa: B018 (it raises)


def test_a_loop_goes_on_where_watching_it_fails(monkeypatch):
    def failing(_device):
        raise RuntimeError("no profiler here")

    monkeypatch.setattr(loop, "Recording", failing)
    call = compiled(lambda x: x.sin())
    with diagnose.attach(steps=1) as attached:
        given = [call(torch.ones(3)) for _ in range(9)]
    assert len(given) == 9
    assert hook() is None
    assert any("no profiler here" in x for x in attached.diagnosis.notes)


def test_steps_must_be_positive():
    with (
        pytest.raises(InputError, match="steps must be 1 or more, not 0"),
        diagnose.attach(steps=0),
    ):
        pass


def test_the_loops_modes_do_not_hold_where_it_is_diagnosed():
    call = compiled(lambda x: x.sin())
    with torch.inference_mode(), diagnose.attach(steps=1) as attached:
        for _ in range(9):
            call(torch.ones(3))
    assert attached.diagnosis.inside is not None


@pytest.mark.slow
def test_kernels_of_a_loop_have_the_users_lines_and_a_time(models):
    model, (x,) = models.varying()
    call = torch.compile(model)
    with diagnose.attach(steps=3) as attached:
        for _ in range(16):
            call(x).sum().backward()
    told = attached.diagnosis
    assert told.settings.arm == "inductor"
    assert [x.direction for x in told.inside.graphs] == ["forward", "backward"]
    kernels = [k for g in told.inside.graphs for k in g.kernels]
    assert all(k.ms > 0 for k in kernels)
    file = Path(models.__file__).name
    assert all(file in y for k in kernels for y in k.lines)
    assert {y.target for y in told.explanation.graphs[0].nodes} >= {"linear", "relu"}
    assert {"Dynamo", "lowering"} <= set(told.inside.phases_s)
    assert told.inside.compile_s > 0
