"""Attention with a window is the sum over what lies in it, and CUDA computes no more."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from backbay_optimizer.kernels.windowed_attention import OPERATOR

FOLDER = str(Path(__file__).parents[4] / "benchmarks")


def tensors(queries, keys, *, shared=4):
    """Return query (2, 4, queries, 8), key and value with heads and a length of their own."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, queries, 8), (2, shared, keys, 8), (2, shared, keys, 8)
    return [torch.randn(x, dtype=torch.float64, generator=generator) for x in shapes]


def in_words(given, left, right, scale):
    """Compute what the operator promises, one query at a time."""
    query, key, value = given
    times, own = query.shape[1] // key.shape[1], key.shape[2] - query.shape[2]
    key, value = (x.repeat_interleave(times, dim=1) for x in (key, value))
    rows = []
    for i in range(query.shape[2]):
        near = slice(max(0, i + own - left), i + own + right + 1)
        scores = (query[:, :, i : i + 1] * key[:, :, near]).sum(-1) * scale
        rows.append((scores.softmax(-1)[..., None] * value[:, :, near]).sum(2))
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize("shared", [4, 2, 1])
@pytest.mark.parametrize("lengths", [(9, 9), (4, 9), (1, 9)], ids=str)
@pytest.mark.parametrize("window", [(2, 0), (0, 3), (3, 1), (0, 0), (99, 0), (99, 99)], ids=str)
def test_a_key_outside_of_the_window_counts(lengths, window, shared):
    given = tensors(*lengths, shared=shared)
    torch.testing.assert_close(OPERATOR(*given, *window), in_words(given, *window, 8**-0.5))
    scaled = OPERATOR(*given, *window, scale=0.1)
    torch.testing.assert_close(scaled, in_words(given, *window, 0.1))


def test_a_gradient_is_lost():
    given = [x.requires_grad_() for x in tensors(5, 7)]
    assert torch.autograd.gradcheck(lambda *x: OPERATOR(*x, 2, 1), given)


@pytest.mark.parametrize("shared", [4, 2])
def test_sizes_that_are_symbols_are_refused(shared):
    torch._dynamo.reset()
    compiled = torch.compile(OPERATOR, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ((5, 7), (6, 9)):
        given = tensors(*lengths, shared=shared)
        torch.testing.assert_close(compiled(*given, 2, 1), OPERATOR(*given, 2, 1))


@pytest.fixture
def code_for_cuda(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("speed.cuda_code").code_for_cuda
    for name in [x for x in sys.modules if x.split(".")[0] == "speed"]:
        del sys.modules[name]


def test_a_gpu_computes_all_pairs(code_for_cuda):
    class Attention(torch.nn.Module):
        def forward(self, query, key, value):
            return OPERATOR(query, key, value, 511, 0, scale=0.5)

    shapes = (2, 4, 4096, 128), (2, 1, 4096, 128), (2, 1, 4096, 128)
    given = [torch.empty(x, dtype=torch.bfloat16, device="meta") for x in shapes]
    code = code_for_cuda(torch.fx.symbolic_trace(Attention()), given)
    (call,) = [x for x in code.splitlines() if "= torch.ops.aten._flash_attention_forward" in x]
    assert "None, None, 4096, 4096, 0.0, False, False, scale=0.5" in call
    assert "window_size_left=511, window_size_right=0" in call
    assert "(2, 1, 4096, 128)" not in code.split("_flash_attention_forward")[1]  # not repeated
    assert "triton_" not in code.split("def call(")[1]  # nothing is copied
