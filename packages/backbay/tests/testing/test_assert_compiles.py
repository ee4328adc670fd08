"""What a gate for a model catches, and what its message says."""

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch

from backbay.errors import InputError
from backbay.kit.backend import Backend
from backbay.kit.rewrites import rewrite_silu
from backbay.testing import NotAsExpected, assert_compiles


class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = torch.nn.Linear(6, 8)

    def forward(self, x):
        return torch.relu(self.lift(x))


class Printing(Whole):
    def forward(self, x):
        h = self.lift(x)
        print("in the middle")
        return torch.relu(h)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Gated(Whole):
    def forward(self, x, whole):
        h = self.lift(x)
        return h * h.sigmoid(), whole * whole.sigmoid()


class Eagerly(Backend):
    """SiLU, and nothing compiled after it."""

    passes = (rewrite_silu,)
    codegen = "eager"


X = torch.randn(4, 6)


def message(*args, **kwargs):
    with pytest.raises(AssertionError) as raised:
        assert_compiles(*args, **kwargs)
    return str(raised.value)


def line_of(code):
    for number, text in enumerate(Path(__file__).read_text().splitlines(), 1):
        if text.strip() == code:
            return f"test_assert_compiles.py:{number}: {code}"
    raise AssertionError(code)


def test_a_model_that_compiles_passes_and_is_left_as_it_was():
    model = Whole()
    before = [x.clone() for x in model.parameters()]
    assert_compiles(model, (X,), backend="aot_eager", graphs=1, breaks=0, recompiles=0)
    assert all(torch.equal(x, y) for x, y in zip(before, model.parameters(), strict=True))


def test_a_break_has_its_line_and_what_to_change():
    text = message(Printing(), (X,), backend="aot_eager")
    assert text.startswith("Printing does not compile as it is meant to:\n  1 graph break, and 0")
    assert line_of('print("in the middle")') in text
    assert "  BB101 print can't be compiled" in text
    assert "change: leave print out while it is compiled" in text
    assert_compiles(Printing(), (X,), backend="aot_eager", breaks=1, graphs=2)
    assert_compiles(Printing(), (X,), backend="aot_eager", breaks=None)


def test_the_number_of_graphs_is_exact():
    text = message(Printing(), (X,), backend="aot_eager", breaks=1, graphs=1)
    assert "2 graphs, and 1 expected" in text
    assert "forward" in text


def test_a_recompile_has_the_guard_that_failed():
    text = message(Counting(), (X,), backend="aot_eager")
    assert "1 recompile, and 0 allowed" in text
    assert "in the call 'again'" in text
    assert "  BB202 self.calls was 0, and changed" in text
    assert_compiles(Counting(), (X,), backend="aot_eager", recompiles=1)


def test_another_batch_is_a_recompile_where_it_is_tried():
    assert_compiles(Whole(), (X,), backend="aot_eager")
    larger = (torch.randn(5, 6),)
    text = message(Whole(), (X,), backend="aot_eager", further_args=[larger])
    assert "  BB205 the size of x's dimension 0 changed from 4 to 5" in text
    assert "in the call 'further 1'" in text
    assert_compiles(Whole(), (X,), backend="aot_eager", recompiles=1, further_args=[larger] * 2)


def test_fired_is_exact_and_a_near_miss_says_why():
    inputs = (X, torch.ones(3, dtype=torch.int64))
    assert_compiles(Gated(), inputs, backend=Eagerly(), fired={"rewrite_silu": 1})
    text = message(Gated(), inputs, backend=Eagerly(), fired={"rewrite_silu": 2})
    assert "rewrite_silu fired 1x, and 2x expected" in text
    assert "it nearly did" in text
    assert line_of("return h * h.sigmoid(), whole * whole.sigmoid()") in text


def test_a_pass_that_does_not_exist_is_told_apart_from_one_that_did_not_fire():
    text = message(Whole(), (X,), backend=Eagerly(), fired={"rewrite_silo": 1})
    assert "no pass 'rewrite_silo' ran: did you mean 'rewrite_silu'?" in text
    assert "did you mean" in message(Whole(), (X,), backend=Eagerly(), fired={"rewrite_silo": 0})
    assert_compiles(Whole(), (X,), backend=Eagerly(), fired={"rewrite_silu": 0})


def test_what_raises_uncompiled_is_the_models_own_fault():
    text = message(Whole(), (torch.randn(4, 7),), backend="aot_eager")
    assert "the model itself, uncompiled: RuntimeError" in text
    assert "return torch.relu(self.lift(x))" in text


def test_a_backend_that_raises_is_told():
    def raising(graph_module, example_inputs):
        raise ValueError("no kernel for this graph")

    text = message(Whole(), (X,), backend=raising)
    assert "compiled: " in text
    assert "no kernel for this graph" in text


def test_findings_are_those_of_an_explanation():
    told = assert_compiles(Printing(), (X,), backend="aot_eager", breaks=None)
    assert [x.code for x in told.findings] == ["BB101"]
    with pytest.raises(NotAsExpected) as raised:
        assert_compiles(Printing(), (X,), backend="aot_eager")
    same = [msgspec.structs.replace(x, cost_s=None) for x in raised.value.explanation.findings]
    assert same == list(told.findings)


def test_findings_by_code_fail_and_are_named_once():
    def mixed(x):
        return x * x.double()

    assert_compiles(mixed, (X,), backend="aot_eager", fail_on=["BB1", "BB2"])
    text = message(mixed, (X,), backend="aot_eager", fail_on=["BB4"])
    assert text.startswith("test_findings_by_code_fail_and_are_named_once.<locals>.mixed does not")
    assert "1 finding of BB4:\n    BB401 mul mixes float32 and float64" in text
    assert line_of("return x * x.double()") in text
    text = message(Printing(), (X,), backend="aot_eager", fail_on=["BB1"])
    assert text.count("BB101") == 1
    with pytest.raises(InputError, match="did you mean BB401"):
        assert_compiles(mixed, (X,), fail_on=["BB410"])


def test_plain_functions_and_keywords_work():
    def scaled(x, *, by):
        return x * by

    assert_compiles(scaled, (X,), {"by": 2.0}, backend="aot_eager", graphs=1)


def test_every_failure_is_in_one_message():
    text = message(Printing(), (X,), backend="aot_eager", graphs=1, fired={"nothing": 1})
    assert "graph break" in text
    assert "graphs, and 1 expected" in text
    assert "no pass 'nothing'" in text


def slow(graph_module, example_inputs):
    def call(*args):
        time.sleep(0.01)
        return graph_module(*args)

    return call


class Sleeping(torch.nn.Module):
    """Slow where it is not compiled."""

    def forward(self, x):
        if not torch.compiler.is_compiling():
            time.sleep(0.01)
        return x + 1


@pytest.mark.slow
def test_faster_than_is_measured():
    assert_compiles(Sleeping(), (X,), backend="aot_eager", faster_than=("eager", 1.5), seconds=0.5)
    text = message(Whole(), (X,), backend=slow, faster_than=("eager", 1.1), seconds=0.5)
    assert "the compiler function is 0.0" in text
    assert "as fast as eager, and more than 1.1x expected" in text


@pytest.mark.slow
def test_what_is_wrong_is_not_faster():
    def wrong(graph_module, example_inputs):
        return lambda *args: tuple(x + 0.1 for x in graph_module(*args))

    text = message(Sleeping(), (X,), backend=wrong, faster_than=("eager", 1.1), seconds=0.5)
    assert "the compiler function is wrong" in text


@pytest.mark.slow
def test_another_backend_is_a_bar_too():
    text = message(Whole(), (X,), backend=slow, faster_than=("aot_eager {}", 1.0), seconds=0.5)
    assert "as fast as aot_eager," in text


def test_the_fixture_is_there_and_costs_nothing_where_it_is_not_used(tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "import sys\n"
        "def test_before():\n"
        "    assert 'torch' not in sys.modules\n"
        "    assert 'numpy' not in sys.modules\n"
        "def test_it(assert_compiles):\n"
        "    import torch\n"
        "    assert_compiles(torch.nn.ReLU(), (torch.ones(2),), backend='aot_eager', graphs=2)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "1 graph, and 2 expected" in done.stdout
    assert "_passes" not in done.stdout  # no frame of ours is shown
