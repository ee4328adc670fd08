"""``--json`` in every command: JSON alone on standard output, and the same exit codes."""

import json
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.decisions import Arm, Decision, Place, Store
from backbay.race.record import Decision as RaceDecision
from backbay.race.record import Machine, Report, Result, Settings
from backbay.registry import default_registry
from backbay.registry.lock import lock_text

REPORT = Report(
    created="2026-01-02T03:04:05Z",
    machine=Machine(system="Linux", processor="P", cores=2, memory_bytes=1 << 30, device="cpu"),
    versions={},
    settings=Settings(backends=(), mode="infer", dtype="float32", device="cpu", seed=0),
    decision=(
        RaceDecision(workload="w", mode="infer", winner="eager", abstained=True, sentence="no"),
    ),
    results=(Result(workload="w", mode="infer", backend="eager", status="ok", median_ms=1.0),),
)
MODEL = """
import torch

def model():
    print("printed by the model")
    return silent()

def silent():
    return torch.nn.Linear(4, 4), (torch.ones(3, 4),)

def raises():
    model, args = silent()
    return model, (args[0].T,)
"""
EXAMPLE = Path(__file__).parents[4] / "examples" / "backbay-example-backend"
WITHOUT = {"decisions forget", "decisions export", "decisions import"}
"""What writes no report."""
WORKING = {
    "list": "",
    "info": "eager",
    "doctor": "eager",
    "lock": "",
    "check-manifest": "good.toml",
    "publish-check": str(EXAMPLE),
    "stubs": "--out typings",
    "decisions list": "",
    "decisions show": "KEPT",
    "new": "acme-fast --directory made",
    "race": "",
    "history": "race.json",
    "explain": "own.py:model --once --device cpu",
    "diagnose": "own.py:silent --backend eager --budget 0 --device cpu",
    "verify": "own.py:silent --backend eager --infer --batches 4 --blame 0 --device cpu",
    "conform": "eager --case load/metadata/origin_is_unknown --workers 1 --device cpu",
}
"""Command to arguments with which it does what it is for."""
ENDING_WITH_1 = {
    "lock": "--check --file other.lock",
    "check-manifest": "bad.toml",
    "diagnose": "own.py:raises --backend eager --budget 0 --device cpu",
    "explain": "own.py:raises --once --device cpu",
    "doctor": "eager",
}
"""...and ends with 1: there is a document, too."""
MISTAKEN = {
    "list": "--tag no_such",
    "info": "no_such",
    "doctor": "no_such",
    "lock": "--file absent/lock",
    "check-manifest": "",
    "publish-check": "absent",
    "stubs": "--out race.json",
    "decisions list": "more",
    "decisions show": "no_such",
    "new": "inductor",
    "race": "no_such",
    "history": "absent.json",
    "diagnose": "no_such",
    "explain": "BB999",
    "verify": "no_such",
    "conform": "eager --level no_such",
}


def commands() -> dict[str, click.Command]:
    """Return every command, those of groups with the group's name before their own."""
    found = {}
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": x for inner, x in command.commands.items()}
        else:
            found[name] = command
    return found


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """A folder with what commands are given, and a decision."""
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(MODEL)
    described = '[[backend]]\nname = "mine"\nregisters = "import"\nmodule = "mine"\n'
    Path("good.toml").write_text(f"schema = 1\n{described}")
    locked = lock_text(default_registry).replace('torch = ">=', 'torch = ">=9.')
    Path("other.lock").write_text(locked)
    Path("bad.toml").write_text("schema = 1\nstrange = 2\n")
    Path("race.json").write_bytes(msgspec.json.encode(REPORT))
    decision = Decision(
        workload="w",
        step="infer",
        dtype="float32",
        arm=Arm(backend="inductor"),
        place=Place(device="cpu"),
        created="2026-01-02T03:04:05Z",
        graphs=("a",),
    )
    Store().keep(decision)
    return decision.name


@pytest.fixture
def run(monkeypatch, kept, here):
    def called(command, arguments, *more):
        if command == "race" and not arguments:
            monkeypatch.setattr("backbay.cli.race.run", lambda *_, **__: REPORT)
        given = [x.replace("KEPT", kept) for x in arguments.split()]
        return CliRunner().invoke(main, [*command.split(), *given, *more])

    return called


def test_every_command_that_reports_something_takes_json():
    takes = {name for name, x in commands().items() if "json_path" in {y.name for y in x.params}}
    assert takes == commands().keys() - WITHOUT
    assert takes == WORKING.keys() == MISTAKEN.keys()


@pytest.mark.parametrize("command", WORKING)
def test_standard_output_is_json_alone(command, run):
    done = run(command, WORKING[command], "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"].startswith("backbay.")


@pytest.mark.parametrize("command", [x for x in WORKING if x not in {"new", "conform"}])
def test_a_file_gets_the_same_and_the_report_is_drawn(command, run):
    plain = run(command, WORKING[command])
    done = run(command, WORKING[command], "--json", "out.json")
    assert done.exit_code == plain.exit_code == 0, done.stderr
    assert done.stdout
    assert not done.stdout.startswith("{")
    printed = json.loads(run(command, WORKING[command], "--json", "-").stdout)
    assert json.loads(Path("out.json").read_text()).keys() == printed.keys()


@pytest.mark.parametrize("command", ENDING_WITH_1)
def test_what_ends_with_1_has_a_document_and_ends_with_1(command, run, monkeypatch):
    monkeypatch.setenv("BACKBAY_REQUIRE", "no_such")
    default_registry.refresh()
    try:
        plain = run(command, ENDING_WITH_1[command])
        done = run(command, ENDING_WITH_1[command], "--json")
    finally:
        monkeypatch.delenv("BACKBAY_REQUIRE")
        default_registry.refresh()
    assert done.exit_code == plain.exit_code == 1, done.stderr
    assert json.loads(done.stdout)["schema"].startswith("backbay.")


@pytest.mark.parametrize("command", MISTAKEN)
def test_a_mistake_leaves_standard_output_empty_and_ends_with_2(command, run):
    plain = run(command, MISTAKEN[command])
    done = run(command, MISTAKEN[command], "--json")
    assert done.exit_code == plain.exit_code == 2
    assert done.stdout == ""
    assert done.stderr


@pytest.mark.parametrize("taken", ["inductor", "hf:bert", "own.py:model"])
def test_json_takes_no_other_argument_for_its_file(taken, run):
    done = run("explain", f"--json {taken}")
    assert done.exit_code == 2
    assert f"{taken!r} looks like no file: write --json last" in done.stderr
    assert not Path(taken).exists()


def test_a_file_of_no_ending_or_in_an_odd_folder_is_taken_for_another_argument(run):
    Path("a:b").mkdir()
    assert run("list", "", "--json", "a:b/out").exit_code == 0
    assert Path("a:b/out").is_file()


@pytest.mark.parametrize(
    ("command", "arguments", "made"),
    [
        ("new", "acme-fast --directory made", "made"),
        ("stubs", "--out made", "made"),
        ("lock", "--file made", "made"),
    ],
)
def test_a_file_that_cannot_be_written_is_found_out_before_anything_is_made(
    command, arguments, made, run
):
    for file, why in (("absent/x.json", "absent/x.json can't be written"), ("./", "a directory")):
        done = run(command, arguments, "--json", file)
        assert done.exit_code == 2
        assert why in done.stderr
        assert not Path(made).exists()


def test_a_code_of_a_finding_is_a_document(run):
    document = json.loads(run("explain", "BB101", "--json").stdout)
    assert document["schema"] == "backbay.finding/1"
    assert document["page"] == "docs/findings.md#bb101"
    assert document["severity"] == "warning"


def test_the_manifests_schema_goes_where_json_does(run):
    assert run("check-manifest", "--schema", "--json", "out.json").stdout == ""
    assert json.loads(Path("out.json").read_text())["type"] == "object"
