"""``backbay publish-check``: each thing that a package leaves out is found, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.publishing import CHECKS, findings, opened

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
    "no module": (
        project('"acme_fast.backend:backend"', '":backend"'),
        "entry points",
        "which has no file",
    ),
    "a manifest of no module": (
        project('"acme_fast:backends.toml"', '""'),
        "manifest",
        "the manifest  is not there",
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
    "a name that nobody describes": (
        project('"acme-fast" = ', '"acme" = "acme_fast.backend:backend"\n"acme-fast" = '),
        "names",
        "acme is published, and no manifest describes it",
    ),
    "a manifest of a module that is not there": (
        project("acme_fast:backends.toml", "acme_slow:backends.toml"),
        "manifest",
        "acme_slow:backends.toml is not there",
    ),
    "a manifest without its file": (
        project("acme_fast:backends.toml", "acme_fast"),
        "manifest",
        "the manifest acme_fast is not there",
    ),
    "no summary": (manifest("summary = ", "homepage = "), "statements", "has no summary"),
    "training is not stated": (manifest("training = true\n", ""), "statements", "traits.training"),
    "dynamic shapes are not stated": (
        manifest("dynamic_shapes = true\n", ""),
        "statements",
        "traits.dynamic_shapes",
    ),
    "no bounds": (
        manifest('torch = ">=2.11,<2.16"\n', ""),
        "torch",
        "requires.torch of acme-fast has no lower and no upper bound",
    ),
    "no upper bound": (
        manifest('torch = ">=2.11,<2.16"', 'torch = ">=2.11"'),
        "torch",
        "requires.torch of acme-fast has no upper bound",
    ),
    "bounds that can't be read": (manifest('">=2.11,<2.16"', '">=two"'), "manifest", ">=two"),
    "any torch, after what can't be read": (
        project('"torch>=2.11"', '"?", "torch<3"'),
        "torch",
        "no lower bound",
    ),
    "any torch": (project('"torch>=2.11"', '"torch"'), "torch", "no lower bound"),
    "no description": (project("description = ", "# "), "metadata", "project.description"),
    "any Python": (
        project('requires-python = ">=3.11"', ""),
        "metadata",
        "project.requires-python",
    ),
    "no licence": (removed("LICENSE"), "licence", "no file LICENSE"),
    "a licence of the old form": (
        project('license = "Apache-2.0"', 'license = { file = "LICENSE" }'),
        "licence",
        "no SPDX expression",
    ),
    "no README": (removed("README.md"), "readme", "names no file"),
    "a README of another backend": (
        lambda folder: (folder / "README.md").write_text("# A backend\n"),
        "readme",
        "README.md does not name acme-fast",
    ),
    "an option without help": (
        lambda folder: [
            FAULTS["an option that nobody describes"][0](folder),
            manifest('help = "how much to fuse"\n', "")(folder),
            (folder / "README.md").write_text("acme-fast: `level`\n"),
        ],
        "options",
        "option level of acme-fast has no help",
    ),
    "an option that another's name begins with": (
        lambda folder: [
            FAULTS["an option that nobody describes"][0](folder),
            (folder / "README.md").write_text("acme-fast: `levels`\n"),
        ],
        "options",
        "option level of acme-fast is not in the README",
    ),
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
        assert {x["check"] for x in found} == {check}, found


def test_every_check_has_a_fault_that_it_finds():
    assert {check for _, check, _ in FAULTS.values()} == set(CHECKS)


def test_what_backbay_new_writes_is_not_ready(package):
    assert publish_check(package) == (0, [])
    assert publish_check(ROOT / "examples/backbay-example-backend") == (0, [])
    said = CliRunner().invoke(main, ["publish-check", str(package)]).output
    assert said.splitlines()[-1] == "ready to publish"


def test_a_terminal_is_not_told_which_check_failed_and_what_to_do(package):
    (package / "LICENSE").unlink()
    said = CliRunner().invoke(main, ["publish-check", str(package)]).output.splitlines()
    assert said[6:9] == [
        "wrong  licence",
        "       there is no file LICENSE: add the licence's text",
        "ok     readme",
    ]
    assert said[-1] == "1 to mend"


SAID_OTHERWISE: dict[str, Edit] = {
    "a license is spelt the British way": lambda folder: (folder / "LICENSE").rename(
        folder / "LICENCE.txt"
    ),
    "a README is given with its type": project(
        'readme = "README.md"', 'readme = { file = "README.md", content-type = "text/markdown" }'
    ),
    "a description is computed": project("description = ", 'dynamic = ["description"]\n# '),
    "training is known not to work": manifest("training = true", "training = false"),
    "one torch is required": lambda folder: [
        project('"torch>=2.11"', '"torch==2.13.*", "numpy"')(folder),
        manifest('torch = ">=2.11,<2.16"', 'torch = "~=2.13"')(folder),
    ],
    "torch has an upper bound, too": project('"torch>=2.11"', '"torch>=2.11,<2.16"'),
    "there is no folder src": lambda folder: (folder / "src/acme_fast").rename(
        folder / "acme_fast"
    ),
    "its tests are in one file": lambda folder: (folder / "tests/test_conformance.py").rename(
        folder / "test_all.py"
    ),
}


@pytest.mark.parametrize("edit", SAID_OTHERWISE.values(), ids=SAID_OTHERWISE)
def test_what_is_said_in_another_way_is_found(edit, package):
    edit(package)
    assert publish_check(package) == (0, [])


def test_what_a_backend_does_not_say_is_found_again_of_its_alias(package):
    manifest("training = true\n", "")(package)
    manifest("\n[backend.traits]", 'aliases = ["acme-alias"]\n\n[backend.traits]')(package)
    names, statements = publish_check(package)[1]
    assert "acme-alias, which is not published" in names["problem"]
    assert statements["problem"] == "acme-fast does not state traits.training"


@pytest.mark.parametrize(
    ("source", "defined"),
    [
        ("async def backed(): ...", True),
        ("class backed: ...", True),
        ("import backed.inner", True),
        ("from other import one as backed", True),
        ("from other import *", True),
        ("def __getattr__(name): ...", True),
        ("backed: object = 1", True),
        ("one, backed = 1, 2", True),
        ("try:\n    import one\nexcept ImportError:\n    backed = 1", True),
        ("try:\n    import one\nexcept ImportError:\n    pass\nelse:\n    backed = 1", True),
        ("with one():\n    backed = 1", True),
        ("if one:\n    backed = 1", True),
        ("from other import backed as one", False),
        ("import other.backed", False),
        ("one = backed", False),
        ("def one():\n    backed = 1", False),
        ("def", False),
    ],
)
def test_a_name_that_a_module_uses_is_taken_for_one_that_it_defines(source, defined, package):
    project("acme_fast.backend:backend", "acme_fast.backend:backed.inner")(package)
    (package / "src/acme_fast/backend.py").write_text(source)
    found = findings(opened(package))
    assert [x.check for x in found] == ([] if defined else ["entry points"])


def test_a_folder_that_is_no_package_gets_a_traceback(tmp_path):
    for text, words in (
        (None, "is not there: give the folder of a package"),
        ("[tool.other]\n", "has no table [project]"),
        ("project = 1\n", "has no table [project]"),
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
