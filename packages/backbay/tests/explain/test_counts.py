"""Explain, race and verify count the same graph breaks."""

import pytest
import torch

from backbay import explain, race, verify
from backbay.proof import Workload
from backbay.race import slowness


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


def test_a_race_and_a_verification_say_the_number_that_an_explanation_has():
    assert explained(three) == 3
    report = race.run(Workload(three, X), arms=["aot_eager"], limits=race.Limits(timing_s=0.1))
    (row,) = [x for x in report.results if x.backend == "aot_eager"]
    assert row.breaks == 3, row
    assert any(x.startswith("3 graph breaks, where the model runs") for x in row.slow), row.slow
    proven = verify.run(Workload(three, X), backends=["aot_eager"], train=False)
    assert "infer: 3 graph breaks" in proven.results[0].notes
