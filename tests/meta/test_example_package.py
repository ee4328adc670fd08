"""The example package: built and installed as anyone's, it is listed, described and right."""

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from pathlib import Path

import pytest

from backbay.registry.manifest import json_schema

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "backbay-example-backend"
MANIFEST = EXAMPLE / "src" / "backbay_example_backend" / "backends.toml"
NAME = "silu_eager"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # --no-build-isolation: hatchling is here; nothing is downloaded.
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(EXAMPLE))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    return folder


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def python(installed: Path, *arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(installed), "BACKBAY_CONFIG": "0"},
        cwd=cwd or installed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_without_its_manifest_would_describe_nothing(wheel):
    packed = zipfile.ZipFile(wheel)
    assert packed.read("backbay_example_backend/backends.toml") == MANIFEST.read_bytes()
    (entry_points,) = (x for x in packed.namelist() if x.endswith(".dist-info/entry_points.txt"))
    assert b"[torch_dynamo_backends]" in packed.read(entry_points)


def test_the_list_shows_it_without_importing_it_or_torch(installed):
    program = """
        import sys
        from backbay.cli import main
        main(["list", "--json"], standalone_mode=False)
        loaded = {name.partition(".")[0] for name in sys.modules}
        assert not loaded & {"torch", "backbay_example_backend"}, loaded
    """
    document = json.loads(python(installed, "-c", textwrap.dedent(program)))
    row = next(x for x in document["backends"] if x["name"] == NAME)
    assert row["state"] == "ready"
    assert row["summary"] == "Replaces sigmoid(x) * x by silu(x), and runs the rest as it is"
    assert row["origin"].startswith("backbay_example_backend 0.1.0 ")
    assert document["problems"] == []


def test_its_spec_has_what_its_manifest_says(installed):
    program = f"""
        import json
        from backbay.registry import default_registry
        from backbay.registry.spec import as_data
        print(json.dumps(as_data(default_registry.spec({NAME!r}))))
    """
    spec = json.loads(python(installed, "-c", textwrap.dedent(program)))
    (said,) = tomllib.loads(MANIFEST.read_text())["backend"]
    assert spec["traits"] == said["traits"]  # and nothing that it does not say
    assert spec["requires"]["torch"] == said["requires"]["torch"]
    assert spec["homepage"] == said["homepage"]
    assert spec["reserved_launch_param_names"] == said["reserved_launch_param_names"]
    options = {x.pop("name"): x for x in spec["options"]}
    assert options["limit"]["default"] == -1
    assert options["on_none"]["choices"] == ["ignore", "warn", "raise"]
    for name, option in said["options"].items():
        assert options[name].items() >= option.items()


def test_torch_compiles_with_it_and_both_registries_give_the_same_object(installed):
    program = f"""
        import torch
        import backbay
        from torch._dynamo.backends.registry import lookup_backend

        def gated(x, weight):
            y = x @ weight
            return (y * torch.sigmoid(y)).sum(dim=0)

        def step(function):
            torch.manual_seed(0)
            x, weight = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
            out = function(x, weight)
            out.square().sum().backward()
            return out, x.grad, weight.grad

        wanted = step(gated)
        options = {{"on_none": "raise"}}
        torch.testing.assert_close(step(torch.compile(gated, backend={NAME!r})), wanted)
        strict = torch.compile(gated, backend={NAME!r}, options=options)
        torch.testing.assert_close(step(strict), wanted)
        checked = backbay.compile(gated, backend={NAME!r}, options=options)
        torch.testing.assert_close(step(checked), wanted)
        assert backbay.lookup_backend({NAME!r}) is lookup_backend({NAME!r})
        try:
            backbay.compile(gated, backend={NAME!r}, options={{"limti": 1}})
        except backbay.BackbayError as error:
            assert "did you mean 'limit'" in str(error), error
        else:
            raise AssertionError("a mistaken option was let through")
    """
    python(installed, "-c", textwrap.dedent(program))


def test_its_own_tests_pass_against_the_wheel(installed, tmp_path):
    # Away from the sources, so that what is installed is what is tested.
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_backend.py").write_text((EXAMPLE / "tests" / "test_backend.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    said = python(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert " passed" in said


# -- the page on publishing


def keys(schema: dict, path: str = "") -> set[str]:
    """Every key that a manifest may have, as the page writes it: ``options.NAME.type``."""
    found = set()
    for key, value in schema.get("properties", {}).items():
        at = "" if (path, key) == ("", "backend") else f"{path}{key}."
        found |= {path + key} | keys(value, at)
    below = [schema["items"]] if "items" in schema else schema.get("anyOf", [])
    found |= {key for value in below for key in keys(value, path)}
    if isinstance(schema.get("additionalProperties"), dict):
        found |= keys(schema["additionalProperties"], f"{path}NAME.")
    return found


def test_every_key_of_the_manifest_is_on_the_page():
    page = (ROOT / "docs" / "publishing.md").read_text()
    table = page.partition("| key | value |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [key for cell in cells for key in re.findall(r"`([^`]+)`", cell)]
    assert keys(json_schema()) > {"schema", "backend", "traits.training", "options.NAME.help"}
    assert sorted(named) == sorted(keys(json_schema()))


def test_the_published_schema_is_the_readers():
    path = ROOT / "docs" / "manifest.schema.json"
    made = json.dumps(json_schema(), indent=2) + "\n"
    assert path.read_text() == made, "backbay check-manifest --schema > docs/manifest.schema.json"


def test_the_example_and_the_pages_manifest_fit_the_schema_and_the_reader(tmp_path):
    import jsonschema

    page = (ROOT / "docs" / "publishing.md").read_text()
    (shown,) = (x.split("```")[0] for x in page.split("```toml\n")[1:] if x.startswith("schema"))
    on_page = tmp_path / "backends.toml"
    on_page.write_text(shown)
    for path in (MANIFEST, on_page):
        jsonschema.validate(tomllib.loads(path.read_text()), json_schema())
        command = "from backbay.cli import main; main()"
        python(tmp_path, "-c", command, "check-manifest", str(path))
