"""On a GPU, too, who is right only while it is looked at is called wrong, and others aren't."""

from pathlib import Path

import pytest

from backbay.race import Limits, run

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FOLDER = Path(__file__).parents[1] / "race"
CHEATS, SMALL = FOLDER / "cheats.py", f"{FOLDER / 'faulty.py'}:small"
ON_CUDA = Path(__file__).with_name("cuda_backends.py")
THAT_MATTER = (
    "keyed_by_pointer",
    "keyed_by_version",
    "one_output_buffer",
    "two_buffers_in_turn",
    "wrong_after_call_8",
    "wrong_after_call_100",
    "skips_work_while_timed",
    "overwrites_its_inputs",
)


def raced(*backends, **options):
    report = run(
        SMALL,
        backends=backends,
        device="cuda",
        limits=Limits(backend_s=200.0, timing_s=0.5),
        **options,
    )
    return report, {x.backend.rpartition(":")[2]: x for x in report.results}


@pytest.mark.parametrize("name", THAT_MATTER)
def test_a_cheat_is_right(name):
    report, rows = raced(f"{CHEATS}:{name}")
    assert rows[name].status in {"wrong", "failed"}, rows[name]
    assert rows[name].median_ms is None
    assert report.decision[0].winner == "eager"


@pytest.mark.parametrize("name", ["replaces_the_events", "replaces_the_bound_synchronize"])
def test_who_replaces_the_clock_is_timed_by_it(name):
    report, rows = raced(f"{ON_CUDA}:{name}", "inductor")
    if rows[name].median_ms is None:
        assert report.decision[0].winner != name
        return
    assert rows[name].median_ms > 0.5 * rows["inductor"].median_ms, report.notes


@pytest.mark.parametrize("train", [False, True])
def test_honest_backends_are_called_wrong_or_the_life_of_outputs_is_not_stated(train):
    honest = ("inductor", f"{ON_CUDA}:reduce_overhead", f"{CHEATS}:copies_its_outputs")
    _, rows = raced(*honest, train=train)
    for name, row in rows.items():
        assert row.status == "ok", (name, row)
        assert row.median_ms is not None
    assert {name: row.outputs_live for name, row in rows.items()} == {
        "eager": None,
        "inductor": None,
        "reduce_overhead": "next_call",
        "copies_its_outputs": None,
    }
