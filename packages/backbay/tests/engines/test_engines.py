"""Engines in environments of their own: what is kept, what is done again, what a row says."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click.testing
import msgspec
import psutil
import pytest

from backbay.cli import main
from backbay.engines import selection
from backbay.engines.api import Plan, run
from backbay.engines.environment import EngineEnvironment
from backbay.engines.tables import markdown, reasons
from backbay.errors import InputError, Interrupted
from backbay.race.record import LeftToTorch, Result
from backbay.race.record import Report as RaceReport
from backbay.race.record import Settings as RaceSettings
from backbay.reporting.machine import Machine
from backbay.verify.record import BackendRecord, CheckRecord
from backbay.verify.record import Report as VerifyReport
from backbay.verify.record import Settings as VerifySettings

MACHINE = Machine(system="Linux", processor="x", cores=2, memory_bytes=1, device="cpu")
LOADED = {
    "backend": "openvino",
    "state": "ready",
    "reason": "ready as declared",
    "remedy": "",
    "works": True,
    "as_catalogued": True,
    "versions": {"python": "3.11", "torch": "2.13.0", "openvino": "2026.4.1"},
}


def verified() -> VerifyReport:
    said = [
        ("infer", "forward", "right"),
        ("train", "forward", "right"),
        ("train", "gradients", "failed"),
        ("infer", "batch 3", "right"),
        ("train", "batch 5", "wrong"),
    ]
    checks = [CheckRecord(mode=m, check=c, status=s, reason="why|it") for m, c, s in said]
    record = BackendRecord(backend="openvino", passed=False, sentence="", checks=tuple(checks))
    settings = VerifySettings(
        workload="w", backends=(), modes=(), dtype="", device="", seed=0, steps=1, batches=None
    )
    return VerifyReport(
        created="", machine=MACHINE, versions={}, settings=settings, sentence="", results=(record,)
    )


def raced() -> RaceReport:
    row = Result(
        workload="decoder@tiny",
        mode="infer",
        backend="openvino",
        status="ok",
        ratio_to_eager=2.0,
        ratio_to_eager_ci=(1.9, 2.1),
        ratio_to_inductor=0.5,
        ratio_to_inductor_ci=(0.45, 0.55),
        left_to_torch=LeftToTorch(operators=100, left=10, most=()),
    )
    settings = RaceSettings(backends=(), mode="infer", dtype="", device="", seed=0)
    return RaceReport(
        created="",
        machine=MACHINE,
        versions={},
        settings=settings,
        decision=(),
        results=(row,),
        notes=("the machine is busy",),
    )


class Commands:
    """Stands for the processes: what each step prints, how it ends, and which were started."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.arguments: dict[str, list[str]] = {}
        self.ends: dict[str, object] = {}

    def __call__(self, environment, step, command, *, timeout_s, stdout=None):
        self.started.append(step)
        self.arguments[step] = list(command)
        end = self.ends.get(step, 0)
        if isinstance(end, BaseException):
            raise end
        if step == "venv":
            environment.python.parent.mkdir(parents=True)
            environment.python.touch()
        if stdout is not None:
            stdout.write_bytes(self.printed(step))
        else:
            log = environment.folder / f"{step}.log"
            log.write_text("noise\nERROR: No matching distribution found for x\nERROR: more\n")
        return end

    def printed(self, step: str) -> bytes:
        if step == "loaded":
            return json.dumps([LOADED]).encode()
        if step.startswith("verify"):
            return msgspec.json.encode(verified())
        return msgspec.json.encode(raced())


@pytest.fixture
def commands(monkeypatch):
    found = Commands()
    monkeypatch.setattr(
        EngineEnvironment, "_run", lambda self, *args, **more: found(self, *args, **more)
    )
    return found


@pytest.fixture
def plan(tmp_path):
    return Plan(folder=tmp_path / "engines", torch="2.13.0")


def test_a_step_is_left_out_or_its_result_is_not_in_the_row(commands, plan, registry):
    report = run(["openvino"], plan, registry=registry)
    stock, adapter = report.rows
    assert (stock.backend, stock.adapter, stock.installed) == ("openvino", False, "yes")
    assert (adapter.backend, adapter.adapter) == ("backbay_openvino", True)
    statuses = {(x.model, x.use): x.status for x in stock.cases}
    assert len(statuses) == 9
    assert statuses["mlp", "inference"] == "right"
    assert statuses["mlp", "training"] == "failed"
    assert statuses["block", "changing batch"] == "wrong"
    assert [x.workload for x in stock.speeds] == ["decoder", "hf:bert", "timm:resnet18"]
    assert not report.partial
    assert report.command == "backbay doctor openvino --fresh-venvs --torch 2.13.0"
    assert "conform-openvino" not in commands.started
    assert commands.started.index("loaded") < commands.started.index("install-models")
    assert commands.arguments["install-0"][-2:] == ["torch==2.13.0", "openvino"]


def test_the_page_says_otherwise_than_the_report_or_a_cell_breaks_its_table(
    commands, plan, registry
):
    page = markdown(run(["openvino"], plan, registry=registry))
    assert "| `openvino` | `pip install openvino` | torch 2.13.0, openvino 2026.4.1 |" in page
    assert "2.00x [1.90, 2.10], 0.50x [0.45, 0.55], 90 of 100" in page
    why = "mlp, training; conv_net, training; block, training: failed: gradients: why\\|it"
    assert f"- `openvino`: {why}" in " ".join(page.split())
    assert all(len(x) <= 100 for x in page.splitlines() if not x.startswith("|"))
    assert "- openvino, decoder: the machine is busy" in page
    rows = [x for x in page.splitlines() if x.startswith("| `openvino`")]
    assert {x.replace("\\|", "").count("|") for x in rows} <= {6, 12, 5}


def test_what_was_done_is_done_again_or_what_failed_is_not(commands, plan, registry):
    commands.ends["verify-block"] = 2
    report = run(["openvino"], plan, registry=registry)
    assert len(report.rows[0].cases) == 6
    commands.started.clear()
    commands.ends.clear()
    report = run(["openvino"], plan, registry=registry)
    assert commands.started == ["verify-block"]
    assert len(report.rows[0].cases) == 9
    commands.started.clear()
    again = Plan(folder=plan.folder, torch=plan.torch, again=True)
    run(["openvino"], again, registry=registry)
    assert "venv" in commands.started
    assert len(commands.started) > 8


def test_a_backend_that_came_later_is_not_tried(commands, plan, registry):
    commands.ends["install-1"] = 1
    before = run(["openvino"], plan, registry=registry).rows[1]
    assert (before.installed, before.why_not) == ("no", "No matching distribution found for x")
    commands.ends.clear()
    commands.started.clear()
    run(["openvino"], plan, registry=registry)
    assert commands.started == ["install-1", "loaded"]
    assert commands.arguments["loaded"][-2:] == ["openvino", "backbay_openvino"]


def test_another_torch_is_given_the_rows_of_this_one(commands, plan, registry):
    run(["openvino"], plan, registry=registry)
    commands.started.clear()
    run(["openvino"], Plan(folder=plan.folder, torch="2.14.0"), registry=registry)
    assert commands.started[:2] == ["venv", "install-base"]


def test_an_interrupt_loses_what_was_found(commands, plan, registry):
    commands.ends["race-hf-bert"] = KeyboardInterrupt()
    with pytest.raises(Interrupted) as caught:
        run(["openvino", "turbine_cpu"], plan, registry=registry)
    report = caught.value.report
    assert report.partial
    stock, *_, last = report.rows
    assert [x.workload for x in stock.speeds] == ["decoder"]
    assert last.installed == "not tried"
    assert "Interrupted: what is missing was not tried." in markdown(report)


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")
def test_two_runs_are_in_one_folder_or_a_run_that_is_over_keeps_others_out(
    commands, plan, registry, tmp_path
):
    (engine,) = selection.chosen(registry, ["openvino"], plan.torch)
    with plan.environment(engine).alone():
        with pytest.raises(InputError, match=r"another run is trying .*: wait .*--where"):
            run(["openvino"], plan, registry=registry)
        assert not commands.started
        run(["openvino"], Plan(folder=tmp_path / "other", torch="2.13.0"), registry=registry)
    run(["openvino"], Plan(folder=plan.folder, torch="2.13.0", again=True), registry=registry)
    assert "venv" in commands.started


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")
def test_a_run_that_was_killed_keeps_others_out(plan, registry):
    (engine,) = selection.chosen(registry, ["openvino"], plan.torch)
    environment = plan.environment(engine)
    program = f"""
import os
import signal
from pathlib import Path

from backbay.engines.environment import EngineEnvironment

with EngineEnvironment(folder=Path({str(environment.folder)!r}), torch='', constraints=()).alone():
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    with environment.alone():
        pass


def test_pip_fails_and_the_others_are_not_tried(commands, plan, registry):
    commands.ends["install-0"] = 1
    report = run(["openvino", "turbine_cpu"], plan, registry=registry)
    assert [x.installed for x in report.rows if not x.adapter] == ["no"] * 5
    assert "not installable" in markdown(report)


def test_a_torch_that_cannot_be_installed_is_held_against_an_engine(commands, plan, registry):
    commands.ends["install-base"] = 1
    with pytest.raises(InputError, match=r"torch 2\.13\.0 and Backbay can't be .*: No match"):
        run(["openvino"], plan, registry=registry)


def test_conformance_is_run_unasked_or_not_when_asked(commands, plan, registry):
    commands.printed = lambda step: (
        b'{"levels": [{"counts": {"pass": 3}}, {"counts": {"pass": 1, "fail": 2}}]}'
        if step.startswith("conform")
        else Commands.printed(commands, step)
    )
    asked = Plan(folder=plan.folder, torch=plan.torch, conformance=True)
    report = run(["openvino"], asked, registry=registry)
    assert report.rows[0].conformance == {"pass": 4, "fail": 2}
    assert report.rows[1].conformance is None


def test_a_backend_that_does_not_load_is_raced(commands, plan, registry):
    broken = LOADED | {"works": False, "error": "ImportError: gone", "remedy": "use inductor"}
    commands.printed = lambda step: json.dumps([broken]).encode()
    report = run(["openvino"], plan, registry=registry)
    assert commands.started[-1] == "loaded"  # nor are models installed
    assert list(reasons(report.rows[0])) == ["ImportError: gone; use inductor"]


# -- which engines, and what pip is told


def test_the_adapter_is_installed_before_the_stock_backend_that_it_may_disturb(registry):
    tvm, openvino = selection.chosen(registry, ["relax_dynamo", "backbay_openvino"])
    assert tvm.name == "apache-tvm"
    assert [x.name for x in tvm.backends] == ["relax_dynamo", "tvm", "backbay_tvm"]
    assert list(openvino.lines) == [
        "pip install openvino",
        "pip install 'backbay-adapters[openvino]'",
    ]


def test_all_engines_are_tried_or_those_of_other_machines_are(registry):
    found = {x.name for x in selection.chosen(registry, [])}
    assert {"openvino", "apache-tvm", "iree-turbine", "zentorch"} <= found
    assert not {"torch-tensorrt", "hidet", "torch", "backbay-optimizer"} & found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("onnxrt", "use backbay_onnxruntime"),
        ("inductor", "no line that installs an engine"),
        ("openvin", "did you mean: 'openvino'"),
    ],
)
def test_what_has_no_engine_to_install_is_tried(name, said, registry):
    with pytest.raises(InputError, match=said):
        selection.chosen(registry, [name])


def test_backbay_is_taken_from_elsewhere_than_it_was_installed_from(install, registry):
    folder = install("backbay", "0.1.0")
    (folder / "direct_url.json").write_text('{"url": "file:///there/back%20bay"}')
    install("backbay-adapters", "0.1.0")
    here = registry.environment.installed
    assert selection.base(here) == ["/there/back bay[race]", "backbay-conformance"]
    assert selection.models(here) == ["/there/back bay[models]"]
    line = "pip install --pre 'backbay-adapters[openvino]'"
    assert selection.requirements(line, here) == ["--pre", "backbay-adapters[openvino]==0.1.0"]
    assert selection.requirements("conda install x", here) is None


# -- the processes


@pytest.fixture
def environment(tmp_path):
    return EngineEnvironment(folder=tmp_path / "engine", torch="2.13.0", constraints=None)


def test_a_step_outlives_its_time(environment, tmp_path):
    program = (
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
        "time.sleep(60)"
    )
    out = tmp_path / "out"
    assert environment._run("x", [sys.executable, "-c", program], timeout_s=3.0, stdout=out) is None
    child = int(out.read_text())
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    assert "ended after 3 s" in (environment.folder / "x.log").read_text()


def test_a_step_sees_this_process_s_path_and_policy(environment, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    program = "import os; print(os.environ.get('PYTHONPATH'), os.environ['BACKBAY_CONFIG'])"
    out = tmp_path / "out"
    assert environment._run("x", [sys.executable, "-c", program], timeout_s=60.0, stdout=out) == 0
    assert out.read_text().split() == ["None", "off"]


def test_half_an_answer_is_kept(environment, monkeypatch):
    monkeypatch.setattr(EngineEnvironment, "python", Path(sys.executable))
    (environment.folder).mkdir()
    environment.ask("platform", ["platform", "--no-such"], 60.0)
    assert environment.result("platform").exists()  # prints, and ends with 0
    environment.ask("nothing", ["no_such_module"], 60.0)
    assert not environment.result("nothing").exists()


@pytest.mark.parametrize(
    "arguments", [["--torch", "2.13.0"], ["--conformance"], ["--markdown", os.devnull]]
)
def test_an_option_of_fresh_environments_is_ignored_without_them(arguments):
    done = click.testing.CliRunner().invoke(main, ["doctor", *arguments])
    assert done.exit_code == 2
    assert "go with --fresh-venvs" in done.stderr


def test_the_command_writes_no_page_or_hides_what_the_catalogue_has_wrong(
    commands, tmp_path, monkeypatch
):
    strange = LOADED | {"as_catalogued": False}
    arguments = ["doctor", "openvino", "--fresh-venvs", "--where", str(tmp_path / "where")]
    arguments += ["--markdown", str(tmp_path / "page.md")]
    done = click.testing.CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "# Engines beside torch" in (tmp_path / "page.md").read_text()
    commands.printed = lambda step: (
        json.dumps([strange]).encode() if step == "loaded" else Commands.printed(commands, step)
    )
    done = click.testing.CliRunner().invoke(main, [*arguments, "--fresh"])
    assert done.exit_code == 1
    assert "openvino: what happened is not as catalogued" in done.stderr
