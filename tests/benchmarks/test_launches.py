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
from backbay_optimizer.kernels import batch_norm, group_norm_silu
from backbay_optimizer.passes.batch_norms import batch_norms
from backbay_optimizer.passes.fused_convolutions import fused_convolutions
from backbay_optimizer.passes.fused_counters import fused_counters

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


@pytest.fixture(scope="module")
def steps(cuda_code):
    """Count what a stack of three layers calls in training, forward and backward, by its passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_norm, "unfit", lambda *_: None)
        patch.setattr(batch_norm, "unmeasured", lambda _: None)
        for one in (batch_norms, fused_counters):
            requires = dataclasses.replace(one.requires, devices=("cpu",))
            patch.setattr(type(one), "requires", requires)
        model = nn.Sequential(*(Layer() for _ in range(3))).bfloat16().train()
        model.to(memory_format=torch.channels_last)
        x = torch.empty(32, WIDTH, 64, 64, dtype=torch.bfloat16, memory_format=torch.channels_last)

        def counted(*passes):
            def rewrite(graph_module):
                assert all(one.run(graph_module, PassContext()) == 3 for one in passes)

            codes = cuda_code.training_codes_for_cuda(model, x, rewrite=rewrite)
            return tuple(cuda_code.calls(code) for code in codes)

        yield counted


def test_a_batch_norm_in_training_has_one_kernel_for_its_sums_and_one_that_ends_them(steps):
    _, backward = steps(batch_norms)
    ours = sum(n for x, n in backward.items() if x.startswith("batch_norm_sums_kernel"))
    ends = sum(n for x, n in backward.items() if x.startswith("triton_per_"))
    convolutions = backward["torch.ops.aten.convolution_backward.default"]
    assert (ours, ends, convolutions) == (3, 3, 3)
    assert backward.total() == 12, "beside one for what is pointwise, for each batch norm"


def test_scratch_memory_of_a_group_norm_is_copied(cuda_code, monkeypatch):
    monkeypatch.setattr(group_norm_silu, "refusal", lambda *_: None)
    operator = group_norm_silu.group_norm_silu

    def norm(x, weight, bias):
        return operator(x, weight, bias, groups=8, eps=1e-5, silu=True)[0]

    x = torch.empty(4, WIDTH, 64, 64, dtype=torch.bfloat16, memory_format=torch.channels_last)
    given = [x, *(torch.empty(WIDTH, dtype=torch.bfloat16) for _ in range(2))]
    codes = cuda_code.training_codes_for_cuda(norm, *(t.requires_grad_() for t in given))
    forward, backward = (cuda_code.calls(code) for code in codes)
    zeros = "triton_poi_fused_new_zeros"  # by which a kernel counts its tiles
    assert sum(n for x, n in forward.items() if x.startswith(("group_norm_window", zeros))) == 2
    assert forward.total() == 2
    ours = ("group_norm_backward_window", zeros)
    assert sum(n for x, n in backward.items() if x.startswith(ours)) == 2
    assert backward.total() == 4, "beside sums over the images for weight and bias"


def test_counters_of_a_model_have_one_kernel(steps):
    alone, _ = steps()
    together, _ = steps(fused_counters)
    counts = sum(n for x, n in alone.items() if "add_copy" in x)
    assert counts == 3
    assert together.total() == alone.total() - counts + 1


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="of torch 2.13")
@pytest.mark.parametrize(("forced", "copies"), [(False, 2), (True, 0)])
def test_inductor_copies_what_a_depthwise_convolution_takes_backward(cuda_code, forced, copies):
    """docs/upstream.md says so: a torch that does not, ends this."""
    backwards = []
    for groups in (1, WIDTH):
        second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=groups, bias=False)
        model = nn.Sequential(Layer(), second, nn.BatchNorm2d(WIDTH)).bfloat16()
        model.to(memory_format=torch.channels_last)
        x = torch.empty(32, WIDTH, 56, 56, dtype=torch.bfloat16, memory_format=torch.channels_last)
        with torch._inductor.config.patch(force_layout_optimization=forced):
            _, code = cuda_code.training_codes_for_cuda(model, x)
        backwards.append(cuda_code.calls(code).total())
    full, depthwise = backwards
    assert depthwise - full == copies


def test_a_kernel_is_not_compiled_or_counted_twice(cuda_code, monkeypatch):
    code = code_of(cuda_code, monkeypatch, 2, fused=True)
    times = cuda_code.seconds_to_compile(code)
    assert len(times) == code.count("async_compile.triton(") == 2
    assert min(times) > 0.01, "Triton did not compile it"


def test_code_that_triton_refuses_is_timed(cuda_code, monkeypatch):
    code = code_of(cuda_code, monkeypatch, 2, fused=True)
    with pytest.raises(Exception, match="no_such_thing"):
        cuda_code.seconds_to_compile(code.replace("tl.program_id(0)", "tl.no_such_thing"))
