"""``backbay new``: names that it refuses, and what it leaves behind."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import backbay.new.writing
from backbay.cli import main

ROOT = Path(__file__).parents[4]
PUBLISHES = "[torch_dynamo_backends]\nplugged.in = plug_in:fn\n"


def new(*arguments: str):
    return CliRunner().invoke(main, ["new", *arguments])


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, registry, install):
    """Stand in an empty folder; torch and one plugin are installed."""
    install("plug-in", "3.1", PUBLISHES)
    monkeypatch.setattr("backbay.cli.new.default_registry", registry)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def assert_refused(done, here, *words: str) -> None:
    assert done.exit_code == 2
    assert done.stderr.startswith("backbay: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["acme-fast", "acme_fast", "acme.fast", "Acme.fast-2_b", "q"])
def test_what_is_written_is_named_alike_everywhere(name, here):
    done = new(name, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    package = document["package"]
    assert package.isidentifier()
    assert package.islower()
    assert sorted(document["files"]) == sorted(
        str(x.relative_to(here / name)) for x in (here / name).rglob("*") if x.is_file()
    )
    project = tomllib.loads((here / name / "pyproject.toml").read_text())["project"]
    assert project["name"] == name
    assert project["entry-points"]["torch_dynamo_backends"] == {name: f"{package}.backend:backend"}
    manifest = here / name / "src" / package / "backends.toml"
    checked = CliRunner().invoke(main, ["check-manifest", str(manifest)])
    assert checked.output == f"{manifest}: {name}: understood\n"
    assert "package" not in {x.name for x in (here / name / "src").iterdir()}


def test_four_lines_say_what_was_written_and_what_comes_next(here):
    lines = new("acme-fast").output.splitlines()
    assert lines[0].startswith("acme-fast: 16 files")
    assert lines[1:] == [
        "install:  cd acme-fast && python -m pip install -e '.[dev]'",
        "test:     python -m pytest",
        "race:     backbay race examples/mlp.py:mlp --backends eager,inductor,acme-fast",
    ]


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a:b", "2fast", "fast-", "-fast", "a--b", "a/b", "..", "fäst", "a\n", "x" * 41],
)
def test_a_name_that_pip_or_python_can_not_take_is_refused(name, here):
    assert_refused(new("--", name), here, "at most 40", "as in 'acme-fast'")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("class", "is a word of Python's own"),
        ("json", "is a module of Python's own"),
        ("tests", "is the name of a folder"),
        ("aten", "is a namespace of torch's own operators"),
    ],
)
def test_a_package_that_would_hide_another_is_refused(name, why, here):
    assert_refused(new(name), here, why, f"as in 'acme-{name}'")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("inductor", "inductor is torch's own"),
        ("Aot-Eager", "aot_eager is torch's own"),
        ("openvino", "it is known as the backend openvino of openvino"),
        ("lightning.thunder", "it is known as the distribution lightning-thunder"),
        ("plugged-in", "plug-in 3.1 (plug_in:fn) has the backend plugged.in"),
        ("Plug_In", "plug-in 3.1 is installed, and pip would replace it"),
        ("click", "Python imports click from "),
    ],
)
def test_a_name_that_another_has_is_refused_and_says_whose_it_is(name, why, here):
    assert_refused(new(name), here, f"{name!r} is taken", why, f"as in 'acme-{name}'")


def test_a_folder_that_happens_to_be_here_is_no_module(here, monkeypatch):
    (here / "elsewhere" / "acme_fast").mkdir(parents=True)
    monkeypatch.syspath_prepend(here / "elsewhere")
    assert new("acme-fast").exit_code == 0


@pytest.mark.parametrize("kind", ["file", "folder", "empty folder", "broken link"])
def test_what_exists_is_never_overwritten(kind, here):
    path = here / "acme-fast"
    if kind == "file":
        path.write_text("mine")
    elif kind == "broken link":
        path.symlink_to("nowhere")
    else:
        path.mkdir()
    if kind == "folder":
        (path / "README.md").write_text("mine")
    before = sorted(here.rglob("*"))
    done = new("acme-fast")
    assert done.exit_code == 2
    assert "acme-fast exists, and nothing was written: give another --directory" in done.stderr
    assert sorted(here.rglob("*")) == before
    assert new("acme-fast", "--directory", "other").exit_code == 0


def test_what_appears_meanwhile_is_not_overwritten_either(here, monkeypatch):
    put = backbay.new.writing._put

    def slow(path, text):
        (here / "acme-fast").mkdir(exist_ok=True)
        (here / "acme-fast" / "README.md").write_text("mine")
        put(path, text)

    monkeypatch.setattr(backbay.new.writing, "_put", slow)
    done = new("acme-fast")
    assert done.exit_code == 2
    assert "could not be written: Directory not empty; nothing was left behind" in done.stderr
    assert [str(x.relative_to(here)) for x in here.rglob("*")] == [
        "acme-fast",
        "acme-fast/README.md",
    ]
    assert (here / "acme-fast" / "README.md").read_text() == "mine"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interruption_leaves_nothing_half_made(error, here, monkeypatch):
    put, written = backbay.new.writing._put, []

    def interrupted(path, text):
        written.append(path)
        if len(written) == 7:
            raise error
        put(path, text)

    monkeypatch.setattr(backbay.new.writing, "_put", interrupted)
    done = new("acme-fast")
    assert done.exit_code != 0
    if error is not KeyboardInterrupt:
        assert "could not be written: No space left on device; nothing was left" in done.stderr
    assert len(written) == 7
    assert written[0].exists() is False
    assert list(here.iterdir()) == []


def test_a_folder_without_a_parent_says_what_to_do(here):
    done = new("acme-fast", "--directory", "absent/fast")
    assert_refused(done, here, "absent is no folder: make it")


@pytest.mark.parametrize("license_", backbay.new.LICENSES)
def test_a_quote_in_an_author_breaks_no_file(license_, here):
    done = new("acme-fast", "--author", 'Ada "B" \\ Lovelåce <ada@x.org>', "--license", license_)
    assert done.exit_code == 0, done.output
    project = tomllib.loads((here / "acme-fast" / "pyproject.toml").read_text())["project"]
    assert project["authors"] == [{"name": 'Ada "B" \\ Lovelåce', "email": "ada@x.org"}]
    assert project["license"] == license_
    licence = (here / "acme-fast" / "LICENSE").read_text()
    assert "{{" not in licence
    if license_ == "Apache-2.0":
        assert licence == (ROOT / "LICENSE").read_text()
    else:
        assert 'Copyright (c) Ada "B" \\ Lovelåce\n' in licence


def test_without_an_author_nobody_is_named(here):
    new("acme-fast", "--license", "MIT")
    project = tomllib.loads((here / "acme-fast" / "pyproject.toml").read_text())["project"]
    assert "authors" not in project
    assert "(c) the authors of acme-fast\n" in (here / "acme-fast" / "LICENSE").read_text()
    new("acme-named", "--author", "Ada")
    project = tomllib.loads((here / "acme-named" / "pyproject.toml").read_text())["project"]
    assert project["authors"] == [{"name": "Ada"}]


@pytest.mark.parametrize("author", ["", "<ada@x.org>", "Ada <ada>", "Ada\nB", "Ada <a@b> c"])
def test_an_author_that_is_not_understood_is_refused(author, here):
    assert_refused(new("acme-fast", "--author", author), here, "is no author: give 'Name'")


def test_the_range_of_torch_is_backbays_own(here):
    text = (ROOT / "packages" / "backbay" / "pyproject.toml").read_text()
    ours = tomllib.loads(text)["project"]["optional-dependencies"]["torch"]
    assert ours == [f"torch{backbay.new.writing.TORCH}"]
    assert new("acme-fast").exit_code == 0
    made = here / "acme-fast"
    needed = tomllib.loads((made / "pyproject.toml").read_text())["project"]["dependencies"]
    assert ours[0] in needed
    tested = (made / "src" / "acme_fast" / "backends.toml").read_text()
    assert f'torch = "{backbay.new.writing.TESTED_TORCH}"' in tested


def test_the_committed_example_is_what_the_command_writes(here):
    example = ROOT / "examples" / "backbay-example-backend"
    files = json.loads(new(example.name, "--json").stdout)["files"]
    for path in files:
        made, committed = here / example.name / path, example / path
        assert committed.read_text() == made.read_text(), (
            f"{path}: make the example anew: rm -r {example.relative_to(ROOT)} && "
            f"backbay new {example.name} --directory {example.relative_to(ROOT)}"
        )


def test_the_page_shows_the_commands_that_are_printed(here):
    page = (ROOT / "docs" / "new.md").read_text()
    for line in new("acme-fast").output.splitlines()[1:]:
        assert line.partition(":")[2].strip() in page


def test_the_page_shows_the_error_that_is_printed(here):
    page = (ROOT / "docs" / "new.md").read_text()
    assert new("aot-eager").stderr in page
