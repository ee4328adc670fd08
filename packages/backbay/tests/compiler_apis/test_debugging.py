"""Logs, the bisector and the minifier name the backend and its passes."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import backbay
from backbay.kit.backend import Backend
from backbay.kit.bisect import bisect
from backbay.kit.passes import graph_pass

sys.path.insert(0, str(Path(__file__).parent))
from subjects import SHIPPED, Scaled, doubled, seen

# -- logs


class Named(Backend):
    codegen = "eager"


def test_the_log_names_each_pass_that_changed_the_graph(caplog):
    silu = backbay.lookup_backend("backbay_silu").passes[0]
    backend = type("Logs", (Named,), {"passes": (silu,)})()
    with caplog.at_level(logging.INFO, "backbay.kit"):
        torch.compile(lambda x: x * x.sigmoid(), backend=backend)(torch.ones(1))
    (record,) = caplog.records
    assert record.name.startswith("backbay.kit")
    assert "pass rewrite_silu: 1x in" in record.getMessage()


LOGGED = """
import torch
import backbay
from backbay.kit.backend import Backend

class Logged(Backend):
    passes = backbay.lookup_backend({name!r}).passes
    codegen = "eager"

def f(x):
    gelu = 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))
    return gelu * torch.sigmoid(gelu) * 2 * 4

torch.compile(f, backend=Logged())(torch.ones(3))
"""

FIRED = {
    "backbay_silu": "rewrite_silu",
    "backbay_gelu": "rewrite_gelu",
    "backbay_fold": "fold_scalar_chain",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRED)
def test_torch_logs_and_a_trace_carry_the_names_of_our_passes(
    name, run_python, tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCH_LOGS", "+backbay.kit")
    monkeypatch.setenv("TORCH_TRACE", str(tmp_path))
    said = run_python(LOGGED.format(name=name)).stderr
    fired = FIRED[name]
    assert f"pass {fired}: " in said
    assert "def forward" in said
    (log,) = tmp_path.glob("*.log")
    trace = log.read_text()
    before = trace.index(f'"name": "backbay_pass_{fired}_before"')
    after = trace.index(f'"name": "backbay_pass_{fired}_after"')
    assert before < after
    assert "frame_id" in trace[before - 200 : before + 300]  # tlparse puts it beside its graph


def test_no_graph_is_written_out_where_nobody_reads_it(monkeypatch, reports):
    def never(*_, **__):
        raise AssertionError("written out for nobody")

    monkeypatch.setattr(torch.fx.GraphModule, "print_readable", never)
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    silu = backbay.lookup_backend("backbay_silu").passes[0]
    backend = type("Quiet", (Named,), {"passes": (silu,)})()
    torch.compile(lambda x: x * x.sigmoid(), backend=backend)(torch.ones(1))
    assert reports[0].changes == 1


# -- the bisector


def fault(level):
    @graph_pass(level=level, name=f"bad_at_{level}")
    def bad(graph_module):
        for node in list(graph_module.graph.nodes):
            if node.op == "call_function" and "mul" in str(node.target):
                node.args = (node.args[0], 7.0)
        graph_module.recompile()
        return 1

    return bad


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("name", [x for x in SHIPPED if x != "backbay_print"])
def test_bisection_names_the_bad_pass_among_those_of_a_backend(name, level):
    passes = (*backbay.lookup_backend(name).passes, fault(level))
    backend = type("Bad", (Named,), {"passes": passes})()
    x = torch.ones(3)

    def works():
        compiled = backbay.compile(lambda x: (x + 1) * 3.0, backend=backend)
        return torch.equal(compiled(x), (x + 1) * 3.0)

    assert not works()
    found = bisect(works)
    assert found.backend == "inductor"
    assert found.debug_info == f"pass bad_at_{level} at level {level}"


def test_bisection_of_what_is_right_finds_nothing():
    backend = type("Good", (Named,), {"passes": (seen,)})()

    def works():
        return bool(backbay.compile(doubled, backend=backend)(torch.ones(1)) == 2)

    assert bisect(works) is None


@pytest.mark.slow
def test_bisection_inside_inductors_own_hooks_names_the_pass():
    backend = type("Bad", (Backend,), {"passes": (seen, fault("aten"))})()
    x = torch.ones(3)

    def works():
        compiled = torch.compile(lambda x: (x + 1) * 3.0, backend=backend)
        return torch.equal(compiled(x), (x + 1) * 3.0)

    found = bisect(works)
    assert found.subsystem == "post_grad_passes"
    assert found.debug_info == "pass bad_at_aten at level aten"


def test_no_pass_is_left_out_where_nothing_is_bisected(reports):
    backend = type("All", (Named,), {"passes": (seen,)})()
    torch.compile(doubled, backend=backend)(torch.ones(1))
    assert [x.name for x in reports] == ["seen"]


# -- the minifier


PLUGIN = """
import torch
import backbay
from backbay.errors import BackbayError
from backbay.kit.passes import graph_pass

@graph_pass(level="torch")
def faulty(graph_module):
    for node in list(graph_module.graph.nodes):
        if "relu" in str(node.target):
            {fault}
    graph_module.recompile()
    return 1

shipped = backbay.lookup_backend({name!r})

class Faulty(type(shipped)):
    name = "faulty"
    codegen = "eager"
    passes = (*shipped.passes, faulty)
    compile = None

faulty_backend = Faulty()
"""

MINIFIED = """
import torch
import torch._dynamo.config as config

config.repro_after = "dynamo"
config.repro_level = {level}
config.debug_dir_root = {folder!r}

def f(x):
    return (x.sin() + 1).relu() * 3

try:
    torch.compile(f, backend="faulty")(torch.ones(3))
except Exception as error:
    print(error)
"""


def test_the_minifier_names_a_backend_and_does_not_take_one_that_works_for_broken(
    backend, tmp_path
):
    from torch._dynamo import config

    wanted = {"repro_after": "dynamo", "repro_level": 3, "debug_dir_root": str(tmp_path)}
    model, x = Scaled(), torch.randn(3, 4)
    # No gradients: the minifier runs backward while it compiles, which Inductor's metrics refuse.
    with config.patch(wanted), torch.no_grad():
        compiled = torch.compile(model, backend=backend)
        torch.testing.assert_close(compiled(x), model(x))
    (launcher,) = tmp_path.rglob("minifier_launcher.py")  # level 3 writes it before it compiles
    assert f"backend={backend.__name__!r}" in launcher.read_text()


RAISES = "raise RuntimeError('no relu here')"
COMPUTES_OTHERWISE = "node.op, node.target = 'call_function', torch.neg"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault", "level", "said", "again"),
    [
        # That this one is named in the launcher, CI sees with every backend, above.
        pytest.param(
            *("backbay_print", RAISES, 2, "no relu here", "no relu here"), marks=pytest.mark.sweep
        ),
        ("backbay_silu", RAISES, 2, "no relu here", "no relu here"),
        ("backbay_fold", COMPUTES_OTHERWISE, 4, "Bad accuracy detected", "AccuracyError"),
    ],
)
def test_the_minifiers_repro_names_the_backend_and_runs(  # noqa: PLR0917 (what pytest gives)
    name, fault, level, said, again, install, tmp_path, monkeypatch
):
    install("faulty", entry_points="[torch_dynamo_backends]\nfaulty = faulty_plugin:faulty_backend")
    (tmp_path / "faulty_plugin.py").write_text(PLUGIN.format(name=name, fault=fault))
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    program = tmp_path / "program.py"
    program.write_text(MINIFIED.format(level=level, folder=str(tmp_path / "debug")))
    assert said in run(program).stdout
    (launcher,) = (tmp_path / "debug").rglob("minifier_launcher.py")
    run(launcher)
    repro = tmp_path / "repro.py"
    text = repro.read_text()
    assert "backend='faulty'" in text
    assert "relu" in text
    assert "sin()" not in text  # it is minimal
    assert again in run(repro).stderr
