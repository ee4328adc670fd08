"""The hand-written reader of installed distributions."""

import importlib.metadata

from backbay.registry.distributions import normalise, scan


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
