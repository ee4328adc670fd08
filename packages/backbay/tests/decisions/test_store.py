"""The store of decisions: many processes, sudden ends, damage, limits, trust."""

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import msgspec
import pytest

from backbay.decisions import Arm, Place, Store, StoreError
from backbay.decisions import store as module


class Timing(msgspec.Struct):
    milliseconds: float


@pytest.fixture
def problems():
    return []


@pytest.fixture
def store(tmp_path, problems):
    return Store(tmp_path / "kept" / "decisions.sqlite", on_problem=problems.append)


def test_what_is_kept_is_found_by_graph_and_place(store, problems, decision, here):
    assert store.decided("graph-0", here.key) == ()
    kept = decision(graphs=("graph-0", "graph-1", "graph-0"))
    store.keep(kept)
    assert store.decided("graph-0", here.key) == store.decided("graph-1", here.key) == (kept,)
    assert store.decided("graph-2", here.key) == ()
    assert store.decided("graph-0", Place(device="H200").key) == ()
    assert store.decisions() == (kept,)
    assert not problems


def test_a_later_decision_on_the_same_takes_the_place_of_the_earlier(store, decision, here):
    store.keep(decision())
    later = decision(arm=Arm(backend="backbay"), created="2026-11-26T00:00:00+00:00")
    store.keep(later)
    assert store.decisions() == (later,)
    assert store.decided("graph-0", here.key) == (later,)


def test_a_provider_of_another_version_is_looked_up_alike_and_told_apart_by_its_versions(here):
    newer = Place(device="H100", driver="CUDA 13.0", versions={"torch": "2.13.0", "openvino": "2"})
    other = Place(device="H100", driver="CUDA 13.0", versions={"torch": "2.14.0"})
    assert newer.key == here.key != other.key


def test_what_is_forgotten_is_not_found(store, decision, here):
    store.keep_all([decision(0), decision(1)])
    assert store.forget([decision(0).name, "no-such"]) == 1
    assert [x.workload for x in store.decisions()] == ["model-1"]
    assert store.decided("graph-0", here.key) == ()


def test_measurements_are_told_apart_by_type_and_key(store):
    class Other(msgspec.Struct):
        milliseconds: float

    store.keep_measured("key", Timing(1.5))
    store.keep_measured("key", Timing(2.5))
    assert store.measured(Timing, "key") == Timing(2.5)
    assert store.measured(Timing, "other") is None
    assert store.measured(Other, "key") is None


def test_a_file_of_an_earlier_version_gets_the_tables_that_it_lacks(store, decision):
    store.keep(decision())
    with sqlite3.connect(store.path) as connection:
        connection.execute("DROP TABLE measurements")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    store.keep_measured("key", Timing(1.5))
    assert store.measured(Timing, "key") == Timing(1.5)
    assert store.decisions() == (decision(),)


def test_an_arm_reads_as_it_is_written():
    assert str(Arm(backend="inductor")) == "inductor"
    arm = Arm(backend="backbay", mode="max-autotune", options={"tune": "off", "b": True})
    assert str(arm) == "backbay@max-autotune{b: true, tune: off}"


def test_eight_processes_at_once_meet_no_lock(tmp_path):
    program = textwrap.dedent("""
        import pathlib, sys
        sys.path.insert(0, sys.argv[3])
        from backbay.decisions import Store
        import msgspec
        from conftest import made as decision

        class Timing(msgspec.Struct):
            milliseconds: float

        store = Store(pathlib.Path(sys.argv[1]), on_problem=lambda x: sys.exit(x))
        number = int(sys.argv[2])
        for n in range(25):
            store.keep(decision(100 * number + n))
            store.keep_measured(f"{number}-{n}", Timing(n))
            assert store.measured(Timing, f"{number}-{n}") == Timing(n)
            assert store.decisions()
    """)
    path = tmp_path / "new" / "decisions.sqlite"
    command = [sys.executable, "-c", program, str(path)]
    folder = os.path.dirname(__file__)  # noqa: PTH120 (as it is imported there)
    children = [
        subprocess.Popen([*command, str(n), folder], stderr=subprocess.PIPE, text=True)
        for n in range(8)
    ]
    said = [child.communicate(timeout=120)[1] for child in children]
    assert [child.returncode for child in children] == [0] * 8, said
    assert len(Store(path).decisions()) == 200


def test_a_process_killed_at_any_of_100_points_leaves_every_decision_that_was_committed(tmp_path):
    program = textwrap.dedent("""
        import os, pathlib, random, signal, sys, time
        sys.path.insert(0, sys.argv[2])
        from backbay.decisions import Store
        from conftest import PLACE, made as decision

        store = Store(pathlib.Path(sys.argv[1]), on_problem=lambda problem: sys.exit(problem))
        graphs = [f"graph-{n}" for n in range(200)]
        drawn, following = random.Random(0), 0

        def write(number, said):
            while True:
                store.keep(decision(number, workload=f"{number}", graphs=graphs))
                os.write(said, b"%d " % number)
                number += 1

        for _ in range(100):
            read, said = os.pipe()
            child = os.fork()
            if child == 0:
                write(following, said)
            os.close(said)
            time.sleep(drawn.uniform(0, 0.15))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            with os.fdopen(read) as file:
                committed = [int(x) for x in file.read().split()]
            kept = {int(x.workload) for x in store.decisions()}
            missing = set(range(max([following - 1, *committed]) + 1)) - kept
            if missing:
                sys.exit(f"committed, and lost: {missing}")
            for graph in (graphs[0], graphs[-1]):
                if len(store.decided(graph, PLACE.key)) != len(kept):
                    sys.exit(f"in part committed: {graph}")
            following = max(kept, default=-1) + 1  # one may be committed, and not said
        print(following)
    """)
    folder = os.path.dirname(__file__)  # noqa: PTH120 (as above)
    command = [sys.executable, "-c", program, str(tmp_path / "decisions.sqlite"), folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"not a database, and long enough to look like one" * 50,
        lambda data: data[:100] + bytes(len(data) - 100),
        lambda data: data[: len(data) // 2],
        lambda data: bytes(x ^ 0x5A if n > 512 else x for n, x in enumerate(data)),
    ],
)
def test_a_damaged_file_costs_decisions_and_never_a_run(store, problems, damage, decision, here):
    store.keep_all(map(decision, range(100)))
    with sqlite3.connect(store.path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    store.path.write_bytes(damage(store.path.read_bytes()))
    store.decided("graph-0", here.key)
    store.decisions()
    store.keep(decision(1000))
    assert decision(1000) in store.decisions()
    assert len(problems) >= 1
    assert "damaged" in problems[0]
    assert store.path.with_name("decisions.sqlite.damaged").exists()


def test_an_entry_that_cannot_be_understood_is_left_out_and_named(store, problems, decision):
    store.keep_all([decision(0), decision(1)])
    with sqlite3.connect(store.path) as connection:
        connection.execute(
            "UPDATE decisions SET decision = '{}' WHERE name = ?", [decision(0).name]
        )
    connection.close()
    assert store.decisions() == (decision(1),)
    (problem,) = problems
    assert "an entry is left out" in problem


def test_a_file_of_a_newer_version_is_left_alone(store, problems, decision):
    store.keep(decision())
    with sqlite3.connect(store.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert store.decisions() == ()
    assert "newer Backbay" in problems[0]
    with pytest.raises(StoreError, match="newer Backbay"):
        store.keep(decision(1))


def test_the_oldest_go_where_there_are_too_many(store, monkeypatch, decision, here):
    monkeypatch.setattr(module, "MOST_DECISIONS", 10)
    monkeypatch.setattr(module, "MOST_MEASUREMENTS", 2)
    store.keep_all(map(decision, range(30)))
    assert {x.workload for x in store.decisions()} == {f"model-{n}" for n in range(20, 30)}
    assert store.decided("graph-3", here.key) == ()
    for number in range(4):
        store.keep_measured(f"{number}", Timing(number))
    found = [store.measured(Timing, f"{number}") for number in range(4)]
    assert sum(x is not None for x in found) == 2


def test_a_full_file_forgets_its_older_half_and_goes_on(store, monkeypatch, decision):
    monkeypatch.setattr(module, "LARGEST", 200 << 10)
    for n in range(60):
        store.keep(decision(n, workload=f"{n} " * 2000))
    assert store.path.stat().st_size <= 200 << 10
    kept = store.decisions()
    assert kept[0].workload == "59 " * 2000
    assert len(kept) > 10


def test_a_file_that_others_may_write_is_not_believed(store, problems, decision):
    store.keep(decision())
    store.path.chmod(0o666)
    assert store.decisions() == ()
    assert "others may write to it" in problems[0]
    with pytest.raises(StoreError, match="chmod go-w"):
        store.keep(decision(1))


def test_a_folder_that_may_not_be_looked_into_stops_a_program(store, problems, monkeypatch, here):
    def exists(path):  # as before Python 3.14, of a file in another user's home
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(module.Path, "exists", exists)
    assert store.decided("graph-0", here.key) == ()
    assert store.measured(Timing, "key") is None
    assert problems == [f"{store.path} is not read: Permission denied"] * 2


@pytest.fixture
def locked():
    """Return what makes a folder one that this process can't write to, but can read."""
    if not hasattr(os, "geteuid"):
        pytest.skip("there are no such folders here")

    @contextlib.contextmanager
    def block(folder):
        is_root, nobody = os.geteuid() == 0, 65534
        folder.chmod(0o555)
        if is_root:
            os.seteuid(nobody)
        try:
            yield
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o755)

    return block


@pytest.mark.parametrize("writable", [False, True])
def test_decisions_in_a_folder_that_cannot_be_written_are_not_read(locked, decision, writable):
    # Not in tmp_path, which nobody else may enter.
    with tempfile.TemporaryDirectory() as made:
        folder, problems = Path(made), []
        store = Store(folder / "decisions.sqlite", on_problem=problems.append)
        store.keep(decision())
        store.keep_measured("key", Timing(1.5))
        store.path.chmod(0o644 if writable else 0o444)
        with locked(folder):
            assert store.decisions() == (decision(),)
            assert store.measured(Timing, "key") == Timing(1.5)
            assert not problems
            with pytest.raises(StoreError, match="could not be written"):
                store.keep(decision(1))
            assert {x.name for x in folder.iterdir()} == {"decisions.sqlite"}


def test_decisions_that_are_in_part_in_a_log_are_read_without_it(locked, decision):
    with tempfile.TemporaryDirectory() as made:
        folder, problems = Path(made), []
        store = Store(folder / "decisions.sqlite", on_problem=problems.append)
        store.keep(decision())
        (folder / "decisions.sqlite-wal").write_bytes(b"log")
        with locked(folder):
            assert store.decisions() == ()
        (problem,) = problems
        assert "a part of it is in decisions.sqlite-wal" in problem


def test_a_folder_that_cannot_be_made_is_said(tmp_path, decision):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "decisions.sqlite")
    assert store.decisions() == ()
    with pytest.raises(StoreError, match="could not be written"):
        store.keep(decision())
