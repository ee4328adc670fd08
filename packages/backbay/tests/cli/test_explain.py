"""``backbay explain`` as it is called: exit codes, streams, files."""

import json
from pathlib import Path

from click.testing import CliRunner

from backbay.cli import main

MODELS = Path(__file__).parents[1] / "explain" / "models.py"


def explain(*arguments: str):
    return CliRunner().invoke(main, ["explain", *arguments, "--device", "cpu", "--once"])


def test_what_ran_ends_with_0_and_says_the_breaks_line():
    done = explain(f"{MODELS}:broken")
    assert done.exit_code == 0
    assert 'print("hello from the model")' in " ".join(done.stdout.split())
    assert "change: Avoid calling builtin" in done.stdout


def test_what_the_model_prints_is_not_in_the_output():
    done = explain(f"{MODELS}:broken")
    assert "hello from the model\n" in done.stderr
    assert "hello from the model\n" not in done.stdout


def test_json_on_standard_output_is_json_alone():
    done = explain(f"{MODELS}:broken", "--backend", "backbay_print", "--json", "-")
    document = json.loads(done.stdout)
    assert document["schema"] == "backbay.explain/1"
    assert document["settings"]["backend"] == "backbay_print"
    assert [x["name"] for x in document["calls"]] == ["first"]


def test_a_model_that_raises_ends_with_1_and_no_traceback():
    done = explain(f"{MODELS}:raising")
    assert done.exit_code == 1
    assert "return x.view(7) + 1" in done.stdout
    assert "Traceback" not in done.output


def test_a_backend_that_fails_ends_with_1_and_its_page_is_written(tmp_path):
    backend = tmp_path / "bad.py"
    backend.write_text("def compile(graph_module, inputs):\n    raise RuntimeError('no licence')\n")
    html = tmp_path / "page.html"
    done = explain(f"{MODELS}:gated", "--backend", f"{backend}:compile", "--html", str(html))
    assert done.exit_code == 1
    assert "no licence" in done.stdout
    assert "no licence" in html.read_text()


def test_what_does_not_exist_ends_with_2():
    assert explain("hf:no_such_model").exit_code == 2
    done = explain(f"{MODELS}:gated", "--backend", "no_such_backend")
    assert done.exit_code == 2
    assert "no_such_backend" in done.stderr


def test_help_has_an_example():
    assert "Examples:" in CliRunner().invoke(main, ["explain", "--help"]).stdout
