"""The commands that must answer before torch would have been imported."""

import json

import pytest
from click.testing import CliRunner

from backbay.cli import main

KEYS = {"name", "state", "reason", "remedy", "origin", "tags", "experimental"}


def backbay(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def test_list_says_of_each_backend_whether_it_runs_here_and_what_to_do():
    document = json.loads(backbay("list", "--json").stdout)
    assert document["schema"] == "backbay.list/2"
    rows = {row["name"]: row for row in document["backends"]}
    assert set(rows) >= {"inductor", "cudagraphs", "tvm", "openxla"}
    assert "aot_eager" not in rows
    for row in rows.values():
        assert set(row) >= KEYS
        assert row["reason"]
        assert bool(row["remedy"]) == (row["state"] != "ready")
    assert rows["tvm"]["state"] == "not_installed"


def test_all_shows_debug_backends_and_the_table_holds_what_json_holds():
    rows = json.loads(backbay("list", "--all", "--json").stdout)["backends"]
    assert "aot_eager" in {row["name"] for row in rows}
    table = backbay("list", "--all").stdout
    assert all(row["name"] in table for row in rows)


def test_a_tag_shows_who_carries_it_though_lists_hide_them(monkeypatch, registry):
    def compiler(graph_module, _):
        return graph_module.forward

    registry.register_backend(compiler, "ours", tags=["vendor", "experimental"])
    monkeypatch.setattr("backbay.cli.elsewhere.default_registry", registry)

    def names(*arguments):
        document = json.loads(backbay("list", "--json", *arguments).stdout)
        return {row["name"] for row in document["backends"]}

    assert names("--tag", "vendor") == {"ours"}
    assert names("--tag", "experimental") == {"ours", "openxla_eval"}
    assert names("--tag", "experimental", "--all") > {"ours", "openxla_eval", "qnn"}
    assert "ours" not in names()
    done = backbay("list", "--json", "--tag", "vendr")
    assert done.exit_code == 2
    assert "did you mean: 'vendor'" in done.stderr
    assert not done.stdout


def test_info_answers_for_one_device():
    document = json.loads(backbay("info", "cudagraphs", "--device", "cpu", "--json").stdout)
    assert document["state"] == "no_device"
    assert document["spec"]["traits"]["devices"] == ["cuda"]
    assert "cudagraphs" in backbay("info", "cudagraphs").stdout


def test_info_shows_what_a_name_shadows(monkeypatch, install, registry):
    install("thief", "1.0", "[torch_dynamo_backends]\ninductor = thief:steal\n")
    monkeypatch.setattr("backbay.cli.elsewhere.default_registry", registry)
    document = json.loads(backbay("info", "inductor", "--json").stdout)
    assert document["origin"].startswith("torch")
    assert document["shadowed"] == ["thief 1.0 (thief:steal)"]


def test_an_unreadable_distribution_is_named_beside_the_list(monkeypatch, install, registry):
    install("bad", entry_points=b"\xff[torch_dynamo_backends]")
    monkeypatch.setattr("backbay.cli.elsewhere.default_registry", registry)
    done = backbay("list")
    assert "inductor" in done.stdout
    assert "unreadable: bad 1.0" in done.stderr


@pytest.mark.parametrize("arguments", [["info", "indcutor"], ["race", "decodr"]])
def test_a_mistake_is_one_line_and_exit_code_2(arguments):
    done = backbay(*arguments)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean" in done.stderr.lower()


@pytest.mark.parametrize("command", [("list", "--all"), ("doctor",), ("info", "inductor")])
def test_columns_says_how_wide_what_is_piped_is_and_no_column_is_lost(command):
    def printed(columns):
        return CliRunner(env={"COLUMNS": columns}).invoke(main, list(command)).stdout.splitlines()

    for columns in (80, 120):
        lines = printed(str(columns))
        assert columns - 20 < max(len(x.rstrip()) for x in lines) <= columns
        assert not any("…" in x for x in lines)
    assert any("inductor" in x for x in printed("0"))
    if command[0] == "info":
        return
    assert {"backend", "state", "origin"} <= set(printed("80")[0].split())
    assert any("not_installed" in x.split() or "ready" in x.split() for x in printed("80"))
    usual = printed("")  # a line for each, whoever reads it
    assert max(map(len, usual)) > 120
    assert printed("0") == printed("wide") == usual


@pytest.mark.parametrize("columns", ["40", "60"])
def test_a_narrow_terminal_cuts_off_why_and_what_to_do(columns):
    def letters(text):
        return sorted(x for x in text if not x.isspace())

    usual, narrow = (
        CliRunner(env={"COLUMNS": x}).invoke(main, ["list"]).stdout for x in ("1000", columns)
    )
    assert max(map(len, narrow.splitlines())) <= int(columns)
    assert letters(narrow) == letters(usual)


def test_a_list_of_decisions_is_as_wide_as_columns_says(monkeypatch, tmp_path):
    from backbay.decisions import Arm, Decision, Place, Store

    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    kept = Decision(
        workload="a model of a long name " * 4,
        step="infer",
        arm=Arm(backend="inductor"),
        place=Place(device="cpu"),
        graphs=("a",),
        created="2026-01-02T03:04:05Z",
    )
    Store().keep(kept)
    for columns, widest in (("90", 90), ("", 240)):
        done = CliRunner(env={"COLUMNS": columns}).invoke(main, ["decisions", "list"])
        assert max(map(len, done.stdout.splitlines())) <= widest
        assert ("a model of a long name " * 4).strip() in done.stdout or columns


def test_without_a_command_it_says_what_to_do_first():
    done = backbay()
    assert done.exit_code == 0
    steps = [x.split()[:2] for x in done.stdout.splitlines() if x.startswith("  backbay ")]
    assert steps == [["backbay", x] for x in ("doctor", "explain", "verify", "race", "diagnose")]
    assert "All commands: backbay --help" in done.stdout
    assert done.stdout.count("\n") <= 10
    assert all(x in main.list_commands(None) for _, x in steps)


def test_help_names_every_command():
    text = backbay("--help").stdout
    assert all(name in text for name in ("list", "info", "race"))
    assert "Examples:" in backbay("race", "--help").stdout
