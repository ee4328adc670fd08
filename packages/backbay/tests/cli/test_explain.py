"""``backbay explain`` as it is called: exit codes, streams, files."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from backbay.cli import main

MODELS = Path(__file__).parents[1] / "explain" / "models.py"


def explain(*arguments: str):
    return CliRunner().invoke(main, ["explain", *arguments, "--device", "cpu", "--once"])


def test_what_ran_ends_with_0_and_says_the_breaks_line():
    done = explain(f"{MODELS}:broken")
    assert done.exit_code == 0
    assert 'print("hello from the model")' in " ".join(done.stdout.split())
    assert "BB101 warning: print can't be compiled" in done.stdout
    assert "change: leave print out while it is compiled" in done.stdout


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


def test_fail_on_ends_with_1_where_a_code_or_its_kind_is_found():
    assert explain(f"{MODELS}:broken", "--fail-on", "BB2,BB401").exit_code == 0
    for codes in ("BB103", "bb1", "BB2,BB101"):
        done = explain(f"{MODELS}:broken", "--fail-on", codes)
        assert done.exit_code == 1, codes
        assert "backbay: --fail-on: BB103: a branch depends" in done.stderr or codes[-1] == "1"


def test_a_note_fails_by_its_full_code_only():
    run = CliRunner().invoke
    command = ["explain", f"{MODELS}:gated", "--device", "cpu", "--fail-on"]
    assert run(main, [*command, "BB2"]).exit_code == 0
    assert run(main, [*command, "BB205"]).exit_code == 1


def test_a_code_that_does_not_exist_ends_with_2_before_anything_runs():
    done = explain("hf:no_such_model", "--fail-on", "BB110")
    assert done.exit_code == 2
    assert "there is no finding 'BB110': did you mean BB106?" in done.stderr


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("BB110", "did you mean BB106?"),
        ("bb1", "did you mean BB101?"),
        ("BB204000", "did you mean BB205?"),
        ("BB999", "they are listed in docs/findings.md"),
    ],
)
def test_a_code_that_does_not_exist_is_no_unknown_workload(code, hint):
    done = CliRunner().invoke(main, ["explain", code])
    assert done.exit_code == 2
    assert done.stderr == f"backbay: there is no finding {code.upper()!r}: {hint}\n"
    done = CliRunner().invoke(main, ["explain", "BBx"])
    assert "no workload named 'BBx'" in done.stderr


def test_a_code_in_a_workloads_place_is_said():
    done = CliRunner().invoke(main, ["explain", "bb101"])
    assert done.exit_code == 0
    assert done.stdout.startswith("BB101: graph break (warning)\n")
    assert "docs/findings.md#bb101" in done.stdout


def test_help_has_an_example():
    assert "Examples:" in CliRunner().invoke(main, ["explain", "--help"]).stdout
