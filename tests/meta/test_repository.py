"""What stands at the top of the repository works: hooks, containers, templates, what is cited."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import backbay
from backbay.cli import main

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted(ROOT.glob("*/*/src/*/backends.toml"))


def parsed(path: str) -> object:
    return yaml.safe_load((ROOT / path).read_text())


def hooks() -> dict[str, dict]:
    (repository,) = parsed(".pre-commit-config.yaml")["repos"]
    (published,) = parsed(".pre-commit-hooks.yaml")
    return {x["id"]: x for x in [*repository["hooks"], published]}


@pytest.mark.parametrize("hook", ["check-manifest", "backbay-check-manifest"])
def test_a_hook_lets_a_mistaken_manifest_through(hook, tmp_path):
    described = hooks()[hook]
    command, *arguments = shlex.split(described["entry"])
    assert command == "backbay"
    assert len(MANIFESTS) == 3
    for path in MANIFESTS:
        assert re.search(described["files"], path.relative_to(ROOT).as_posix())
    assert not re.search(described["files"], "src/notbackends.toml")
    good = CliRunner().invoke(main, [*arguments, *map(str, MANIFESTS)])
    assert good.exit_code == 0, good.output
    bad = tmp_path / "backends.toml"
    bad.write_text(MANIFESTS[0].read_text().replace("summary", "sumary", 1))
    assert CliRunner().invoke(main, [*arguments, str(bad)]).exit_code == 1


def test_a_hook_calls_what_the_development_environment_has_not():
    text = (ROOT / "packages/backbay/pyproject.toml").read_text()
    installed = " ".join(tomllib.loads(text)["project"]["optional-dependencies"]["dev"])
    for hook in hooks().values():
        command = shlex.split(hook["entry"])[0]
        assert re.search(rf"\b{command}\b", installed), hook["id"]
        assert hook["language"] == "system"


def test_a_container_installs_otherwise_than_the_readme_says():
    readme = (ROOT / "README.md").read_text()
    described = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert described["postCreateCommand"] in readme
    assert "[dev]" in described["postCreateCommand"]
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    (installed,) = (x for x in lines if "./packages/backbay[" in x)
    for requirement in re.findall(r"'?\./packages/[^\s']+'?", installed):
        assert requirement in readme or requirement.endswith("conformance")


def test_a_template_asks_for_no_diagnosis():
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert [x.stem for x in forms] == ["backend", "bug"]
    for form in forms:
        body = yaml.safe_load(form.read_text())["body"]
        (asked,) = (x for x in body if "backbay doctor --json" in x["attributes"]["label"])
        assert asked["validations"]["required"] is True
    assert "backbay doctor --json" in (ROOT / ".github/pull_request_template.md").read_text()


def test_another_version_than_this_is_cited():
    cited = parsed("CITATION.cff")
    assert cited["version"] == backbay.__version__
    assert cited["authors"] == [{"name": "Backbay contributors"}]


def test_an_assistant_is_sent_to_what_is_not_there():
    page = (ROOT / "AGENTS.md").read_text()
    named = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    named += re.findall(r"(?:python|bash) ((?:tools|\.ci)/\S+?)[`\s]", page)
    named += re.findall(r"pytest (tests/\S+)", page)
    assert len(named) > 10
    assert [x for x in named if not (ROOT / x).exists()] == []


def test_a_session_of_nox_runs_a_script_that_is_not_there():
    scripts = re.findall(r'"(tools/\w+\.py)"', (ROOT / "noxfile.py").read_text())
    assert len(scripts) == 5
    assert [x for x in scripts if not (ROOT / x).is_file()] == []
