"""Whole races: what is wrong is called so, and what dies ends no race.

One race goes through the command and its child processes, with all that kills or hangs a process.
The others carry out in this process what a child would: what they are about needs no isolation.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner

from backbay import Workload
from backbay.cli import main
from backbay.errors import InputError, WorkloadInvalid
from backbay.proof import make_golden
from backbay.race import Limits, Report, run
from backbay.registry import KnownFault, Registry, Requirements

FAULTY = Path(__file__).with_name("faulty.py")
QUICK = Limits(backend_s=120.0, timing_s=0.5)
OFTEN = "dies_when_called_often"

pytestmark = pytest.mark.slow


def race(workload: str, *backends: str, limits: Limits = QUICK, **options):
    """Race functions of faulty.py; a name with an equals sign before it is a registered one."""
    report = run(
        f"{FAULTY}:{workload}",
        backends=[name[1:] if name[0] == "=" else f"{FAULTY}:{name}" for name in backends],
        device="cpu",
        limits=limits,
        **options,
    )
    return report, {result.backend.rpartition(":")[2]: result for result in report.results}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[str, dict[str, Any], str]:
    """Race by the command, in child processes; give what it printed, its JSON and its page."""
    folder = tmp_path_factory.mktemp("whole")
    backends = ["aot_eager", *(f"{FAULTY}:{name}" for name in ("segfaults", "hangs", OFTEN))]
    command = [
        *(sys.executable, "-m", "backbay", "race", f"{FAULTY}:small", "--device", "cpu"),
        *("--backends", ",".join(backends), "--seconds", "0.5", "--timeout", "25"),
        *("--json", folder / "race.json", "--html", folder / "race.html"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((folder / "race.json").read_text())
    return done.stdout, document, (folder / "race.html").read_text()


def rows(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["backend"].rpartition(":")[2]: row for row in document["results"]}


def test_hangs_and_crashes_are_rows_and_the_race_goes_on(whole):
    _, document, _ = whole
    found = rows(document)
    assert found["segfaults"]["status"] == "crashed"
    assert "SIGSEGV" in found["segfaults"]["reason"]
    assert found["hangs"]["status"] == "timeout"
    assert found["aot_eager"]["status"] == "ok"
    assert found["eager"]["median_ms"] is not None
    assert document["decision"]


def test_a_death_while_timing_costs_the_guilty_only(whole):
    _, document, _ = whole
    found = rows(document)
    assert found[OFTEN]["status"] == "crashed"
    assert found[OFTEN]["verdict"]["passed"]
    assert found["aot_eager"]["status"] == "ok"
    assert found["aot_eager"]["median_ms"] is not None
    assert any("process of its own" in note for note in found[OFTEN]["notes"])
    assert not any("process of its own" in note for note in found["aot_eager"]["notes"])


def test_eager_is_always_in_the_race_and_torchs_names_work(whole):
    _, document, _ = whole
    found = rows(document)
    assert list(found) == ["eager", "aot_eager", "segfaults", "hangs", OFTEN]
    assert found["aot_eager"]["compile_s"] > 0
    assert found["aot_eager"]["ratio_to_eager_ci"] is not None
    assert document["versions"]["torch"]
    assert document["machine"]["device"] == "cpu"


def test_the_command_writes_table_json_and_page(whole):
    printed, document, page = whole
    assert "aot_eager" in printed
    assert document["schema"] == "backbay.race/1"
    assert {"machine", "versions", "decision", "results"} <= set(document)
    assert {
        "workload", "mode", "backend", "status", "reason", "verdict", "median_ms", "ci_ms",
        "ratio_to_eager", "compile_s", "peak_bytes", "graphs", "breaks",
    } <= set(document["results"][1])  # fmt: skip
    assert page.startswith("<!doctype html>")


def test_a_fault_of_one_in_a_thousand_and_what_raises_are_rows_and_cannot_win(here):
    report, rows = race("small", "scaled", "raises", "honest")
    assert (rows["scaled"].status, rows["honest"].status) == ("wrong", "ok")
    assert rows["raises"].status == "failed"
    assert "no kernel for this graph" in rows["raises"].reason
    assert rows["scaled"].median_ms is None
    assert rows["scaled"].verdict is not None
    assert rows["scaled"].verdict.where == "output"
    assert rows["honest"].median_ms is not None
    assert rows["honest"].graphs == 1
    assert not report.decision[0].winner.endswith("scaled")


def test_wrong_gradients_and_detached_outputs_are_called_wrong_in_training(here):
    _, rows = race("small", "wrong_gradient", "detached", "honest", train=True)
    assert rows["wrong_gradient"].status == "wrong"
    assert "gradient" in (rows["wrong_gradient"].verdict.where or "")
    assert rows["detached"].status == "wrong"
    assert rows["honest"].status == "ok"


def test_a_flushed_nan_is_called_wrong(here):
    _, rows = race("with_nan", "flushes_nan", "honest")
    assert (rows["flushes_nan"].status, rows["honest"].status) == ("wrong", "ok")
    assert "NaN" in rows["flushes_nan"].reason


def test_a_backend_that_was_given_no_graph_is_not_called_right(here):
    _, rows = race("nothing_captured", "honest")
    assert rows["honest"].status == "failed"
    assert "no graph" in rows["honest"].reason


def test_a_model_that_draws_random_numbers_is_proven_and_the_report_says_how(here):
    report, rows = race("with_dropout", "=aot_eager", "honest", train=True)
    assert (rows["aot_eager"].status, rows["honest"].status) == ("ok", "ok")
    assert any("random" in note for note in report.notes)


def test_what_the_first_calls_change_is_not_held_against_a_backend(here):
    _, rows = race("with_batch_norm", "honest", train=True)
    assert rows["honest"].status == "ok", rows["honest"].reason


def test_a_workload_that_is_built_otherwise_each_time_is_not_compared(here):
    report, rows = race("different_each_time", "honest")
    assert (rows["eager"].status, rows["honest"].status) == ("failed", "failed")
    assert "not built alike" in rows["honest"].reason
    assert report.decision[0].abstained
    assert report.decision[0].sentence.startswith("nothing was timed")


def test_a_workload_that_raises_stops_the_race_with_the_users_own_traceback(here):
    with pytest.raises(WorkloadInvalid) as caught:
        race("raising", "honest")
    assert "ZeroDivisionError" in str(caught.value)
    (traceback,) = caught.value.__notes__
    assert "faulty.py" in traceback
    assert "backbay/race" not in traceback


def test_a_mistake_in_the_second_workload_is_found_before_the_first_is_raced(here):
    seen = []
    with pytest.raises(InputError):
        run(
            [f"{FAULTY}:small", f"{FAULTY}:not_a_model"],
            backends=["aot_eager"],
            device="cpu",
            tell=lambda *event: seen.append(event),
        )
    assert seen == []


def test_a_model_object_is_raced_in_this_process_and_the_report_says_so():
    model = torch.nn.Linear(8, 8).eval()
    workload = Workload(model, (torch.randn(4, 8),), name="mine")

    def scaled(graph_module, example_inputs):
        return lambda *args: tuple(1.001 * output for output in graph_module(*args))

    before = (torch.get_default_dtype(), torch._dynamo.config.recompile_limit)
    report = run(workload, backends={"scaled": scaled}, limits=QUICK)
    assert {r.backend: r.status for r in report.results} == {"eager": "ok", "scaled": "wrong"}
    assert any("in this process" in note for note in report.notes)
    assert (torch.get_default_dtype(), torch._dynamo.config.recompile_limit) == before
    assert report.settings.device == "cpu"


def test_a_registry_of_ones_own_is_asked_for_names_in_this_process(judged_here):
    registry = Registry()
    registry.register_backend(lambda graph_module, example_inputs: graph_module.forward, "own")
    workload = Workload(torch.nn.Linear(8, 8).eval(), (torch.randn(4, 8),))
    report = run(workload, backends=["own"], limits=QUICK, registry=registry)
    assert {r.backend: r.status for r in report.results} == {"eager": "ok", "own": "ok"}


def test_without_a_compiler_inductor_is_a_row_with_its_remedy(here, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    report = run(f"{FAULTY}:small", device="cpu", limits=QUICK, registry=Registry())
    rows = {result.backend: result for result in report.results}
    assert rows["eager"].status == "ok"
    assert rows["inductor"].status == "unavailable"
    assert "no-such-compiler" in rows["inductor"].reason
    assert "install" in rows["inductor"].reason
    assert report.decision[0].winner == "eager"


def test_one_backend_that_is_not_ready_ends_the_race_of_the_others(here):
    backends = "eager,tvm,relax_dynamo,indcutor,aot_eager"
    arguments = [f"{FAULTY}:small", "--backends", backends, "--seconds", "0.5", "--json", "-"]
    done = CliRunner().invoke(main, ["race", *arguments])
    assert done.exit_code == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=Report)
    rows = {result.backend: result for result in report.results}
    assert {name: row.status for name, row in rows.items()} == {
        "eager": "ok",
        "tvm": "unavailable",
        "relax_dynamo": "unavailable",
        "indcutor": "unavailable",
        "aot_eager": "ok",
    }
    assert rows["tvm"].reason.startswith(
        "apache-tvm is not installed, and what pip installs does not"
    )
    assert "; use torch 2.14.1 or later" in rows["tvm"].reason
    assert "did you mean 'inductor'" in rows["indcutor"].reason


def test_what_is_known_of_a_fault_is_not_said_where_a_user_meets_it(judged_here):
    def raising(graph_module, example_inputs):
        raise IndexError("list index out of range")

    def wrong(graph_module, example_inputs):
        return lambda *inputs: tuple(x + 1 for x in graph_module(*inputs))

    fault = KnownFault(
        reason="default options: it fails", remedy="pass aot_autograd", errors=("index out of",)
    )
    other = KnownFault(reason="it lowers to bfloat16", remedy="pass a hint")
    registry = Registry()
    registry.register_backend(raising, "raising", limits=(other, fault))
    registry.register_backend(wrong, "wrong", limits=(other, fault))
    workload = Workload(torch.nn.Linear(8, 8).eval(), (torch.randn(4, 8),))
    report = run(workload, backends=["raising", "wrong"], limits=QUICK, registry=registry)
    rows = {result.backend: result for result in report.results}
    assert rows["raising"].reason.endswith("list index out of range; pass aot_autograd")
    known = {name: [x for x in row.notes if "known of" in x] for name, row in rows.items()}
    said = ["known of wrong: it lowers to bfloat16; pass a hint"]
    assert known == {"eager": [], "raising": [], "wrong": said}


def test_an_engine_behind_a_backend_has_no_version_in_the_report(judged_here):
    registry = Registry()
    needs = Requirements(distributions=("msgspec>=0.1",))
    registry.register_backend(lambda graph, _: graph.forward, "own", requires=needs)
    workload = Workload(torch.nn.Linear(8, 8).eval(), (torch.randn(4, 8),))
    report = run(workload, backends=["own"], limits=QUICK, registry=registry)
    assert report.versions["msgspec"] == msgspec.__version__


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["decodr"], "Did you mean 'decoder'"),
        (["hf:lama"], "hf:llama"),
        (["--backends", "indcutor"], "did you mean: 'inductor'"),
        (["--backends", "tvm"], "use torch 2.14.1 or later"),
        (["--backends", "eager,tvm,aot_eager", "--require-all"], "use torch 2.14.1 or later"),
        (["--backends", "gone.py:fn"], "gone.py"),
        (["--arms", "inductor{max_fusion: }"], "character 10: option 'max_fusion' has no value"),
        (["--arms", "inductor{max_fusoin_size: 3}"], "did you mean 'max_fusion_size'"),
        (["--arms", "inductor@reduce-overhad"], "did you mean 'reduce-overhead'"),
        (["--arms", "aot_eager{a: 1}"], "aot_eager takes no options"),
        (["--arms", "eager@max-autotune"], "takes no mode"),
        (["--arms", f"{FAULTY}:honest@max-autotune"], "takes no mode"),
        (["--device", "gpu"], "choose one of"),
        ([f"{FAULTY}:not_a_model"], "int"),
        ([f"{FAULTY}:raising"], "ZeroDivisionError"),
        ([f"{FAULTY}:absent"], "absent"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(here, arguments, said):
    done = CliRunner().invoke(main, ["race", *arguments])
    assert done.exit_code == 2, done.stderr
    assert done.stdout == ""
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("backbay: ")
    assert said in last
    assert "backbay/race" not in done.stderr


def test_where_truth_does_not_fit_the_proof_is_smaller_and_the_report_says_so(
    monkeypatch, judged_here
):
    def scaled(graph_module, example_inputs):
        return lambda *args: tuple(1.001 * output for output in graph_module(*args))

    limited = functools.partial(make_golden, memory_bytes=4_000_000)
    monkeypatch.setattr("backbay.proof.bank.make_golden", limited)
    workload = Workload(torch.nn.Linear(64, 64).eval(), (torch.randn(8192, 64),))
    backends = {"scaled": scaled, "aot_eager": "aot_eager"}
    report = run(workload, backends=backends, limits=QUICK)
    status = {result.backend: result.status for result in report.results}
    assert status == {"eager": "ok", "scaled": "wrong", "aot_eager": "ok"}
    assert any("smaller inputs" in note for note in report.notes)


class Writing(torch.nn.Module):
    """Writes one of its inputs, as a model with a cache does."""

    def forward(self, x, cache):
        cache.add_(1)
        return x + cache


def test_an_input_that_the_model_writes_is_left_changed_and_spoils_the_race(judged_here):
    cache = torch.zeros(64)
    workload = Workload(Writing(), (torch.randn(64, 64), cache))
    report = run(workload, backends=["aot_eager"], limits=QUICK)
    assert [x.status for x in report.results] == ["ok", "ok"]
    assert cache.tolist() == [0.0] * 64


def test_a_workload_with_an_expanded_input_is_not_raced(judged_here):
    inputs = (torch.randn(8, 1).expand(8, 16),)
    report = run(
        Workload(torch.nn.Linear(16, 16).eval(), inputs), backends=["aot_eager"], limits=QUICK
    )
    assert [x.status for x in report.results] == ["ok", "ok"]


def test_arms_of_one_backend_share_a_row_or_a_result(here, monkeypatch):
    asked, compile_ = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda *x, **y: asked.append(y) or compile_(*x, **y))
    told = f"{FAULTY}:as_told"
    arms = [f"{told}@careful{{factor: 1}}", f"{told}@careful", f"{told}{{factor: 1}}", told]
    report = run(f"{FAULTY}:small", arms=arms, device="cpu", limits=QUICK, dynamic=True)
    rows = {x.arm: x for x in report.results}
    assert {x: y.status for x, y in rows.items()} == {
        "eager": "ok",
        **dict.fromkeys(arms, "wrong"),
        arms[0]: "ok",
    }
    right = rows[arms[0]]
    assert (right.backend, right.compile_mode, right.options) == (told, "careful", {"factor": 1})
    assert report.settings.arms == ("eager", *arms)
    assert (report.settings.backends, report.settings.dynamic) == (("eager", told), True)
    assert {x["dynamic"] for x in asked} == {True}
    again = msgspec.json.decode(msgspec.json.encode(report), type=Report)
    assert again == report


def test_a_graph_break_is_passed_over_where_the_whole_graph_was_asked_for(here):
    report = run(
        f"{FAULTY}:broken",
        arms=["aot_eager"],
        device="cpu",
        limits=QUICK,
        fullgraph=True,
    )
    rows = {x.arm: x for x in report.results}
    assert rows["aot_eager"].status == "failed"


def test_a_model_object_is_raced_with_arms_of_compiler_functions(judged_here):
    def told(graph_module, example_inputs, *, options=None):
        factor = (options or {}).get("factor", 1.0)
        return lambda *args: tuple(factor * output for output in graph_module(*args))

    workload = Workload(torch.nn.Linear(8, 8).eval(), (torch.randn(4, 8),))
    arms = ["told{factor: 1.001}", "aot_eager"]
    report = run(workload, backends={"told": told}, arms=arms, limits=QUICK)
    assert {x.arm: x.status for x in report.results} == {
        "eager": "ok",
        "told": "ok",
        "told{factor: 1.001}": "wrong",
        "aot_eager": "ok",
    }


def test_cuda_graphs_without_cuda_end_the_race(here):
    report = run(f"{FAULTY}:small", arms="inductor@reduce-overhead", device="cpu", limits=QUICK)
    _, reduced = report.results
    assert (reduced.status, reduced.compile_mode) == ("ok", "reduce-overhead"), reduced.reason
    assert not any("process of its own" in note for note in reduced.notes)
