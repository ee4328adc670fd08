"""The page on publishing is true: every key of a manifest, its schema, its example."""

import json
import re
import tomllib
from pathlib import Path

import jsonschema
from click.testing import CliRunner

from backbay.cli import main
from backbay.registry.manifest import json_schema

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "publishing.md").read_text()


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
    table = PAGE.partition("| key | value |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [key for cell in cells for key in re.findall(r"`([^`]+)`", cell)]
    assert keys(json_schema()) > {"schema", "backend", "traits.training", "options.NAME.help"}
    assert sorted(named) == sorted(keys(json_schema()))


def test_the_published_schema_is_the_readers():
    path = ROOT / "docs" / "manifest.schema.json"
    made = json.dumps(json_schema(), indent=2) + "\n"
    assert path.read_text() == made, "backbay check-manifest --schema > docs/manifest.schema.json"


def test_the_example_and_the_pages_manifest_fit_the_schema_and_the_reader(tmp_path):
    (shown,) = (x.split("```")[0] for x in PAGE.split("```toml\n")[1:] if x.startswith("schema"))
    on_page = tmp_path / "backends.toml"
    on_page.write_text(shown)
    (example,) = (ROOT / "examples").glob("*/src/*/backends.toml")
    for path in (example, on_page):
        jsonschema.validate(tomllib.loads(path.read_text()), json_schema())
        done = CliRunner().invoke(main, ["check-manifest", str(path)])
        assert done.exit_code == 0, done.output
