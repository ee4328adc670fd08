"""``backbay diagnose`` as it is called: exit codes, streams, files."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from backbay.cli import main

MODELS = Path(__file__).parents[1] / "diagnose" / "models.py"


def diagnose(*arguments: str):
    options = ["--device", "cpu", "--backend", "eager", "--budget", "0"]
    return CliRunner().invoke(main, ["diagnose", *options, *arguments])


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    """Diagnose a model with a defect once; the report is in a file."""
    folder = tmp_path_factory.mktemp("diagnosed")
    path, page = folder / "report.json", folder / "report.html"
    asked = ("--json", str(path), "--html", str(page), "--fail-on", "BB1")
    done = diagnose(f"{MODELS}:reading", *asked)
    return done, json.loads(path.read_text()), page


def test_it_begins_with_what_to_fix_first_and_its_line(reading):
    done, *_ = reading
    _, _, rest = done.stdout.partition("Fix this first")
    said = " ".join(rest.split())
    assert said.startswith("BB102 warning: a tensor's value is read as a Python number")
    assert "scale = h.abs().max().item()" in said
    assert "not tried: torch._dynamo.config.capture_scalar_outputs = True" in said


def test_what_it_fails_on_ends_with_1_and_says_so(reading):
    done, *_ = reading
    assert done.exit_code == 1
    assert "--fail-on: BB102" in done.stderr


def test_json_has_the_schema_the_arm_and_the_explanation(reading):
    _, document, _ = reading
    assert document["schema"] == "backbay.diagnose/1"
    assert document["settings"]["arm"] == "eager"
    assert document["explanation"]["schema"].startswith("backbay.explain/")
    assert document["inside"]["step"]["wall_ms"] > 0


def test_the_page_has_the_same_and_its_place_is_printed(reading):
    done, document, page = reading
    text = page.read_text()
    embedded = re.search('id="diagnosis">(.*?)</script>', text, re.DOTALL)
    assert json.loads(embedded[1]) == document
    assert "scale = h.abs().max().item()" in text
    assert f"page: {page}" in done.stdout.replace("\n", "")


def test_a_page_that_cant_be_written_is_found_out_before_anything_is_compiled(tmp_path):
    done = diagnose(f"{MODELS}:reading", "--html", str(tmp_path / "no" / "report.html"))
    assert done.exit_code == 2
    assert "report.html can't be written" in done.stderr
    assert "Fix this first" not in done.stdout


def test_a_model_that_raises_ends_with_1_and_no_traceback():
    done = diagnose(f"{MODELS}:raising")
    assert done.exit_code == 1
    assert "return x.view(7)" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [("hf:no_such_model",), (f"{MODELS}:reading", "--fail-on", "BB999"), ("--options", "{x")],
)
def test_what_does_not_exist_ends_with_2(arguments):
    assert diagnose(*arguments).exit_code == 2


def test_a_wrong_mode_ends_with_2_before_anything_is_compiled():
    done = diagnose(f"{MODELS}:reading", "--backend", "inductor", "--mode", "no-such-mode")
    assert done.exit_code == 2
    assert "no-such-mode" in done.stderr
