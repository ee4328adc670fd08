"""Explain, race and verify count the same graph breaks."""

import logging
import threading
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo import utils

from backbay import explain, race, verify
from backbay.proof import Workload
from backbay.race import slowness
from backbay.reporting.breaks import BreakCounter


def helper(x):
    y = x.sin()
    print("in a helper")
    return y.cos()


def three(x):
    h = helper(x) * 2  # torch counts its break once for each function that it inlines
    n = h.sum().item()
    if h.sum() > 0:
        h = h * 2
    return h * n


def inlined(x):
    return helper(helper(x)) * 2


def looped(x):
    for _ in range(3):
        x = x.relu()
        print("in a loop")
    return x


def looped_inside(x):
    for _ in range(3):
        x = helper(x)
    return x


def whole(x):
    return x * 2


X = (torch.rand(4, 6),)


def explained(function):
    return len(explain.run(Workload(function, X), device="cpu", again=False).breaks)


@pytest.mark.parametrize(
    ("function", "breaks"), [(three, 3), (inlined, 1), (looped, 1), (looped_inside, 1), (whole, 0)]
)
def test_breaks_are_lines_of_the_model_wherever_they_are_counted(function, breaks):
    assert explained(function) == breaks
    torch.compiler.reset()
    slowness.forget()
    torch.compile(function, backend="eager")(*X)
    assert slowness.breaks() == breaks
    said = [x for x in slowness.reasons() if "graph break" in x]
    assert len(said) == bool(breaks)
    torch.compiler.reset()


def test_a_function_that_torch_gives_up_on_has_no_break():
    torch.compiler.reset()
    slowness.forget()
    call = torch.compile(lambda x, n: x * n, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2, specialize_float=True):
        for number in range(4):
            call(torch.ones(3), number + 0.5)
    assert slowness.breaks() == 0
    torch.compiler.reset()


LOGGER = logging.getLogger("torch._dynamo.symbolic_convert.__graph_breaks")
TEXT = "Graph break in user code at /home/me/model.py:3\nGraph Break Reason: odd\n"


def test_breaks_of_other_threads_are_not_counted():
    counter = BreakCounter()
    with counter.on():
        other = threading.Thread(target=LOGGER.debug, args=(TEXT,))
        other.start()
        other.join()
        assert not counter.breaks()
        LOGGER.debug(TEXT)
        LOGGER.debug("something else")
    assert [x.reason for x in counter.breaks()] == ["odd"]


def test_what_is_counted_is_shown_to_nobody_who_did_not_ask():
    shown: list[str] = []

    class Shows(logging.Handler):
        def emit(self, record):
            shown.append(record.getMessage())

    parent, handler = LOGGER.parent, Shows()
    before = LOGGER.level, LOGGER.propagate, LOGGER.handlers[:]
    parent.addHandler(handler)
    try:
        with BreakCounter().on():
            LOGGER.debug(TEXT)
        assert not shown
        assert (LOGGER.level, LOGGER.propagate, LOGGER.handlers) == before
    finally:
        parent.removeHandler(handler)


def test_a_line_that_has_been_told_once_is_counted_the_next_time_too():
    torch.compiler.reset()
    call = torch.compile(inlined, backend="eager", dynamic=False)
    for rows in (4, 5):
        counter = BreakCounter()
        with counter.on():
            call(torch.rand(rows, 6))
        assert len(counter.breaks()) == 1


def test_a_break_that_torch_logs_and_has_in_its_metrics_is_one(monkeypatch):
    failed = SimpleNamespace(
        compile_id=None,
        fail_type="Unsupported",
        fail_reason="odd, other words",
        fail_user_frame_filename="/home/me/model.py",
        fail_user_frame_lineno=9,
    )
    monkeypatch.setattr(utils, "get_compilation_metrics", lambda: [failed])
    counter = BreakCounter()
    assert [x.line for x in counter.breaks()] == ["/home/me/model.py:9"]
    with counter.on():
        LOGGER.debug(TEXT)
    assert [x.reason for x in counter.breaks()] == ["odd"]


def test_a_race_and_a_verification_say_the_number_that_an_explanation_has(judged_here):
    assert explained(three) == 3
    report = race.run(Workload(three, X), arms=["aot_eager"], limits=race.Limits(timing_s=0.1))
    (row,) = [x for x in report.results if x.backend == "aot_eager"]
    assert row.breaks == 3, row
    assert any(x.startswith("3 graph breaks, where the model runs") for x in row.slow), row.slow
    proven = verify.run(Workload(three, X), backends=["aot_eager"], train=False)
    assert "infer: 3 graph breaks" in proven.results[0].notes
