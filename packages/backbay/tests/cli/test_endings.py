"""How commands end: exit codes, what is written where, and what an interrupt leaves."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from click.testing import CliRunner
from rich.text import Text

from backbay.cli import main, output
from backbay.cli.files import check_writable, whole
from backbay.cli.interrupts import Terminated, terminable
from backbay.errors import InputError, Interrupted
from backbay.race.record import Decision, Machine, Report, Result, Settings

RACE = Path(__file__).parents[1] / "race"
FAULTY, DYING = RACE / "faulty.py", Path(__file__).with_name("dying.py")
DECIDED = Decision(
    workload="bert", mode="infer", winner="eager", abstained=True, sentence="use eager"
)
EAGER = Result(workload="bert", mode="infer", backend="eager", status="ok", median_ms=1.0)
REPORT = Report(
    created="2026-01-02T03:04:05Z",
    machine=Machine(system="Linux", processor="P", cores=2, memory_bytes=1 << 30, device="cpu"),
    versions={},
    settings=Settings(backends=(), mode="infer", dtype="float32", device="cpu", seed=0),
    decision=(DECIDED,),
    results=(EAGER,),
)


@pytest.fixture
def race(monkeypatch):
    """Call the command; what runs in the race's place returns a report, or raises."""

    def called(run, *arguments):
        monkeypatch.setattr("backbay.cli.race.run", lambda *_, **__: run())
        return CliRunner().invoke(main, ["race", *map(str, arguments)])

    return called


def never():
    raise AssertionError("nothing may run before")


def interrupted(number):
    def run():
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        except KeyboardInterrupt as stopped:
            raise Interrupted(msgspec.structs.replace(REPORT, partial=True)) from stopped

    return run


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_fine_ends_otherwise_than_with_0(race, tmp_path):
    done = race(lambda: REPORT, "--json", tmp_path / "race.json", "--html", tmp_path / "race.html")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "race.json").read_text())["partial"] is False
    assert (tmp_path / "race.html").read_text().startswith("<!")
    assert sorted(x.name for x in tmp_path.iterdir()) == ["race.html", "race.json"]


@pytest.mark.parametrize("where", ["absent/race.json", "file/race.json", "x" * 300])
@pytest.mark.parametrize("option", ["--json", "--html"])
def test_that_nothing_can_be_written_is_found_out_after_the_race(race, tmp_path, where, option):
    (tmp_path / "file").touch()
    done = race(never, option, tmp_path / where)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("command", ["verify", "explain"])
def test_other_commands_find_it_out_later(monkeypatch, tmp_path, command):
    monkeypatch.setattr(f"backbay.cli.{command}.run", lambda *_, **__: never())
    done = CliRunner().invoke(main, [command, "--json", str(tmp_path / "absent" / "x.json")])
    assert done.exit_code == 2
    assert "can't be written: No such file or directory" in done.stderr


def test_a_full_disk_costs_the_table_or_what_was_there(race, tmp_path, monkeypatch):
    path = tmp_path / "race.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    done = race(lambda: REPORT, "--json", path, "--html", tmp_path / "race.html")
    assert done.exit_code == 2
    assert "use eager" in done.stdout
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("backbay: ")]
    assert line.count("can't be written: No space left on device") == 2
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
def test_a_device_is_replaced_by_a_file(race):
    done = race(lambda: REPORT, "--json", "/dev/full")
    assert done.exit_code == 2
    assert "/dev/full can't be written: No space left on device" in done.stderr
    assert "use eager" in done.stdout
    assert race(lambda: REPORT, "--json", os.devnull).exit_code == 0
    assert not Path(os.devnull).is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
@pytest.mark.parametrize("kind", ["full", "closed"])
def test_a_table_that_nobody_can_read_costs_the_report(tmp_path, kind):
    (tmp_path / "report.json").write_bytes(msgspec.json.encode(REPORT))
    program = """
        import msgspec, pathlib
        import backbay.cli.race as race
        from backbay.cli import main
        from backbay.race.record import Report

        report = msgspec.json.decode(pathlib.Path("report.json").read_bytes(), type=Report)
        race.run = lambda *_, **__: report
        main(["race", "--json", "race.json"])
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    if kind == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        end, out = os.pipe()
        os.close(end)
    done = subprocess.run(
        command, cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(out)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("backbay: standard output can't be written: ")
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "race.json").read_text())["schema"] == "backbay.race/1"


def test_a_file_loses_its_mode_its_link_or_its_text(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with whole(link) as file:
        file.write_text("new")
    assert link.is_symlink()
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    with pytest.raises(UnicodeEncodeError), whole(path) as file:
        file.write_text("half \ud800")
    assert path.read_text() == "new"
    check_writable(path, None, Path("-"), tmp_path / "other")
    assert sorted(tmp_path.iterdir()) == [path, link]
    with pytest.raises(InputError, match="can't be written"):
        check_writable(tmp_path / "absent" / "x")


def test_a_lock_file_is_truncated_before_it_is_written(tmp_path, monkeypatch):
    path = tmp_path / "backbay.lock"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    done = CliRunner().invoke(main, ["lock", "--file", str(path)])
    assert done.exit_code == 2
    assert "can't be written: No space left on device" in done.stderr
    assert path.read_text() == "old"
    for where in (tmp_path / "absent" / "backbay.lock", Path("/dev/full")):
        done = CliRunner().invoke(main, ["lock", "--file", str(where)])
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output


def test_a_workload_that_nothing_was_raced_of_ends_with_0(race):
    failed = msgspec.structs.replace(EAGER, status="crashed", median_ms=None)
    unraced = msgspec.structs.replace(DECIDED, sentence="nothing was raced: eager itself crashed")
    report = msgspec.structs.replace(REPORT, results=(failed,), decision=(unraced,))
    done = race(lambda: report)
    assert done.exit_code == 1
    assert done.stderr == "backbay: bert: nothing was raced: eager itself crashed\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_as_a_failure_does_or_loses_what_was_measured(
    race, tmp_path, number, code
):
    path = tmp_path / "race.json"
    done = race(interrupted(number), "--json", path)
    assert done.exit_code == code, done.output
    assert "backbay: interrupted" in done.stderr
    assert "use eager" in done.stdout
    assert json.loads(path.read_text())["partial"] is True
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupt_where_nothing_can_be_written_ends_otherwise(race, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    done = race(interrupted(signal.SIGTERM), "--json", tmp_path / "race.json")
    assert done.exit_code == 143
    assert "No space left on device" in done.stderr


def test_who_handles_the_signal_is_not_asked(monkeypatch):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(Terminated), terminable():
        signal.raise_signal(signal.SIGTERM)


def test_what_else_can_be_written_is_not(tmp_path):
    path = tmp_path / "page.html"
    with pytest.raises(InputError, match="absent"):
        output.write(
            REPORT,
            Text("drawn"),
            tmp_path / "absent" / "x.json",
            (path, lambda file: file.write_text("page")),
        )
    assert path.read_text() == "page"


@pytest.mark.slow
def test_a_workload_that_dies_costs_the_others_or_ends_with_0(tmp_path):
    path = tmp_path / "race.json"
    command = (f"{DYING}:dies", f"{DYING}:fails", "--backends", "aot_eager", "--json", str(path))
    done = CliRunner().invoke(main, ["race", *command, "--device", "cpu"])
    assert done.exit_code == 1, done.output
    said = [x for x in done.stderr.splitlines() if x.startswith("backbay: ")]
    assert len(said) == 2
    assert "SIGKILL" in said[0]
    assert "the model's own" in said[1]
    statuses = [x["status"] for x in json.loads(path.read_text())["results"]]
    assert statuses == ["crashed", "failed", "failed", "failed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "number", "waits_for", "kept"),
    [
        ("race", signal.SIGINT, ":hangs · compiling and proving", ["eager", "aot_eager"]),
        ("verify", signal.SIGTERM, ":hangs · infer: first", ["aot_eager", "hangs"]),
    ],
)
def test_a_signal_leaves_children_or_files_or_loses_what_was_measured(
    tmp_path, command, number, waits_for, kept
):
    temporary, path = tmp_path / "temporary", tmp_path / "report.json"
    temporary.mkdir()
    backends = ("--backends", f"aot_eager,{FAULTY}:hangs", "--device", "cpu", "--infer")
    options = (*backends, "--json", str(path))
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "backbay", command, f"{FAULTY}:small", *options],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=os.environ | {"TMPDIR": str(temporary), "COLUMNS": "500"},
        )
    try:
        end = time.monotonic() + 120
        while waits_for not in log.read_text() and process.poll() is None:
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.wait(60) == 128 + number, log.read_text()
    finally:
        process.kill()
    assert log.read_text().splitlines()[-1] == "backbay: interrupted"
    assert "Traceback" not in log.read_text()
    assert children
    assert not any(x.is_running() for x in children)
    assert list(temporary.glob("backbay-*")) == []  # torch's own cache stays, as it always does
    report = json.loads(path.read_text())
    assert report["partial"] is True
    assert [x["backend"].rpartition(":")[2] for x in report["results"]] == kept


@pytest.mark.skipif(sys.platform == "win32", reason="it keeps the current directory of a process")
@pytest.mark.parametrize("command", ["explain", "race"])
def test_a_directory_that_was_removed_is_not_named(command, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = CliRunner().invoke(main, [command])
    assert done.exit_code == 2
    assert done.stderr == (
        "backbay: the current directory was removed: change to one that is there\n"
    )
