"""``backbay explain`` as it is called: exit codes, streams, files."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.explain import CODES, Explanation, FindingRecord, ProblemRecord
from backbay.explain.record import Settings

MODELS = Path(__file__).parents[1] / "explain" / "models.py"


def explain(*arguments: str):
    return CliRunner().invoke(main, ["explain", *arguments, "--device", "cpu", "--once"])


def explanation(*codes: str, problem=None):
    findings = [
        FindingRecord(
            code=code,
            severity=CODES[code].severity,
            message=f"found\n{code}",
            line="",
            fixes=(),
            count=1,
            cost_s=None,
            calls=(0,),
            page="",
        )
        for code in codes
    ]
    return Explanation(
        created="2026-01-02T03:04:05Z",
        versions={},
        settings=Settings(
            workload="w", backend=None, mode="infer", dtype="float32", device="cpu", seed=0
        ),
        sentence="1 graph, 0 graph breaks",
        findings=tuple(findings),
        graphs=(),
        breaks=(),
        calls=(),
        problem=problem,
        notes=(),
    )


@pytest.fixture
def asked(monkeypatch):
    """Call the command; what runs in the explanation's place returns one, and is asked for this."""

    def called(result, *arguments):
        given = {}

        def run(workload, **keywords):
            given.update(keywords, workload=workload)
            print("printed while it ran")  # noqa: T201
            return result

        monkeypatch.setattr("backbay.cli.explain.run", run)
        return CliRunner().invoke(main, ["explain", *arguments]), given

    return called


def test_what_is_asked_for_reaches_the_explanation_and_nothing_else_does(asked):
    usual = {
        "workload": "decoder",
        "backend": None,
        "mode": None,
        "options": None,
        "dynamic": None,
        "fullgraph": False,
        "train": False,
        "dtype": "float32",
        "device": None,
        "size": None,
        "seed": 0,
        "again": True,
    }
    assert asked(explanation())[1] == usual
    given = ("hf:bert", "--backend", "mine", "--mode", "fast", "--options", "a: 1", "--no-dynamic")
    given += ("--fullgraph", "--train", "--dtype", "bfloat16", "--device", "cuda:1", "--size")
    given += ("tiny", "--seed", "3", "--once")
    wanted = ("hf:bert", "mine", "fast", {"a": 1}, False, True, True, "bfloat16", "cuda:1", "tiny")
    assert tuple(asked(explanation(), *given)[1].values()) != tuple(usual.values())
    assert asked(explanation(), *given)[1] == dict(zip(usual, (*wanted, 3, False), strict=True))


def test_how_it_ends_is_decided_by_the_problem_and_by_what_is_asked_to_fail(asked):
    problem = ProblemRecord(stage="eager", error="ValueError: no", line="", raised_at="")
    done, _ = asked(explanation("BB101"))
    assert (done.exit_code, done.stderr) == (0, "printed while it ran\n")
    assert "1 graph, 0 graph breaks" in done.stdout
    assert asked(explanation(problem=problem))[0].exit_code == 1
    for codes in (["--fail-on", "BB101"], ["--fail-on", "BB2", "--fail-on", "BB3,bb1"]):
        done, _ = asked(explanation("BB101", "BB401"), *codes)
        assert done.exit_code == 1
        assert done.stderr.endswith("\nbackbay: --fail-on: BB101: found BB101\n")
    assert asked(explanation("BB101"), "--fail-on", "BB2")[0].exit_code == 0


def test_json_and_the_page_are_written_and_found_out_about_before_it_runs(asked, tmp_path):
    files = ("--json", str(tmp_path / "x.json"), "--html", str(tmp_path / "x.html"))
    done, _ = asked(explanation("BB101"), *files)
    assert f"page: {tmp_path}/x.html" in done.stdout
    assert json.loads((tmp_path / "x.json").read_text())["schema"] == "backbay.explain/1"
    assert "found BB101" in (tmp_path / "x.html").read_text()
    for option in ("--json", "--html"):
        done, given = asked(explanation(), option, str(tmp_path / "absent" / "x.json"))
        assert (done.exit_code, given) == (2, {})


def test_modules_of_the_current_folder_are_found_last(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    asked(explanation())
    assert sys.path[-1] == str(tmp_path)


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
    known = CODES["BB101"]
    texts = (known.what, known.why, known.fix, "An example: docs/findings.md#bb101")
    lines = ["BB101: graph break (warning)", *(f"  {x}" for x in texts)]
    assert done.stdout == "\n".join(lines) + "\n"


def test_help_has_an_example():
    assert "Examples:" in CliRunner().invoke(main, ["explain", "--help"]).stdout
