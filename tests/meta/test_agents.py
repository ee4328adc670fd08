"""What coding agents are told is what is so: the skill in the wheel, and the site's llms.txt."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

import backbay
from backbay.cli import main

ROOT = Path(__file__).parents[2]
SKILL = Path(backbay.__file__).parent / "skill" / "SKILL.md"
LLMS = ROOT / "docs" / "extra" / "llms.txt"
REFERS_TO = {"doctor": "list", "info": "list", "diagnose": "explain"}
"""Documents whose section in docs/json.md says that their keys are another's, too."""
COMMAND = re.compile(r"`backbay ([^`]+)`")


def commands(page: Path) -> list[str]:
    return COMMAND.findall(page.read_text())


def parsed(command: str) -> click.Context:
    """Return a command line, parsed.

    Raises:
        AssertionError: there is no such command.
        click.UsageError: there is no such option, or a value is of another type.
    """
    name, *arguments = shlex.split(command)
    with click.Context(main, info_name="backbay") as context:
        found = main.get_command(context, name)
        assert found is not None, command
        return found.make_context(name, arguments, parent=context)


def told() -> list[str]:
    return sorted({*commands(SKILL), *commands(LLMS)})


def test_an_agent_is_told_of_too_few_commands():
    named = {x.split()[0] for x in told()}
    reporting = {"doctor", "info", "list", "race", "verify", "explain", "diagnose", "conform"}
    assert {*reporting, "new", "publish-check"} <= named


@pytest.mark.parametrize("command", told())
def test_a_command_that_an_agent_is_told_does_not_parse(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.json").write_text("{}")
    assert parsed(command).info_name == shlex.split(command)[0]


@pytest.mark.parametrize(
    "command", ["absent", "doctor --absent", "race --seconds often", "explain a b"]
)
def test_a_mistaken_command_parses(command):
    with pytest.raises((AssertionError, click.UsageError)):
        parsed(command)


def documented(command: str) -> set[str]:
    """Return every word that a command's section, or its line of a table, writes as code."""
    pages = (ROOT / "docs" / "json.md").read_text()
    parts = (*re.split(r"^## ", pages, flags=re.MULTILINE), *pages.splitlines())
    section = next(
        x
        for x in parts
        if re.match(rf"`backbay {command} (?!--fresh|CODE|CAMPAIGN)[^`]*--json|\| `{command} ", x)
    )
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section))))
    return words | (documented(REFERS_TO[command]) if command in REFERS_TO else set())


def test_an_agent_is_told_to_read_a_key_that_no_document_has():
    row = r"^\| [^|]+ \| `backbay (\S+).*? --json` \| ([^|]+) \|$"
    rows = re.findall(row, SKILL.read_text(), re.MULTILINE)
    assert len(rows) == 9
    for command, said in rows:
        keys = re.findall(r"`([^`]+)`", said)
        assert keys
        for key in keys:
            assert set(re.findall(r"\w+", key)) <= documented(command), (command, key)


def test_the_skill_has_no_head_by_which_an_agent_finds_it():
    head = yaml.safe_load(SKILL.read_text().split("---\n")[1])
    assert head["name"] == "backbay"
    assert 100 < len(head["description"]) < 1024
    assert "torch.compile" in head["description"]


def test_an_agent_is_sent_to_a_page_that_is_not_there():
    links = re.findall(r"\]\((\S+)\)", LLMS.read_text())
    assert len(links) > 12
    start = "https://github.com/backbay/backbay/blob/main/"
    assert [x for x in links if not (ROOT / x.removeprefix(start)).is_file()] == []
