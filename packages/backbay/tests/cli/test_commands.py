"""doctor, lock, check-manifest, and the filters of list."""

import json
import re

import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.errors import BackendLoadError
from backbay.registry.policy import Layer, Policy

PUBLISHES = "[torch_dynamo_backends]\nplugged = plug_in:fn\n"


def backbay(*arguments: str, **options):
    return CliRunner(**options).invoke(main, list(arguments))


@pytest.fixture
def seen(monkeypatch, registry):
    """Let every command look at the `registry` fixture's installation."""
    monkeypatch.setattr("backbay.cli.elsewhere.default_registry", registry)
    return registry


def names(*arguments: str) -> set[str]:
    return {row["name"] for row in json.loads(backbay(*arguments, "--json").stdout)["backends"]}


def test_list_filters(seen, install, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "plug_in.py").write_text("")
    install("plug-in", "3.1", PUBLISHES)
    assert names("list") == {"inductor", "cudagraphs", "tvm", "openxla", "plugged"}
    assert names("list", "--available") >= {"plugged"}
    assert "tvm" not in names("list", "--available")
    assert "cudagraphs" not in names("list", "--device", "cpu")
    assert "plugged" in names("list", "--device", "cpu")  # nobody said that it can't
    assert names("list", "--tag", "experimental") == {"openxla_eval"}
    assert {"tensorrt", "aot_eager", "onnxrt"} <= names("list", "--all")


def test_a_device_decides_the_state_in_the_list(seen):
    rows = json.loads(backbay("list", "--device", "cuda", "--json").stdout)["backends"]
    assert {row["state"] for row in rows if row["name"] == "inductor"} == {"no_device"}


def test_info_shows_every_candidate_its_standing_and_the_rule(seen, install):
    install("plug-in", "3.1", PUBLISHES)
    install("other", "1.0", PUBLISHES)
    seen._given_standing = Policy(
        (Layer(source="test.toml", block=frozenset({"other"}), pin={"plugged": "plug-in"}),)
    )
    document = json.loads(backbay("info", "plugged", "--json").stdout)
    first, second = document["candidates"]
    assert (first["standing"], second["standing"]) == ("wins", "blocked")
    assert first["why"] == "test.toml pins it to plug-in"
    assert "blocked by test.toml" in second["why"]
    text = backbay("info", "plugged").stdout
    assert "test.toml pins it to plug-in" in text
    assert "other 1.0" in text


def test_list_and_info_say_which_file_decides(seen, install, tmp_path, monkeypatch):
    install("plug-in", "3.1", PUBLISHES)
    install("other", "1.0", PUBLISHES)
    above = tmp_path / "backbay.toml"
    above.write_text('[pin]\nplugged = "other"\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    state = {"version": 1, "layers": [{"source": "job.py", "block": ["x"]}], "backends": {}}
    monkeypatch.setenv("BACKBAY_STATE", json.dumps(state))
    sources = [str(above), "job.py, of the parent process (BACKBAY_STATE)"]
    for command in (["list"], ["info", "plugged"]):
        assert json.loads(backbay(*command, "--json").stdout)["policy"] == sources
    assert [x for x in backbay("list").stderr.splitlines() if x.startswith("policy: ")] == [
        f"policy: {x}" for x in sources
    ]
    assert "BACKBAY_STATE" in backbay("info", "plugged").stdout
    with pytest.raises(BackendLoadError, match=re.escape(f"({above} pins the name to other)")):
        seen.lookup_backend("plugged")


def test_info_of_an_absent_backend_says_how_to_get_it(seen):
    text = backbay("info", "tensorrt").stdout
    assert "not_installed" in text
    assert "pip install torch-tensorrt" in text


def test_doctor_fails_where_the_policy_requires_what_is_not_ready(seen):
    assert backbay("doctor").exit_code == 0
    seen._given_standing = Policy((Layer(source="ci.toml", require=("tvm", "nobody", "eager")),))
    del seen.__dict__["_standing"]
    done = backbay("doctor", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["unmet"] == [
        "ci.toml requires tvm, which is not_installed",
        "ci.toml requires nobody, which is unknown",
    ]
    assert "requires tvm" in backbay("doctor").stderr


def test_doctor_says_that_torch_still_finds_what_is_blocked_here(seen, install):
    install("plug-in", "3.1", PUBLISHES)
    seen._given_standing = Policy((Layer(source="x", block=frozenset({"plug-in"})),))
    done = backbay("doctor", "plugged", "--json")
    (row,) = json.loads(done.stdout)["backends"]
    assert (row["state"], row["reason"]) == ("blocked", "plug-in is blocked by x")
    assert "still finds it" in json.loads(done.stdout)["notes"][0]


@pytest.mark.slow
def test_doctor_probes_in_a_child_and_says_what_loading_costs(seen, install, tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    install("plug-in", "3.1", PUBLISHES)
    done = backbay("doctor", "plugged", "--probe", "--json")
    (row,) = json.loads(done.stdout)["backends"]
    assert row["state"] == "broken"
    assert "the module 'plug_in' is not there" in row["reason"]
    assert "probe" not in row
    (tmp_path / "plug_in.py").write_text("import torch\nraise RuntimeError('no licence')\n")
    seen.refresh()
    (row,) = json.loads(backbay("doctor", "plugged", "--json").stdout)["backends"]
    assert (row["state"], row["reason"].partition(":")[0]) == (
        "ready",
        "ready as declared; not tried",
    )
    done = backbay("doctor", "plugged", "--probe", "--json")
    (row,) = json.loads(done.stdout)["backends"]
    assert (row["state"], row["probe"]["stage"]) == ("broken", "import")
    assert "no licence" in row["reason"]
    (tmp_path / "plug_in.py").write_text("def fn(gm, inputs):\n    return gm.forward\n")
    done = backbay("doctor", "plugged", "--probe", "--fresh", "--json")
    (row,) = json.loads(done.stdout)["backends"]
    assert (row["state"], row["probe"]["passed"]) == ("ready", True)
    assert row["probe"]["import_ms"] > 0


def test_lock_and_its_check(seen, install, tmp_path):
    install("plug-in", "3.1", PUBLISHES)
    path = str(tmp_path / "backbay.lock")
    assert backbay("lock", "--file", path).exit_code == 0
    assert backbay("lock", "--check", "--file", path).exit_code == 0
    install("new", "1.0", "[torch_dynamo_backends]\nfresh = new:fn\n")
    seen.refresh()
    done = backbay("lock", "--check", "--file", path, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["drift"] == ["fresh is provided by new and is not in the lock"]
    missing = backbay("lock", "--check", "--file", str(tmp_path / "absent"))
    assert missing.exit_code == 2


def test_check_manifest_names_each_problem_and_its_place(tmp_path):
    path = tmp_path / "backends.toml"
    path.write_text('schema = 1\n[[backend]]\nname = "mine"\nsummary = "Mine"\n')
    assert backbay("check-manifest", str(path)).exit_code == 0
    path.write_text(
        'schema = 1\n[[backend]]\nname = "mine"\nsumary = "Mine"\n'
        '[backend.requires]\ntorch = ">=two"\ndistributions = ["a b"]\n'
    )
    done = backbay("check-manifest", str(path), "--json")
    assert done.exit_code == 1
    problems = json.loads(done.stdout)["problems"]
    assert len(problems) == 3
    assert "did you mean summary?" in problems[0]
    assert json.loads(backbay("check-manifest", "--schema").stdout)["type"] == "object"
    assert backbay("check-manifest").exit_code == 2
    assert backbay("check-manifest", str(tmp_path / "absent.toml")).exit_code == 1


def test_a_manifest_that_only_torch_may_write_is_understood(tmp_path):
    path = tmp_path / "backends.toml"
    path.write_text(
        'schema = 1\n[[backend]]\nname = "mine"\nregisters = "removed"\n'
        '[backend.options.level]\ntype = "int"\ndefault = "x"\n'
        '[backend.requires]\npython = ">=1st"\n'
        '[[backend.broken]]\nreason = "a"\ntorch = ">=2nd"\nversion = ">=3rd"\n'
        '[[backend.limits]]\nreason = "b"\ntorch = ">=4th"\n'
        '[[backend]]\nname = "eager"\nregisters = "torch"\n'
        '[[backend]]\nname = "relax_dynamo"\n'
    )
    problems = json.loads(backbay("check-manifest", str(path), "--json").stdout)["problems"]
    assert [x.removeprefix(f"{path}: ") for x in problems] == [
        "mine: only torch's own backends are registers = 'removed'",
        "mine: the default: option 'level' of it is int, not str",
        "mine: Invalid specifier: '>=1st'",
        "mine: Invalid specifier: '>=2nd'",
        "mine: Invalid specifier: '>=3rd'",
        "mine: Invalid specifier: '>=4th'",
        "eager: only torch's own backends are registers = 'torch'",
        "eager: the name is torch's own, and reserved",
    ]


def test_check_manifest_stops_at_the_first_of_several_files(tmp_path):
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('schema = 1\n[[backend]]\nname = "mine"\n')
    bad.write_text('schema = 1\n[[backend]]\nname = "other"\nsumary = "Other"\n')
    for paths in ((good, bad), (bad, good)):
        done = backbay("check-manifest", *map(str, paths))
        assert done.exit_code == 1
        assert f"{good}: mine: understood" in done.stdout
        assert f"{bad}: other: 1 problem" in done.stdout
    both = json.loads(backbay("check-manifest", str(good), str(bad), "--json").stdout)
    assert both["backends"] == ["mine", "other"]
    assert len(both["problems"]) == 1


def test_every_command_has_help_with_an_example():
    for command in ("list", "info", "doctor", "lock", "check-manifest", "race", "explain"):
        assert "Examples:" in backbay(command, "--help").stdout
