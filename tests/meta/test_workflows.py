"""Workflows parse, trust nothing that can change under them, and call what is there."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from backbay.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "backbay-example-backend"
WORKFLOWS = sorted(
    [*ROOT.glob(".github/workflows/*.yml"), *EXAMPLE.glob(".github/workflows/*.yml")]
)
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
TOOLS = {"bash", "backbay", "lint-imports", "mypy", "npm", "pip", "python", "ruff", "typos"}


def name_of(path: Path) -> str:
    return f"example {path.stem}" if path.is_relative_to(EXAMPLE) else path.stem


def jobs(path: Path) -> dict[str, dict]:
    return yaml.safe_load(path.read_text())["jobs"]


def commands(path: Path) -> list[list[str]]:
    """Every command of a workflow that is one line."""
    steps = [step for job in jobs(path).values() for step in job["steps"]]
    lines = [step["run"] for step in steps if "run" in step and "case " not in step["run"]]
    return [shlex.split(line, comments=True) for line in lines]


def test_a_workflow_is_missing():
    found = {name_of(x) for x in WORKFLOWS}
    assert found == {"lint", "tests", "docs", "release", "nightly", "gpu", "example ci"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_workflow_may_do_more_than_it_needs(path):
    document = yaml.safe_load(path.read_text())
    assert document[True], "on"  # YAML 1.1 reads the key as a boolean
    assert document["permissions"] == {"contents": "read"}
    written = {
        name: {k for k, v in job.get("permissions", {}).items() if v == "write"}
        for name, job in document["jobs"].items()
    }
    assert {k: v for k, v in written.items() if v} == (
        {"release": {"publish": {"id-token"}}, "docs": {"pages": {"pages", "id-token"}}}.get(
            path.stem, {}
        )
    )
    for job in document["jobs"].values():
        assert job["runs-on"]
        assert all(("run" in x) != ("uses" in x) for x in job["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_an_action_can_change_under_a_workflow(path):
    used = [x.strip(" -") for x in path.read_text().splitlines() if "uses:" in x]
    assert used
    assert [x for x in used if not PINNED.search(x)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_workflow_calls_what_is_not_there(path):
    base = EXAMPLE if path.is_relative_to(EXAMPLE) else ROOT
    called = commands(path)
    assert called
    for command, *arguments in called:
        assert command in TOOLS, command
        if command == "backbay":
            assert_understood(arguments)
        files = [x for x in arguments if re.match(r"\.?/?(packages|tools|tests|\.ci)/", x)]
        for file in files:
            assert (base / file.partition("[")[0]).exists(), file


def assert_understood(arguments: list[str]) -> None:
    """Fail where the command line has no such command, or the command no such option."""
    found = main.get_command(click.Context(main), arguments[0])
    assert found is not None, arguments
    known = {option for x in found.params for option in x.opts}
    assert [x for x in arguments[1:] if x.startswith("--") and x not in known] == []


@pytest.mark.parametrize("mistake", [["absent"], ["list", "--absent"]])
def test_a_mistaken_command_is_understood(mistake):
    with pytest.raises((AssertionError, click.ClickException)):
        assert_understood(mistake)


def test_the_matrix_tests_other_versions_than_the_core_takes():
    (described,) = (x for x in WORKFLOWS if name_of(x) == "tests")
    matrix = jobs(described)["matrix"]["strategy"]["matrix"]
    text = (ROOT / "packages/backbay/pyproject.toml").read_text()
    (torch,) = tomllib.loads(text)["project"]["optional-dependencies"]["torch"]
    assert [f"torch{x}" for x in matrix["torch"] if x.startswith(">")] == [torch]
    assert [x for x in matrix["torch"] if not x.startswith(">")] == ["2.11.*", "2.13.*"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
