"""``backbay publish-check``: each thing that a package leaves out is found, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.publishing import CHECKS

ROOT = Path(__file__).parents[4]
OPTIONS = """
[backend.options.level]
type = "int"
default = 2
help = "how much to fuse"

[backend.traits]"""


def publish_check(folder: Path) -> tuple[int, list[dict[str, str]]]:
    done = CliRunner().invoke(main, ["publish-check", str(folder), "--json"])
    document = json.loads(done.stdout)
    assert document["checks"] == list(CHECKS)
    return done.exit_code, document["findings"]


@pytest.fixture
def package(tmp_path) -> Path:
    """What ``backbay new`` writes."""
    folder = tmp_path / "acme-fast"
    done = CliRunner().invoke(main, ["new", "acme-fast", "--directory", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


Edit = Callable[[Path], object]


def project(old: str, new: str) -> Edit:
    return lambda folder: edited(folder / "pyproject.toml", old, new)


def manifest(old: str, new: str) -> Edit:
    return lambda folder: edited(folder / "src/acme_fast/backends.toml", old, new)


def removed(path: str) -> Edit:
    return lambda folder: (folder / path).unlink()


FAULTS: dict[str, tuple[Edit, str, str]] = {
    "no name": (project("torch_dynamo_backends]", "others]"), "entry points", "no name for"),
    "a module that is not there": (
        project("acme_fast.backend:backend", "acme_fast.backends:backend"),
        "entry points",
        "acme_fast.backends, which has no file",
    ),
    "an object that is not there": (
        project("acme_fast.backend:backend", "acme_fast.backend:backed"),
        "entry points",
        "backend.py does not define",
    ),
    "no manifest": (
        project('entry-points."backbay.backends"', "entry-points.others"),
        "manifest",
        "no manifest is published",
    ),
    "a manifest that is not there": (
        removed("src/acme_fast/backends.toml"),
        "manifest",
        "acme_fast:backends.toml is not there",
    ),
    "a key that nobody knows": (manifest("mutation", "mutatoin"), "manifest", "mutatoin"),
    "another name": (
        manifest('name = "acme-fast"', 'name = "acme-slow"'),
        "names",
        "acme-slow, which is not published",
    ),
    "no summary": (manifest("summary = ", "homepage = "), "statements", "has no summary"),
    "training is not stated": (manifest("training = true\n", ""), "statements", "traits.training"),
    "no upper bound": (
        manifest('torch = ">=2.11,<2.16"', 'torch = ">=2.11"'),
        "torch",
        "requires.torch of acme-fast has no upper bound",
    ),
    "any torch": (project('"torch>=2.11,<2.16"', '"torch"'), "torch", "no lower bound"),
    "no description": (project("description = ", "# "), "metadata", "project.description"),
    "no licence": (removed("LICENSE"), "licence", "no file LICENSE"),
    "a licence of the old form": (
        project('license = "Apache-2.0"', 'license = { file = "LICENSE" }'),
        "licence",
        "no SPDX expression",
    ),
    "no README": (removed("README.md"), "readme", "names no file"),
    "an option that nobody describes": (
        lambda folder: [
            manifest('options = "inductor"\n', "")(folder),
            manifest("\n[backend.traits]", OPTIONS)(folder),
        ],
        "options",
        "option level of acme-fast is not in the README",
    ),
    "no conformance": (removed("tests/test_conformance.py"), "tests", "conformance suite"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_package_with_a_fault_is_ready_to_publish(fault, package):
    edit, check, problem = FAULTS[fault]
    edit(package)
    code, found = publish_check(package)
    assert code == 1
    assert [x for x in found if x["check"] == check and problem in x["problem"]], found
    assert all(x["remedy"] for x in found)
    if fault != "no name":  # a manifest then describes what is not published, too
        assert {x["check"] for x in found} <= {check, "names"}, found


def test_every_check_has_a_fault_that_it_finds():
    assert {check for _, check, _ in FAULTS.values()} == set(CHECKS)


def test_what_backbay_new_writes_is_not_ready(package):
    assert publish_check(package) == (0, [])
    assert publish_check(ROOT / "examples/backbay-example-backend") == (0, [])
    said = CliRunner().invoke(main, ["publish-check", str(package)]).output
    assert said.splitlines()[-1] == "ready to publish"


def test_a_folder_that_is_no_package_gets_a_traceback(tmp_path):
    for text, words in (
        (None, "is not there: give the folder of a package"),
        ("[tool.other]\n", "has no table [project]"),
        ("[project\n", "pyproject.toml"),
    ):
        if text is not None:
            (tmp_path / "pyproject.toml").write_text(text)
        done = CliRunner().invoke(main, ["publish-check", str(tmp_path)])
        assert done.exit_code == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


def test_an_option_that_the_readme_describes_is_not_found(package):
    FAULTS["an option that nobody describes"][0](package)
    with (package / "README.md").open("a") as readme:
        readme.write("\n`level`: how much to fuse, 2 by default.\n")
    assert publish_check(package) == (0, [])


def test_a_check_runs_the_packages_code(package):
    (package / "src/acme_fast/backend.py").write_text("backend = 1\nraise SystemExit\n")
    assert publish_check(package) == (0, [])
