"""Norms, alone and with what stands beside them."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from backbay_optimizer.kernels import group_norm_silu as kernel
from speed.pattern_cases.program import Pattern, Program, around_one, leaf, normal

EPS = 1e-6
_GROUPS = 32


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Normalise as transformers' models do, in float32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * wide.to(x.dtype)


def gemma_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Normalise as Gemma does, by one plus the weight."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return (wide * (1.0 + weight.float())).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise the last dimension."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise groups of channels, then SiLU, as diffusion models do."""
    return F.silu(F.group_norm(x, _GROUPS, weight, bias, EPS))


def group_norm_silu_kernel(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Do it by our kernel, in the layout of ``x``."""
    y: Tensor = torch.ops.backbay.group_norm_silu.default(x, weight, bias, _GROUPS, EPS)[0]
    return y


def rms_forward(rows: int, width: int) -> Program:
    """Make a residual sum and its norm; both are needed."""

    def function(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return rms_norm(total, weight), total

    return Program(
        function=function, inputs=(normal(rows, width), normal(rows, width), around_one(width))
    )


def rms_both(rows: int, width: int) -> Program:
    """Make RMSNorm."""
    return Program(
        function=rms_norm, inputs=(leaf(rows, width), around_one(width).requires_grad_())
    )


def gemma_both(rows: int, width: int) -> Program:
    """Make Gemma's norm."""
    return Program(function=gemma_norm, inputs=(leaf(rows, width), leaf(width, scale=0.1)))


def layer_forward(rows: int, width: int) -> Program:
    """Make a residual sum and its LayerNorm."""

    def function(
        x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        total = x + residual
        return layer_norm(total, weight, bias), total

    return Program(
        function=function,
        inputs=(normal(rows, width), normal(rows, width), around_one(width), normal(width)),
    )


def layer_both(rows: int, width: int) -> Program:
    """Make LayerNorm."""
    return Program(
        function=layer_norm,
        inputs=(leaf(rows, width), around_one(width).requires_grad_(), leaf(width)),
    )


def group(batch: int, channels: int, side: int, last: int, train: int) -> Program:
    """Make GroupNorm and SiLU; ``last`` is whether channels are."""
    form = torch.channels_last if last else torch.contiguous_format
    x = normal(batch, channels, side, side).contiguous(memory_format=form)
    inputs = (x, around_one(channels), normal(channels))
    for each in inputs if train else ():
        each.requires_grad_()
    assert callable(kernel.group_norm_silu)  # registers it: torch.ops has it only after that
    return Program(function=group_norm_silu, inputs=inputs, alternative=group_norm_silu_kernel)


def qk_norm_rope(tokens: int, heads: int, shared: int, width: int) -> Program:
    """Make Qwen3's: norm of each head of queries and keys, then the rotary embedding."""

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    def function(  # noqa: PLR0917 (graph inputs)
        q: Tensor, k: Tensor, one: Tensor, other: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        query = rms_norm(q.view(1, tokens, heads, width), one).transpose(1, 2)
        key = rms_norm(k.view(1, tokens, shared, width), other).transpose(1, 2)
        return rotated(query, cos, sin), rotated(key, cos, sin)

    angles = torch.outer(torch.arange(tokens), 1e-4 ** torch.linspace(0, 1, width // 2)).repeat(
        1, 2
    )
    cos, sin = (x.to(torch.bfloat16) for x in (angles.cos(), angles.sin()))
    return Program(
        function=function,
        inputs=(
            normal(tokens, heads * width),
            normal(tokens, shared * width),
            around_one(width),
            around_one(width),
            cos,
            sin,
        ),
    )


def rms_float8(rows: int, width: int) -> Program:
    """Make RMSNorm, then float8 with a scale for each row."""
    most = torch.finfo(torch.float8_e4m3fn).max

    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y = rms_norm(x, weight).float()
        scale = y.abs().amax(-1, keepdim=True).clamp(min=EPS) / most
        return (y / scale).clamp(-most, most).to(torch.float8_e4m3fn), scale

    return Program(function=function, inputs=(normal(rows, width), around_one(width)))


_ROWS = {"4096x4096": (4096, 4096), "16384x2048": (16384, 2048), "2048x8192": (2048, 8192)}
_IMAGES = {
    "8x512x64": (8, 512, 64),
    "2x320x128": (2, 320, 128),
    "1x128x512": (1, 128, 512),
    "4x128x512": (4, 128, 512),
}


def _groups(*, last: int, train: int) -> dict[str, tuple[int, ...]]:
    return {name: (*shape, last, train) for name, shape in _IMAGES.items()}


NORMS = (
    Pattern(name="rmsnorm_add", make=rms_forward, shapes=_ROWS, tiny=(4, 16)),
    Pattern(name="rmsnorm_train", make=rms_both, shapes=_ROWS, tiny=(4, 16), train=True),
    Pattern(name="gemma_norm_train", make=gemma_both, shapes=_ROWS, tiny=(4, 16), train=True),
    Pattern(name="layernorm_add", make=layer_forward, shapes=_ROWS, tiny=(4, 16)),
    Pattern(name="layernorm_train", make=layer_both, shapes=_ROWS, tiny=(4, 16), train=True),
    *(
        Pattern(
            name=f"groupnorm_silu_{layout}{'_train' if train else ''}",
            make=group,
            shapes=_groups(last=last, train=train),
            tiny=(1, 32, 4, last, train),
            train=bool(train),
            alternative=True,
        )
        for layout, last in (("nchw", 0), ("nhwc", 1))
        for train in (0, 1)
    ),
    Pattern(
        name="qknorm_rope",
        make=qk_norm_rope,
        shapes={"8192": (8192, 16, 8, 128), "2048": (2048, 32, 8, 128)},
        tiny=(4, 2, 1, 8),
    ),
    Pattern(
        name="rmsnorm_fp8_token",
        make=rms_float8,
        shapes={"8192x4096": (8192, 4096), "2048x8192": (2048, 8192)},
        tiny=(4, 16),
    ),
)
