"""Layers that read the same, and what reads them: for tests in inference, and in training."""

import sys

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.backend import Optimizing
from backbay_optimizer.passes.horizontal_fusion import horizontal_fusion
from backbay_optimizer.passes.parameter_hoist import parameter_hoist

BOTH = (horizontal_fusion, parameter_hoist)
ON = {"parameter_hoist": True}
B, T, D, H, HD = 2, 5, 16, 4, 8
WIDE, NARROW = H * HD, 2 * HD
MODULE = sys.modules["backbay_optimizer.passes.horizontal_fusion"]
OTHER_READER = MODULE._other_reader


class Model(nn.Module):
    """A program of an input and of layers that are the model's own."""

    def __init__(self, program, *, bias=False, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.q = nn.Linear(D, WIDE, bias=bias, dtype=dtype)
        self.k = nn.Linear(D, NARROW, bias=bias, dtype=dtype)
        self.v = nn.Linear(D, NARROW, bias=bias, dtype=dtype)
        self.o = nn.Linear(WIDE, D, bias=bias, dtype=dtype)
        self.register_buffer("cache", torch.zeros(B, 2, T, HD, dtype=dtype))
        self.program = program

    def forward(self, x):
        return self.program(self, x)


def inputs(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(B, T, D).to(dtype)


def heads(x):
    return x.view(*x.shape[:-1], -1, HD).transpose(1, 2)


def attention(m, x):
    q, k, v = (heads(layer(x)) for layer in (m.q, m.k, m.v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return m.o(y.transpose(1, 2).reshape(*x.shape[:-1], -1))


def rotated(m, x):
    first, second = heads(m.q(x)).chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1) + heads(m.k(x)).repeat_interleave(2, dim=1)


def gated(m, x):
    return F.silu(m.k(x)) * m.v(x)


def with_a_cache(m, x):
    q, k, v = (heads(layer(x)) for layer in (m.q, m.k, m.v))
    index = torch.arange(T)
    m.cache.index_copy_(2, index, v)
    y = F.scaled_dot_product_attention(q, k * 2, m.cache, enable_gqa=True)
    return m.o(y.transpose(1, 2).flatten(2))


def with_a_copy(m, x):
    return m.q(x).reshape(-1, 2).sum(1), m.k(x).flatten().exp()


def under_autocast(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return F.silu(m.k(x)) * m.v(x)


class Layer(nn.Module):
    """A decoder's layer as Llama's: norms, grouped attention, and a gated network."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.attention = Model(attention, dtype=dtype)
        self.norms = nn.ModuleList(nn.RMSNorm(D, dtype=dtype) for _ in range(2))
        self.gate, self.up, self.down = (
            nn.Linear(*x, bias=False, dtype=dtype) for x in ((D, 40), (D, 40), (40, D))
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def codegen(name):
    from backbay.kit.backend import Backend

    return type("Ending", (Backend,), {"passes": BOTH, "codegen": name})()


class AsItIs(Optimizing):
    """The backend with its graphs run as they are: Inductor takes seconds for each variant."""

    def compile(self, graph_module, example_inputs):
        return graph_module.forward
