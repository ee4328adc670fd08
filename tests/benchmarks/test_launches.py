"""What a graph hands to a GPU, counted in Inductor's code for one, on a machine without."""

import dataclasses
import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

pytest.importorskip("triton")

from backbay.kit.passes import PassContext
from backbay_optimizer.passes.fused_convolutions import fused_convolutions

FOLDER = str(Path(__file__).parents[2] / "benchmarks")
WIDTH = 64


@pytest.fixture(scope="module")
def cuda_code():
    sys.path.insert(0, FOLDER)
    yield importlib.import_module("speed.cuda_code")
    sys.path.remove(FOLDER)
    for name in [x for x in sys.modules if x.split(".")[0] == "speed"]:
        del sys.modules[name]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTH)

    def forward(self, x):
        return F.relu(self.norm(self.convolution(x)))


def code_of(cuda_code, monkeypatch, layers, *, fused):
    """Return the code for a stack of layers."""
    requires = dataclasses.replace(fused_convolutions.requires, devices=("cpu",))
    monkeypatch.setattr(type(fused_convolutions), "requires", requires)
    written = []

    def compile_(graph_module, inputs):
        if fused:
            assert fused_convolutions.run(graph_module, PassContext()) == layers
        written.append(cuda_code.code_for_cuda(graph_module, inputs))
        return lambda *_: (torch.empty(0),)

    model = nn.Sequential(*(Layer() for _ in range(layers))).bfloat16().eval()
    x = torch.empty(32, WIDTH, 64, 64, dtype=torch.bfloat16, memory_format=torch.channels_last)
    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model.to(memory_format=torch.channels_last), backend=compile_)(x)
    (code,) = written
    return code


def called(cuda_code, monkeypatch, layers, *, fused):
    """Count what a stack of layers calls, by what: Triton, PyTorch, ours."""
    found = cuda_code.calls(code_of(cuda_code, monkeypatch, layers, fused=fused))
    kinds = ("triton_", "extern_kernels.", "torch.ops.backbay.")
    assert found.total() == sum(n for x, n in found.items() if x.startswith(kinds))
    return tuple(sum(n for x, n in found.items() if x.startswith(kind)) for kind in kinds)


def test_inductor_alone_calls_two_kernels_for_each_layer(cuda_code, monkeypatch):
    assert called(cuda_code, monkeypatch, 2, fused=False) == (2, 2, 0)


def test_more_layers_are_folded_by_more_kernels(cuda_code, monkeypatch):
    assert called(cuda_code, monkeypatch, 6, fused=True) == (2, 0, 6)


def test_a_kernel_is_not_compiled_or_counted_twice(cuda_code, monkeypatch):
    code = code_of(cuda_code, monkeypatch, 2, fused=True)
    times = cuda_code.seconds_to_compile(code)
    assert len(times) == code.count("async_compile.triton(") == 2
    assert min(times) > 0.01, "Triton did not compile it"


def test_code_that_triton_refuses_is_timed(cuda_code, monkeypatch):
    code = code_of(cuda_code, monkeypatch, 2, fused=True)
    with pytest.raises(Exception, match="no_such_thing"):
        cuda_code.seconds_to_compile(code.replace("tl.program_id(0)", "tl.no_such_thing"))
