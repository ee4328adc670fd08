"""--python and --venv: what commands say of another environment, of which they import nothing."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from click.testing import CliRunner
from other_environment import Other

from backbay.cli import main

READING = ("list", "info", "doctor", "lock", "check-manifest", "stubs")
MANIFEST = 'schema = 1\n[[backend]]\nname = "plugged"\nsummary = "Plugged in"\n'
ENTRY_POINTS = (
    "[torch_dynamo_backends]\nplugged = plug_in:fn\n"
    "[backbay.backends]\nplugged = plug_in:backends.toml\n"
)


def backbay(*arguments: object):
    return CliRunner().invoke(main, [str(x) for x in arguments])


@pytest.fixture
def other(tmp_path, monkeypatch) -> Path:
    """A virtual environment with a torch, and with a distribution that publishes a backend."""
    made = Other(tmp_path / "other")
    made.write(
        {
            "torch/__init__.py": "",
            "torch/version.py": "__version__ = '2.12.1+cpu'\ncuda = None\n",
            "plug_in/__init__.py": "",
            "plug_in/backends.toml": MANIFEST,
            "plug_in-3.1.dist-info/entry_points.txt": ENTRY_POINTS,
        }
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKBAY_CONFIG", "off")
    return made.folder


def python(other: Path) -> Path:
    return other / "bin" / "python"


def site(other: Path) -> Path:
    return next(other.glob("lib/python*/site-packages"))


@pytest.mark.parametrize("command", READING)
def test_json_says_whose_environment_was_read(other, command):
    arguments = [command, *(["plugged"] if command == "info" else [])]
    by_python = backbay(*arguments, "--python", python(other), "--json")
    by_folder = backbay(*arguments, "--venv", other, "--json")
    assert by_python.exit_code == 0, by_python.output
    assert by_python.stdout == by_folder.stdout
    assert json.loads(by_python.stdout)["interpreter"] == {
        "executable": str(python(other)),
        "python": ".".join(map(str, sys.version_info[:3])),
        "platform": f"{sys.platform}-{os.uname().machine}",
        "torch": "2.12.1+cpu",
    }


@pytest.mark.parametrize("command", ["list", "doctor", "info", "lock", "check-manifest"])
def test_a_table_has_the_interpreter_above_it(other, command):
    arguments = [command, *(["plugged"] if command == "info" else [])]
    done = backbay(*arguments, "--venv", other)
    first = done.stdout.splitlines()[0]
    version = ".".join(map(str, sys.version_info[:3]))
    assert first == f"{python(other)}: Python {version}, torch 2.12.1+cpu"
    assert "plugged" in done.stdout or command == "lock"


def test_its_own_environment_has_no_header_and_is_named_in_json():
    assert backbay("list").stdout.startswith("backend ")
    said = json.loads(backbay("list", "--json").stdout)["interpreter"]
    assert said["executable"] == sys.executable


def test_the_rows_are_those_of_the_environment(other):
    rows = json.loads(backbay("list", "--all", "--venv", other, "--json").stdout)["backends"]
    found = {row["name"]: row for row in rows}
    assert found["plugged"]["state"] == "ready"
    assert found["plugged"]["summary"] == "Plugged in"
    assert found["inductor"]["origin"] == "torch 2.12.1+cpu"
    assert found["backbay"]["state"] == "not_installed"


def test_doctor_says_how_to_install_there(other):
    done = backbay("doctor", "openvino", "--python", python(other))
    assert f"note: pip installs there as: pip --python {python(other)} install" in done.stderr
    assert "pip installs there" not in backbay("doctor", "plugged", "--venv", other).stderr


def test_a_policy_that_requires_something_is_about_the_environment(other, monkeypatch):
    monkeypatch.setenv("BACKBAY_REQUIRE", "plugged,backbay")
    done = backbay("doctor", "--venv", other, "--json")
    assert done.exit_code == 1
    (unmet,) = json.loads(done.stdout)["unmet"]
    assert unmet.endswith("requires backbay, which is not_installed")


def test_a_lock_is_of_the_environment_and_a_drift_is_seen_there(other, tmp_path):
    done = backbay("lock", "--venv", other, "--file", "other.lock")
    assert done.exit_code == 0
    text = (tmp_path / "other.lock").read_text()
    assert 'torch = ">=2.12,<2.13"' in text
    assert text.count("[[backend]]") == 1
    assert 'distribution = "plug-in"' in text
    same = ("lock", "--check", "--venv", other, "--file", "other.lock")
    assert backbay(*same).exit_code == 0
    before = site(other) / "plug_in-3.1.dist-info"
    before.rename(before.with_name("plug_in-3.2.dist-info"))
    changed = backbay(*same, "--json")
    assert changed.exit_code == 1
    assert json.loads(changed.stdout)["drift"] == ["plugged: version is 3.2, and the lock says 3.1"]
    assert backbay("lock", "--check", "--file", "other.lock").exit_code == 1


def test_installed_manifests_are_checked_where_they_are(other):
    path = site(other) / "plug_in" / "backends.toml"
    done = backbay("check-manifest", "--venv", other)
    assert (done.exit_code, f"{path}: plugged: understood" in done.stdout) == (0, True)
    path.write_text(MANIFEST + 'sumary = "x"\n')
    assert "did you mean summary?" in backbay("check-manifest", "--venv", other).stdout
    path.unlink()
    done = backbay("check-manifest", "--venv", other, "--json")
    assert done.exit_code == 1
    (problem,) = json.loads(done.stdout)["problems"]
    assert "plug-in 3.1: manifest plugged: " in problem
    assert problem in backbay("check-manifest", "--venv", other).stdout
    (site(other) / "plug_in-3.1.dist-info" / "entry_points.txt").unlink()
    done = backbay("check-manifest", "--venv", other)
    assert "no distribution there publishes a manifest" in done.stdout


def test_a_manifest_that_is_named_has_no_interpreter(other, tmp_path):
    (tmp_path / "own.toml").write_text(MANIFEST)
    assert json.loads(backbay("check-manifest", "own.toml", "--json").stdout)["interpreter"] is None
    assert backbay("check-manifest", "own.toml", "--venv", other).exit_code == 2


def test_stubs_are_written_beside_its_packages(other):
    done = backbay("stubs", "--venv", other)
    assert done.exit_code == 0, done.output
    text = (site(other) / "backbay-stubs" / "registry" / "names.pyi").read_text()
    assert "'plugged'" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "--python", "other/bin/python", "--venv", "other"), "--venv, not both"),
        (("list", "--python", "other/bin/absent"), "there is no interpreter "),
        (("doctor", "--venv", "."), "has no Python"),
        (("doctor", "--venv", "other", "--probe"), "-m backbay doctor --probe"),
        (("doctor", "openvino", "--venv", "other", "--fresh-venvs"), "is only read"),
        (("info", "plugd", "--venv", "other"), "did you mean: 'plugged'?"),
    ],
)
def test_what_cannot_be_done_ends_with_2_and_one_line(other, arguments, said):
    done = backbay(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def run(command: list[object], **settings: object) -> subprocess.CompletedProcess[str]:
    kept = {key: x for key, x in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(x) for x in command],
        env={**kept, "BACKBAY_CONFIG": "off"},
        capture_output=True,
        text=True,
        check=True,
        **settings,
    )


EVERY = """
import sys
from backbay.cli import main

folder, *commands = sys.argv[1:]
for command in commands:
    named = ["plugged"] if command == "info" else []
    try:
        main([command, *named, "--venv", folder])
    except SystemExit as ended:
        assert not ended.code, command
print("LOADED", *{"torch", "plug_in"} & set(sys.modules))
"""


def test_neither_torch_nor_a_backend_is_imported(other):
    for name in ("torch", "plug_in"):
        (site(other) / name / "__init__.py").write_text("raise SystemExit('imported')\n")
    done = run([sys.executable, "-c", EVERY, other, *READING])
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_an_editable_installation_says_the_same_from_outside_as_from_inside(tmp_path):
    """The other environment has Backbay as editable, and sees this one's packages by a path."""
    folder = tmp_path / "other"
    venv.EnvBuilder(symlinks=True).create(folder)
    found = importlib.metadata.distribution("backbay")
    if "editable" not in (found.read_text("direct_url.json") or ""):
        pytest.skip("Backbay is installed, but not as editable")
    for file in found.files or ():
        if ".." not in file.parts:
            (site(folder) / file).parent.mkdir(exist_ok=True)
            shutil.copy(file.locate(), site(folder) / file)
    (site(folder) / "zz.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    for arguments in (["list", "--all"], ["info", "backbay_fold"], ["doctor"]):
        outside = [sys.executable, "-m", "backbay", *arguments, "--venv", folder, "--json"]
        inside = [python(folder), "-m", "backbay", *arguments, "--json"]
        read = json.loads(run(outside, cwd=tmp_path).stdout)
        if arguments == ["doctor"]:
            assert "pip installs there" in read["notes"].pop()
        assert read == json.loads(run(inside, cwd=tmp_path).stdout)
        assert read["interpreter"]["executable"] == str(python(folder))
