"""What of a model is compiled, and that nothing else is while others share the model."""

from pathlib import Path

import pytest
import torch

from backbay.errors import InputError
from backbay.race import Limits, run
from backbay.race.scopes import InPlace, parts_of
from backbay.registry.target import parse

FAULTY = Path(__file__).with_name("faulty.py")
Layered = parse(f"{FAULTY}:Layered").load()
QUICK = Limits(backend_s=120.0, timing_s=0.3)


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = torch.nn.Sequential(Layered(), torch.nn.Sequential(Layered(), Layered()))
        self.by_name = torch.nn.ModuleDict({"a": Layered(), "b": torch.nn.ReLU()})


def test_blocks_are_missed_or_found_twice():
    assert list(parts_of(Layered(), "blocks")) == [f"layers.{i}" for i in range(4)]
    first = [f"stages.0.layers.{i}" for i in range(4)]
    by_name = [f"by_name.a.layers.{i}" for i in range(4)]
    assert list(parts_of(Nested(), "blocks")) == [*first, "stages.1.0", "stages.1.1", *by_name]


def test_single_operators_are_taken_for_blocks():
    perceptron = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)), torch.nn.ReLU())
    with pytest.raises(InputError, match="has no repeated blocks"):
        parts_of(perceptron, "blocks")
    layers = [torch.nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2)]
    with pytest.raises(InputError, match="has no repeated blocks"):  # Dynamo passes over them
        parts_of(torch.nn.Sequential(*layers), "blocks")


def test_a_part_is_named_and_a_typo_has_a_hint():
    assert list(parts_of(Layered(), "layers.2")) == ["layers.2"]
    with pytest.raises(InputError, match="no part 'heads'; did you mean 'head'"):
        parts_of(Layered(), "heads")


def test_the_model_itself_runs_compiled_code_after_a_call_or_an_error():
    calls, model = [], Layered()

    def compiled(function):
        def call(*args, **kwargs):
            calls.append(function.__self__)
            return function(*args, **kwargs)

        return call

    arm, x = InPlace(model, parts_of(model, "blocks"), compiled), torch.randn(2, 16)
    assert torch.equal(arm(x), model(x))
    assert calls == list(model.layers)
    assert arm.words == "compiled in place: 4 blocks (Block), layers.0 to layers.3"
    with pytest.raises(RuntimeError):
        arm(torch.randn(2, 3))
    calls.clear()
    model(x)
    assert calls == []


@pytest.mark.slow
def test_a_wrong_block_is_right_end_to_end_or_a_part_that_is_not_called_is_a_speed(here):
    backends = [f"{FAULTY}:{x}" for x in ("honest", "scaled")]
    report = run(
        f"{FAULTY}:layered",
        backends=backends,
        scopes=["whole", "blocks", "layers.3", "head.1", "layers.9"],
        device="cpu",
        limits=QUICK,
    )
    rows = {x.arm.rpartition(":")[2]: x for x in report.results}
    assert {x: y.status for x, y in rows.items()} == {
        "eager": "ok",
        "honest": "ok",
        "honest on blocks": "ok",
        "honest on layers.3": "ok",
        "honest on head.1": "failed",
        "honest on layers.9": "failed",
        "scaled": "wrong",
        "scaled on blocks": "wrong",
        "scaled on layers.3": "wrong",
        "scaled on head.1": "failed",
        "scaled on layers.9": "failed",
    }
    assert (rows["honest"].graphs, rows["honest on blocks"].graphs) == (1, 2)
    assert (rows["honest on blocks"].scope, rows["honest on blocks"].backend) == (
        "blocks",
        backends[0],
    )
    notes = " ".join(rows["honest on blocks"].notes)
    assert "4 blocks (Block), layers.0 to layers.3" in notes
    assert "Dynamo captured no graph" in rows["honest on head.1"].reason
    assert "the model has no part 'layers.9'" in rows["honest on layers.9"].reason
    assert "process of its own" not in notes


@pytest.mark.slow
def test_a_block_that_is_trained_has_no_gradients(here):
    backends = [f"{FAULTY}:{x}" for x in ("honest", "wrong_gradient")]
    report = run(
        f"{FAULTY}:layered",
        backends=backends,
        scopes=["blocks"],
        device="cpu",
        limits=QUICK,
        train=True,
    )
    assert [x.status for x in report.results] == ["ok", "ok", "wrong"]


@pytest.mark.slow
def test_a_plain_function_is_refused(here):
    report = run(
        f"{FAULTY}:plain_function",
        backends=[f"{FAULTY}:{x}" for x in ("honest", "wrong_gradient")],
        device="cpu",
        limits=QUICK,
        train=True,
    )
    eager, honest, wrong = report.results
    assert (eager.status, honest.status, wrong.status) == ("ok", "ok", "wrong"), honest.reason
    assert honest.graphs == 1
