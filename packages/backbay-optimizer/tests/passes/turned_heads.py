"""Heads that are normalised and turned by their positions, as models write it."""

import torch

from backbay_optimizer.kernels import rotated_heads as kernel
from backbay_optimizer.passes.rotated_heads import rotated_heads

B, T, H, D = 2, 6, 3, 16
HALF = D // 2


def lift_all(lift, monkeypatch):
    """Have the pass take heads of any size on the CPU."""
    lift(rotated_heads, DEVICES=("cpu",))
    monkeypatch.setattr(kernel, "pays", lambda *_: None)


def normal(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def given(dtype=torch.bfloat16, batch=1, tokens=T, heads=H):
    angles = normal(batch, tokens, D, dtype=torch.float32, seed=3)
    return (
        normal(B, tokens, heads * D, dtype=dtype),
        normal(D, dtype=dtype, seed=1),
        angles.cos().to(dtype),
        angles.sin().to(dtype),
    )


def root(wide, eps=1e-6):
    return torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


def rms_norm(x, weight, offset=0.0, eps=1e-6):
    wide = x.float()
    wide = wide * root(wide, eps)
    if offset:
        return (wide * (offset + weight.float())).type_as(x)
    return weight * wide.to(x.dtype)


def rotate_half(x):
    return torch.cat((-x[..., HALF:], x[..., :HALF]), dim=-1)


def turned(x, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return x * cos + rotate_half(x) * sin


def heads(x, width=D):
    return x.view(*x.shape[:2], -1, width)


def normed(x, weight):
    return rms_norm(heads(x), weight).transpose(1, 2)
