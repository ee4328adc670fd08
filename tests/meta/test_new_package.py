"""What ``backbay new`` writes is a package like anyone's: built, listed, right and raced."""

import json
import os
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.new.naming import LONGEST

pytestmark = pytest.mark.slow

CORE = Path(__file__).parents[2] / "packages" / "backbay"
NAME = "Acme.relu-fast_2"
PACKAGE = "acme_relu_fast_2"
OTHERS = ("acme-fast", "acme_faster")


def new(name: str, folder: Path) -> Path:
    done = CliRunner().invoke(main, ["new", name, "--directory", str(folder / name)])
    assert done.exit_code == 0, done.output
    return folder / name


def run(*command: str, cwd: Path, path: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path + os.environ.get("PYTHONPATH", "")}
        | {"BACKBAY_CONFIG": "0"},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    return {name: new(name, folder) for name in (NAME, *OTHERS)}


@pytest.fixture(scope="module")
def wheels(made, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    # --no-build-isolation: hatchling is here; nothing is downloaded.
    options = ("--no-build-isolation", "--no-deps", "-q", "--disable-pip-version-check")
    built = {}
    for name, source in made.items():
        run("-m", "pip", "wheel", *options, "-w", str(folder / name), str(source), cwd=source)
        (built[name],) = (folder / name).glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory) -> str:
    """Install over the test environment; give what goes before ``PYTHONPATH``."""
    folder = tmp_path_factory.mktemp("installed")
    options = ("--no-deps", "--no-index", "-q", "--disable-pip-version-check")
    files = [str(x) for x in wheels.values()]
    run("-m", "pip", "install", *options, "--target", str(folder), *files, cwd=folder)
    return f"{folder}{os.pathsep}"


def test_backbays_own_wheel_carries_every_template(tmp_path):
    options = ("--no-build-isolation", "--no-deps", "-q", "--disable-pip-version-check")
    run("-m", "pip", "wheel", *options, "-w", str(tmp_path), str(CORE), cwd=tmp_path)
    (built,) = tmp_path.glob("*.whl")
    templates = [x for x in (CORE / "src" / "backbay" / "new").rglob("*.*") if x.suffix != ".pyc"]
    wanted = {x.relative_to(CORE / "src").as_posix() for x in templates if x.is_file()}
    assert "backbay/new/template/.github/workflows/ci.yml.jinja" in wanted
    assert wanted <= set(zipfile.ZipFile(built).namelist())


def test_a_wheel_without_its_manifest_would_describe_nothing(made, wheels):
    packed = zipfile.ZipFile(wheels[NAME])
    manifest = made[NAME] / "src" / PACKAGE / "backends.toml"
    assert packed.read(f"{PACKAGE}/backends.toml") == manifest.read_bytes()
    assert f"{PACKAGE}/py.typed" in packed.namelist()
    assert any(x.endswith("LICENSE") for x in packed.namelist())
    (entry_points,) = (x for x in packed.namelist() if x.endswith(".dist-info/entry_points.txt"))
    assert b"[torch_dynamo_backends]" in packed.read(entry_points)


def test_all_are_listed_as_ready_without_importing_them_or_torch(installed, tmp_path):
    program = """
        import sys
        from backbay.cli import main
        main(["list", "--json"], standalone_mode=False)
        loaded = {name.partition(".")[0] for name in sys.modules}
        assert not {x for x in loaded if x == "torch" or x.startswith("acme")}, loaded
    """
    document = json.loads(run("-c", textwrap.dedent(program), cwd=tmp_path, path=installed))
    rows = {row["name"]: row for row in document["backends"]}
    for name in (NAME, *OTHERS):
        assert rows[name]["state"] == "ready"
        assert rows[name]["summary"].startswith("Computes relu(x) ** 2 by one Triton kernel")
    assert rows[NAME]["origin"].startswith("acme-relu-fast-2 0.1.0 ")
    assert document["problems"] == []


def test_its_spec_has_what_its_manifest_says(made, installed, tmp_path):
    program = f"""
        import json
        from backbay.registry import default_registry
        from backbay.registry.spec import as_data
        print(json.dumps(as_data(default_registry.spec({NAME!r}))))
    """
    spec = json.loads(run("-c", textwrap.dedent(program), cwd=tmp_path, path=installed))
    manifest = made[NAME] / "src" / PACKAGE / "backends.toml"
    (said,) = tomllib.loads(manifest.read_text())["backend"]
    assert spec["traits"] == said["traits"]  # and nothing that it does not say
    assert spec["requires"]["torch"] == said["requires"]["torch"]
    assert dict(spec["requires"]["tools"]) == said["requires"]["tools"]
    assert spec["options"] == said["options"]


def test_torch_compiles_with_each_and_both_registries_give_the_same_object(installed, tmp_path):
    program = f"""
        import torch
        import backbay
        from backbay.kit.observing import collected
        from torch._dynamo.backends.registry import lookup_backend

        def function(x):
            return (torch.relu(x) ** 2).sum(dim=0)

        x = torch.randn(8, 8)
        for name in {(NAME, *OTHERS)!r}:
            torch.compiler.reset()
            backend = backbay.lookup_backend(name)
            assert backend is lookup_backend(name)
            with collected() as reports:
                torch.testing.assert_close(torch.compile(function, backend=name)(x), function(x))
            assert [r.changes for r in reports] == [1]
            checked = backbay.compile(function, backend=name, options={{"epilogue_fusion": False}})
            torch.testing.assert_close(checked(x), function(x))
            try:
                backbay.compile(function, backend=name, options={{"epilogue_fusio": False}})
            except backbay.BackbayError as error:
                assert "did you mean 'epilogue_fusion'" in str(error), error
            else:
                raise AssertionError("a mistaken option was let through")
    """
    run("-c", textwrap.dedent(program), cwd=tmp_path, path=installed)


@pytest.mark.parametrize(
    "chosen",
    [
        # Each of its tests, the slowest with one set of parameters that generates code and not
        # with four; the suite's own tests are what proves the two cases that are left out.
        "not (inductor and (static or bfloat16)) and not forked_child and not configured_object",
        pytest.param("", marks=pytest.mark.sweep),
    ],
    ids=["one of a kind", "all"],
)
def test_its_own_tests_pass_against_the_wheel(made, installed, chosen):
    # Its sources are in src/, where Python does not look: what is installed is what is tested.
    said = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "conformance_levels=load"),
        *("-k", chosen),
        cwd=made[NAME],
        path=installed,
    ).splitlines()[-1]
    assert " passed" in said
    assert "failed" not in said


def test_it_is_right_in_a_race(made, installed):
    options = ("--backends", f"eager,{NAME}", "--train", "--device", "cpu", "--seconds", "0.5")
    said = run(
        *("-m", "backbay", "race", "examples/mlp.py:mlp", *options, "--json", "-"),
        cwd=made[NAME],
        path=installed,
    )
    rows = {row["backend"]: row for row in json.loads(said)["results"]}
    assert rows[NAME]["status"] == "ok", rows[NAME]["reason"]
    assert rows[NAME]["verdict"]["passed"]
    assert (rows[NAME]["graphs"], rows[NAME]["breaks"]) == (1, 0)


@pytest.mark.parametrize("name", ["q", "acme-fast", "x" * LONGEST])
def test_a_name_of_any_length_passes_the_packages_own_linter(name, tmp_path):
    # The length of a name decides where lines break.
    made = new(name, tmp_path)
    run("-m", "ruff", "check", "--no-cache", cwd=made)
    run("-m", "ruff", "format", "--check", "--no-cache", cwd=made)


def test_the_linter_above_can_fail(tmp_path):
    made = new("acme-fast", tmp_path)
    (made / "src" / "acme_fast" / "backend.py").write_text("import os\n")
    with pytest.raises(AssertionError, match="F401"):
        run("-m", "ruff", "check", "--no-cache", cwd=made)


def test_it_is_typed_to_the_last_line(made, tmp_path):
    said = run("-m", "mypy", "--cache-dir", str(tmp_path), cwd=made[NAME], path=f"src{os.pathsep}")
    assert said.startswith("Success: no issues found in 9 source files")
