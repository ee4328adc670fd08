"""What a race decides is kept, and compiles the model from then on."""

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from backbay import compile_log, race
from backbay.decisions import Arm, Store
from backbay.decisions.standing import why_not
from backbay.race.field import Entrant
from backbay.race.keeping import keep
from backbay.race.objective import Objective
from backbay.race.record import Decision
from backbay.race.requests import Captured
from backbay.registry import BackendSpec, Origin, Requirements, default_registry

SILU = BackendSpec(
    name="backbay_silu",
    origin=Origin(kind="distribution", distribution="backbay", version="1.0"),
)

RACE = Path(__file__).parents[1] / "race"
QUICK = race.Limits(backend_s=120.0, timing_s=0.5)

SOURCE = """
import time
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()), (torch.randn(8, 16),)

def slow(graph_module, example_inputs):
    def call(*args):
        time.sleep(0.02)
        return graph_module(*args)
    return call
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    torch.compiler.reset()
    compile_log.clear()
    yield path
    torch.compiler.reset()


def ended(place, **changes):
    """Return as much of a race as `keep` looks at."""
    silu = Arm(backend="backbay_silu", mode="max-autotune", options={"a": 1})
    decided = Decision(
        workload="model",
        mode="infer",
        winner=str(silu),
        abstained=False,
        ratio_to_eager=2.0,
        ratio_to_eager_ci=(1.9, 2.1),
        sentence="",
    )
    return SimpleNamespace(
        workload="model",
        setup=SimpleNamespace(mode="infer", dtype="float32"),
        objective=Objective(kind="total", calls=1000),
        entrants=[
            Entrant(arm=Arm(backend="eager")),
            Entrant(arm=silu, spec=SILU),
            Entrant(arm=Arm(backend="mine.py:fast")),
        ],
        captured=Captured(graphs=("graph",), place=place),
        times={"eager": (1.0,)},
        decision=msgspec.structs.replace(decided, **changes),
    )


def test_the_winner_is_kept_with_the_version_of_who_provides_it(file, here):
    (note,) = keep([ended(here)], Store(), default_registry)
    (kept,) = Store().decided("graph", here.key)
    assert (kept.arm, kept.over_eager, kept.interval) == (
        Arm(backend="backbay_silu", mode="max-autotune", options={"a": 1}),
        2.0,
        (1.9, 2.1),
    )
    assert kept.place.versions == {**here.versions, "backbay": "1.0"}
    assert kept.name in note
    assert kept.raced == ("eager", "backbay_silu@max-autotune{a: 1}", "mine.py:fast")
    assert "for 1,000 calls and a cold compilation: 2.00x" in kept.why


@pytest.mark.parametrize(
    "why", ["nothing was timed", "its winner has no name", "no graph is known"]
)
def test_a_race_is_kept_though_nobody_could_apply_it(why, file, here):
    race = ended(here, winner="mine.py:fast") if why == "its winner has no name" else ended(here)
    if why == "nothing was timed":
        race = ended(here, winner="eager", abstained=True)
        race.times = {}
    if why == "no graph is known":
        race.captured = None
    assert list(keep([race], Store(), default_registry)) == []
    assert Store().decisions() == ()


@pytest.mark.parametrize("unclear", [False, True])
def test_that_a_race_could_not_tell_is_forgotten_or_kept_without_versions(file, here, unclear):
    none = {"ratio_to_eager": None, "ratio_to_eager_ci": None}
    race = ended(here, winner="eager", abstained=True, unclear=unclear, **none)
    (note,) = keep([race], Store(), default_registry)
    (kept,) = Store().decisions()
    assert (kept.arm, kept.abstained, kept.unclear) == (Arm(backend="eager"), True, unclear)
    assert kept.place.versions == {**here.versions, "backbay": "1.0"}
    assert ("times scattered" in kept.why) == unclear
    assert "no arm could be told from eager" in kept.why
    assert (kept.name in note, "backbay.auto" in note) == (True, False)


def test_that_a_race_could_not_tell_takes_the_place_of_a_decision_or_of_another_question(
    file, here
):
    list(keep([ended(here)], Store(), default_registry))
    told = ended(here, winner="eager", abstained=True)
    list(keep([told], Store(), default_registry))
    list(keep([told], Store(), default_registry))
    assert sorted(x.abstained for x in Store().decisions()) == [False, True]
    told.objective = Objective()
    list(keep([told], Store(), default_registry))
    assert sorted(x.abstained for x in Store().decisions()) == [False, True, True]


def raced(file: Path, store: Store | None):
    limits = race.Limits(timing_s=0.5)
    return race.run(
        f"{file}:model", backends=[f"{file}:slow"], device="cpu", limits=limits, store=store
    )


@pytest.mark.slow
def test_the_model_is_compiled_as_the_race_decided(file):
    report = raced(file, Store())
    (kept,) = Store().decisions()
    assert kept.arm == Arm(backend="eager")
    assert (kept.step, kept.dtype, kept.over_eager) == ("infer", "float32", None)
    assert kept.why.endswith("no arm was faster than eager")
    assert any(f"kept as {kept.name}" in note for note in report.notes)

    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
    compiled = torch.compile(model, backend="backbay.auto")
    with torch.no_grad():
        compiled(torch.randn(8, 16))
    assert [x.ran for x in compile_log.records()] == ["eager"]
    compiled(torch.randn(8, 16))  # gradients are recorded: nothing was decided for that
    assert compile_log.records()[-1].ran == "inductor"


@pytest.mark.slow
def test_what_cannot_be_kept_is_a_note_and_the_report_is_whole(file, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    report = raced(file, Store())
    assert report.decision[0].winner == "eager"
    assert any("the decision is not kept" in note for note in report.notes)


def test_another_version_of_an_engine_is_taken_for_the_one_that_was_raced(file, here):
    engine = BackendSpec(
        name="backbay_silu",
        origin=Origin(kind="distribution", distribution="backbay", version="1.0"),
        requires=Requirements(distributions=("packaging>=1", "torch>=2")),
    )
    race = ended(here)
    race.entrants[1] = Entrant(arm=race.entrants[1].arm, spec=engine)
    list(keep([race], Store(), default_registry))
    (kept,) = Store().decided("graph", here.key)
    version = metadata.version("packaging")
    assert kept.place.versions == {**here.versions, "backbay": "1.0", "packaging": version}

    class Knows:
        environment = default_registry.environment

        def require(self, name, device):
            return engine

    assert why_not(kept, "cpu", Knows()) is None
    place = msgspec.structs.replace(kept.place, versions=kept.place.versions | {"packaging": "0"})
    old = msgspec.structs.replace(kept, place=place)
    assert why_not(old, "cpu", Knows()) == f"that was with packaging 0, and here is {version}"


@pytest.mark.slow
def test_a_decision_is_kept_for_the_place_that_an_arm_has_made_of_its_process(file, here):
    arms = [f"{RACE / 'faulty.py'}:one_thread", "aot_eager"]
    race.run(f"{file}:model", arms=arms, device="cpu", store=Store(), limits=QUICK)
    (kept,) = Store().decisions()
    assert kept.place.threads == torch.get_num_threads()
