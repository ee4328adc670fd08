"""``backbay decisions``: list, show, forget, export, import."""

import json
import os

import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.decisions import Arm, Store, exchange


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(main, ["decisions", *map(str, arguments)])


def test_a_list_without_a_decision_says_where_they_come_from():
    done = run("list")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "nothing was decided yet: backbay race decides" in done.output
    assert json.loads(run("list", "--json").output)["decisions"] == []


def test_what_was_decided_is_listed_and_shown(decision):
    kept = decision(arm=Arm(backend="inductor", mode="reduce-overhead"), graphs=("a", "b"))
    Store().keep(kept)
    listed = run("list").output
    assert all(x in listed for x in (kept.name, "model-0", "infer", "inductor@reduce-overhead"))
    (row,) = json.loads(run("list", "--json").output)["decisions"]
    shown = json.loads(run("show", kept.name, "--json").output)
    assert shown == {"schema": "backbay.decisions/2", **row}
    assert row["use"] == "inductor@reduce-overhead"
    assert (row["over_eager"], row["interval"]) == (1.5, [1.4, 1.6])
    assert row["versions"] == {"torch": "2.13.0"}
    text = run("show", kept.name).output
    assert "1.50x [1.40, 1.60] eager" in text
    assert "a, b" in text


def test_forgetting_takes_names_or_all(decision):
    first, second, third = map(decision, range(3))
    Store().keep_all([first, second, third])
    assert run("forget", first.name).output == "1 forgotten\n"
    assert run("forget", "--all").output == "2 forgotten\n"
    assert Store().decisions() == ()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("forget",), "name decisions to forget"),
        (("forget", "x", "--all"), "name decisions to forget"),
        (("forget", "x"), "there is no decision 'x'"),
        (("show", "x"), "there is no decision 'x'"),
        (("export", "no/such/folder.json"), "can't be written"),
        (("import", "absent.json"), "absent.json does not hold decisions: "),
    ],
)
def test_a_mistake_is_one_line(arguments, why):
    done = run(*arguments)
    assert done.exit_code == 2
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_one_exports_another_imports(decision, monkeypatch, tmp_path):
    kept = [decision(n, arm=Arm(backend="backbay", options={"tune": "off"})) for n in range(3)]
    Store().keep_all(kept)
    assert run("export", "decisions.json").output == "decisions.json: 3 decisions\n"
    first = (tmp_path / "decisions.json").read_text()
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "other"))
    assert run("import", "decisions.json").output == "3 decisions kept\n"
    assert sorted(Store().decisions(), key=lambda x: x.name) == sorted(kept, key=lambda x: x.name)
    run("export", "again.json")
    assert (tmp_path / "again.json").read_text() == first


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"schema": "backbay.decisions/2"}',
        b'{"schema": "backbay.decisions/99", "decisions": []}',
        b'{"decisions": [{"workload": 1}]}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_holds_no_decisions_is_refused_and_nothing_is_kept(data, tmp_path):
    (tmp_path / "bad.json").write_bytes(data)
    done = run("import", "bad.json")
    assert done.exit_code == 2
    assert "bad.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert Store().decisions() == ()


def test_a_pipe_is_no_file_of_decisions(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert run("import", "pipe").exit_code == 2


def test_what_a_file_says_is_never_markup_nor_turns_the_text(decision, tmp_path):
    hostile = decision(workload="[/red]\x1b[31m\u202emodel", arm=Arm(backend="[bold]x"))
    (tmp_path / "hostile.json").write_bytes(exchange.encoded((hostile,)))
    run("import", "hostile.json")
    for output in (run("list").output, run("show", hostile.name).output):
        assert "\x1b" not in output
        assert "\u202e" not in output
        assert "[/red]" in output.replace("\n", "").replace(" ", "")


def test_what_cannot_be_kept_is_one_line(decision, tmp_path):
    (tmp_path / "one.json").write_bytes(exchange.encoded((decision(),)))
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    done = run("import", "one.json")
    assert done.exit_code == 2
    assert "others may write to it" in done.stderr
    assert done.stderr.count("\n") == 1
