"""What the benchmarks of models and patterns keep, and for which code it holds."""

from pathlib import Path

import msgspec
import pytest

from backbay.errors import InputError


def test_state_adds_runs_up_and_refuses_another_machines(speed, entry, tmp_path):
    record = speed("speed.record")
    state = record.State(tmp_path)
    state.add(entry({"eager": [1.0]}, name="a/b"))
    state.add(entry({"inductor": [2.0]}, name="a/b"))
    assert [list(run.arms) for run in state.read("a/b").runs] == [["eager"], ["inductor"]]
    other = msgspec.structs.replace(entry().where, device="another")
    with pytest.raises(InputError, match="another folder"):
        state.add(entry({}, name="a/b", where=other))


def test_a_run_is_kept_twice_when_more_of_it_was_timed(speed, entry, tmp_path):
    record = speed("speed.record")
    state = record.State(tmp_path)
    short, long = (entry({"eager": values}) for values in ([1.0], [1.0, 2.0]))
    state.add(entry({"inductor": [2.0]}))
    state.add(short)
    (run,) = long.runs
    run = msgspec.structs.replace(run, created=short.runs[0].created)
    state.add(msgspec.structs.replace(long, runs=(run,)))
    timed = [next(iter(run.arms.values())).samples_ms for run in state.read("one").runs]
    assert timed == [(2.0,), (1.0, 2.0)]


def test_state_of_other_code_is_told_apart(speed, tmp_path):
    digest = speed("speed.surroundings").code_digest
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / "one.py").write_text("1")
    before = digest(tmp_path)
    (tmp_path / "cli.py").write_text("2")
    assert digest(tmp_path) == before
    (tmp_path / "passes" / "one.py").write_text("2")
    assert digest(tmp_path) != before


def test_state_of_another_optimizer_is_told_apart(speed):
    import backbay
    import backbay_optimizer

    surroundings = speed("speed.surroundings")
    kit, optimizer = (Path(x.__file__).parent for x in (backbay, backbay_optimizer))
    assert surroundings.versions()["backbay"].endswith(surroundings.code_digest(kit, optimizer))
    assert surroundings.code_digest(kit, optimizer) != surroundings.code_digest(kit)
