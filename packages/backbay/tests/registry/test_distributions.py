"""The hand-written reader of installed distributions."""

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import backbay
from backbay.registry import Environment
from backbay.registry.discovery import discover
from backbay.registry.distributions import normalise, scan

GROUP = "[torch_dynamo_backends]\n"


def test_agrees_with_importlib_metadata_on_this_installation():
    expected = {}
    for distribution in importlib.metadata.distributions():
        expected.setdefault(normalise(distribution.name), distribution.version)
    found = {name: d.version for name, d in scan().distributions.items()}
    assert found == expected


def test_agrees_with_importlib_metadata_on_entry_points():
    group = "console_scripts"
    expected = {
        (e.name, e.value.partition("[")[0].strip())
        for e in importlib.metadata.entry_points(group=group)
    }
    assert {(e.name, e.value) for e in scan().entry_points(group)} == expected
    assert expected


def test_a_group_ends_where_the_next_begins(install, tmp_path):
    install(
        "many",
        entry_points="[other]\na = x:y\n[torch_dynamo_backends]\n# no\nb = p.q:r [extra]\n"
        "[last]\nc = z:z\n",
    )
    found = [(e.name, e.value) for e in scan([str(tmp_path)]).entry_points("torch_dynamo_backends")]
    assert found == [("b", "p.q:r")]


def test_an_unreadable_distribution_is_named_and_hides_no_other(install, tmp_path):
    install("bad", entry_points=b"\xff\xfe\x00[torch_dynamo_backends]")
    install("good", entry_points="[torch_dynamo_backends]\nfine = a:b\n")
    installed = scan([str(tmp_path)])
    assert [e.name for e in installed.entry_points("torch_dynamo_backends")] == ["fine"]
    assert len(installed.problems) == 1
    assert installed.problems[0].startswith("bad 1.0")


def test_a_huge_file_is_not_read(install, tmp_path):
    install("huge", entry_points=b"[torch_dynamo_backends]\n" + b"x = y:z\n" * 200_000)
    installed = scan([str(tmp_path)])
    assert list(installed.entry_points("torch_dynamo_backends")) == []
    assert "larger than" in installed.problems[0]


def test_the_first_on_the_path_wins_as_in_python(tmp_path):
    for folder, version in (("first", "1.0"), ("second", "2.0")):
        (tmp_path / folder / f"Some_Name-{version}.dist-info").mkdir(parents=True)
    installed = scan([str(tmp_path / "first"), str(tmp_path / "second")])
    found = installed.find("some.name")
    assert found is not None
    assert found.version == "1.0"


def test_an_egg_info_folder_without_a_version_in_its_name_is_read_from_its_metadata(tmp_path):
    (tmp_path / "legacy.egg-info").mkdir()
    (tmp_path / "legacy.egg-info" / "PKG-INFO").write_text("Name: legacy\nVersion: 0.3\n")
    found = scan([str(tmp_path)]).find("legacy")
    assert found is not None
    assert found.version == "0.3"


def test_folders_that_are_gone_and_files_on_the_path_are_skipped(tmp_path):
    (tmp_path / "library.zip").write_bytes(b"PK")
    assert scan([str(tmp_path / "gone"), str(tmp_path / "library.zip")]).distributions == {}


def zipped(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return str(path)


def test_a_distribution_in_a_zip_file_is_found_as_importlib_metadata_finds_it(tmp_path):
    path = zipped(
        tmp_path / "library.zip",
        {
            "in_zip-1.2.dist-info/METADATA": "Name: in-zip\nVersion: 1.2\n",
            "in_zip-1.2.dist-info/entry_points.txt": f"{GROUP}zipped = in_zip:fn\n",
            "in_zip.py": "def fn(gm, inputs): ...\n",
            "deeper/no-1.0.dist-info/METADATA": "Name: no\nVersion: 1.0\n",
            "bare-2.0.dist-info/METADATA": "Name: bare\nVersion: 2.0\n",
        },
    )
    installed = scan([path])
    theirs = list(importlib.metadata.distributions(path=[path]))
    found = {(x.name, x.version) for x in installed.distributions.values()}
    assert found == {(x.name, x.version) for x in theirs}
    (entry_point,) = installed.entry_points("torch_dynamo_backends")
    expected = [e for x in theirs for e in x.entry_points]
    assert [(entry_point.name, entry_point.value)] == [(e.name, e.value) for e in expected]
    assert installed.problems == ()


def test_an_egg_is_found_as_importlib_metadata_finds_it(tmp_path):
    packed = zipped(
        tmp_path / "packed-1.5-py3.11.egg",
        {
            "EGG-INFO/PKG-INFO": "Name: packed\nVersion: 1.5\n",
            "EGG-INFO/entry_points.txt": f"{GROUP}packed = packed:fn\n",
            "packed.py": "def fn(gm, inputs): ...\n",
        },
    )
    folder = tmp_path / "some_folder-2.0-py3.11.egg"
    (folder / "EGG-INFO").mkdir(parents=True)
    (folder / "EGG-INFO" / "PKG-INFO").write_text("Name: some-folder\nVersion: 2.0\n")
    (folder / "EGG-INFO" / "entry_points.txt").write_text(f"{GROUP}unpacked = a:b\n")
    (tmp_path / "EGG-INFO").mkdir()
    paths = [packed, str(folder), str(tmp_path)]
    installed = scan(paths)
    theirs = list(importlib.metadata.distributions(path=paths))
    found = {(x.name, x.version) for x in installed.distributions.values()}
    assert found == {(x.name, x.version) for x in theirs}
    assert [e.name for e in installed.entry_points("torch_dynamo_backends")] == [
        "packed",
        "unpacked",
    ]
    assert installed.problems == ()


MANIFEST = """
schema = 1

[[backend]]
name = "zipped"
summary = "from a zip file"
"""


def test_a_manifest_in_a_zip_file_is_read(tmp_path):
    path = zipped(
        tmp_path / "library.zip",
        {
            "in_zip-1.2.dist-info/entry_points.txt": (
                f"{GROUP}zipped = in_zip:fn\n"
                "[backbay.backends]\nin_zip = in_zip:backends.toml\n"
                "lost = in_zip:lost.toml\n"
            ),
            "in_zip/__init__.py": "def fn(gm, inputs): ...\n",
            "in_zip/backends.toml": MANIFEST,
        },
    )
    environment = Environment(installed=scan([path]))
    found = discover(environment)
    (spec,) = (x for x in found.specs if x.name == "zipped")
    assert spec.summary == "from a zip file"
    assert [x for x in found.problems if "lost.toml" in x]


def test_a_zip_file_that_cannot_be_read_is_named_and_hides_no_other(install, tmp_path):
    (tmp_path / "torn.zip").write_bytes(b"PK\3\4torn")
    bomb = {"bomb-1.0.dist-info/entry_points.txt": f"{GROUP}{'#' * (2 << 20)}"}
    binary = {"binary-1.0.dist-info/entry_points.txt": b"\xff"}
    marked = {"marked-1.0.dist-info/entry_points.txt": f"\ufeff{GROUP}marked = a:b\n"}
    os.mkfifo(tmp_path / "pipe.zip")
    paths = [
        str(tmp_path / "torn.zip"),
        str(tmp_path / "pipe.zip"),
        zipped(tmp_path / "bomb.zip", bomb),
        zipped(tmp_path / "binary.zip", binary),
        zipped(tmp_path / "marked.zip", marked),
        str(tmp_path),
    ]
    install("good", entry_points=f"{GROUP}fine = a:b\n")
    installed = scan(paths)
    found = [e.name for e in installed.entry_points("torch_dynamo_backends")]
    assert found == ["marked", "fine"]
    torn, bomb_said, binary_said = installed.problems
    assert torn.startswith(f"{paths[0]!a} on sys.path cannot be read: it is neither a folder nor")
    assert bomb_said.count("bomb.zip") == 1
    assert "larger than" in bomb_said
    assert "not UTF-8" in binary_said


def test_a_folder_that_cannot_be_read_is_said_and_one_that_is_gone_is_not(install, tmp_path):
    install("good", entry_points=f"{GROUP}fine = a:b\n")
    (tmp_path / "loop").symlink_to("loop")
    long = str(tmp_path / ("n" * 300))
    installed = scan([str(tmp_path / "loop"), long, str(tmp_path / "gone"), "\0", str(tmp_path)])
    assert [e.name for e in installed.entry_points("torch_dynamo_backends")] == ["fine"]
    loop, name = installed.problems
    assert loop.startswith(ascii(str(tmp_path / "loop")) + " on sys.path cannot be read: ")
    assert "n" * 300 in name


def test_a_folder_without_permission_is_said(monkeypatch, tmp_path):
    def refuse(_folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    (problem,) = scan([str(tmp_path)]).problems
    assert problem == f"{str(tmp_path)!a} on sys.path cannot be read: Permission denied"


def test_entry_points_behind_a_byte_order_mark_are_read(install, tmp_path):
    install("marked", entry_points=f"\ufeff{GROUP}marked = a:b\n")
    found = [e.name for e in scan([str(tmp_path)]).entry_points("torch_dynamo_backends")]
    assert found == ["marked"]


def test_paths_without_a_zip_file_do_not_import_zipfile(tmp_path):
    code = (
        "import sys; from backbay.registry.distributions import scan; "
        f"scan([{str(tmp_path)!r}, '/gone/python.zip']).problems; print('zipfile' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(backbay.__file__).parents[1])},
    )
    assert done.stdout == "False\n"
