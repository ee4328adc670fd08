"""Honest compilers pass, in whole, forward and backward."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload, make_golden, observe


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (4, 8)).transpose(1, 2) for p in parts)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + h.transpose(1, 2).flatten(2)
        return x + self.mlp(x)


# In CI Inductor has one dtype here, and the other in the sweep of backends and the decoder's test.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *itertools.product(
            ["aot_eager", "aot_eager_decomp_partition"], [torch.float32, torch.bfloat16]
        ),
        ("inductor", torch.bfloat16),
        pytest.param("inductor", torch.float32, marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_honest_backend_passes_and_its_broken_twin_fails(backend, dtype):
    torch.manual_seed(0)
    model = Block().to(dtype)
    workload = Workload(model=model, args=(torch.randn(2, 16, 32).to(dtype),))
    golden = make_golden(workload, train=True)
    torch.compiler.reset()
    with golden.context():
        call = torch.compile(model, backend=backend)
        proof = golden.judge(observe(call, golden.at(workload), train=True))
        assert proof.passed, proof.worst
        wrong = golden.judge(observe(lambda x: call(x) * 1.02, workload, train=True))
        assert not wrong.passed
