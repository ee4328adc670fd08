"""The example of a foreign engine's adapter, examples/jax_adapter.py, on three models."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from backbay import compile_log
from backbay.proof import make_golden, observe
from backbay.workloads import load
from backbay.workloads.batches import with_batch

FILE = Path(__file__).parents[2] / "examples" / "jax_adapter.py"
MOST = 0.8


@pytest.fixture(scope="module")
def backend():
    for name in ("jax", "torchax"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    spec = importlib.util.spec_from_file_location("jax_adapter", FILE)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.backbay_jax


def test_more_than_sixty_lines_are_needed():
    assert len(FILE.read_text("utf-8").splitlines()) <= 60


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ["decoder", "hf:bert", "timm:resnet18"])
def test_jax_is_wrong_or_gets_few_operators(backend, name, train):
    given = load(
        name, seed=0, dtype=torch.float32, device=torch.device("cpu"), train=train, size="tiny"
    )
    compiled = torch.compile(given.model, backend=backend)
    compile_log.clear()
    for batch in (4, 7, 1):
        workload = dataclasses.replace(with_batch(given, batch), loss=None)
        golden = make_golden(workload, train=train)
        with golden.context():
            proof = golden.judge(observe(compiled, golden.at(workload), train=train))
        assert proof.passed, (batch, proof.worst)
    graphs = compile_log.records()
    assert {x.why.partition(" ")[0] for x in graphs} == (
        {"forward", "backward"} if train else {"inference"}
    )
    for graph in graphs:
        assert graph.owned >= MOST * graph.nodes, graph.why


def test_torchax_makes_jax_pytorchs_accelerator(backend):
    torch.compile(torch.nn.Linear(2, 2), backend=backend)(torch.randn(3, 2))
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is None or accelerator.type != "jax"
