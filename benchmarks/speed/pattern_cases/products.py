"""Matrix products with what stands around them, and what is only pointwise."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from speed.pattern_cases.program import Pattern, Program, leaf, normal, weight


def qkv(rows: int, width: int, shared: int) -> Program:
    """Make the projections to queries, keys and values; the alternative is one product."""

    def function(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return F.linear(x, q), F.linear(x, k), F.linear(x, v)

    def merged(x: Tensor, all_of_them: Tensor) -> tuple[Tensor, ...]:
        return torch.split(F.linear(x, all_of_them), [width, shared, shared], dim=-1)

    x, parts = normal(rows, width), [weight(n, width) for n in (width, shared, shared)]
    return Program(
        function=function,
        inputs=(x, *parts),
        alternative=merged,
        alternative_inputs=(x, torch.cat(parts)),
    )


def swiglu(rows: int, width: int, hidden: int) -> Program:
    """Make the gated first half of a feed-forward network."""

    def function(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    def merged(x: Tensor, both: Tensor) -> Tensor:
        gate, up = F.linear(x, both).chunk(2, dim=-1)
        return F.silu(gate) * up

    x, parts = normal(rows, width), [weight(hidden, width) for _ in range(2)]
    return Program(
        function=function,
        inputs=(x, *parts),
        alternative=merged,
        alternative_inputs=(x, torch.cat(parts)),
    )


def swiglu_train(rows: int, width: int, hidden: int) -> Program:
    """Make a whole gated feed-forward network."""

    def function(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    weights = [weight(hidden, width), weight(hidden, width), weight(width, hidden)]
    return Program(
        function=function, inputs=(leaf(rows, width), *(w.requires_grad_() for w in weights))
    )


def linear_gelu(rows: int, width: int) -> Program:
    """Make a product with GELU's tanh form, which cuBLASLt has as an epilogue."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w, b), approximate="tanh")

    def epilogue(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.ops.aten._addmm_activation(b, x, w.t(), use_gelu=True)  # type: ignore[no-any-return] # noqa: SLF001

    return _linear(rows, width, function, epilogue)


def linear_gelu_spelled(rows: int, width: int) -> Program:
    """Make the same as GPT-2 spells it."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.linear(x, w, b)
        inner = math.sqrt(2 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))
        return 0.5 * y * (1.0 + torch.tanh(inner))

    def epilogue(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.ops.aten._addmm_activation(b, x, w.t(), use_gelu=True)  # type: ignore[no-any-return] # noqa: SLF001

    return _linear(rows, width, function, epilogue)


def linear_gelu_erf(rows: int, width: int) -> Program:
    """Make the erf form, for which there is no epilogue."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w, b))

    return _linear(rows, width, function, None)


def linear_relu(rows: int, width: int) -> Program:
    """Make a product with ReLU."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.relu(F.linear(x, w, b))

    def epilogue(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.ops.aten._addmm_activation(b, x, w.t())  # type: ignore[no-any-return] # noqa: SLF001

    return _linear(rows, width, function, epilogue)


def feed_forward(rows: int, width: int) -> Program:
    """Make T5's feed-forward network: two products without biases, and ReLU between them."""

    def function(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(F.relu(F.linear(x, up)), down)

    def epilogue(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        zeros = x.new_zeros(len(up))
        return F.linear(torch.ops.aten._addmm_activation(zeros, x, up.t()), down)  # noqa: SLF001

    return Program(
        function=function,
        inputs=(normal(rows, width), weight(4 * width, width), weight(width, 4 * width)),
        alternative=epilogue,
    )


def linear_residual(rows: int, width: int) -> Program:
    """Make a projection back to the residual stream."""

    def function(x: Tensor, w: Tensor, b: Tensor, residual: Tensor) -> Tensor:
        return residual + F.linear(x, w, b)

    inputs = (normal(rows, 4 * width), weight(width, 4 * width), normal(width), normal(rows, width))
    return Program(function=function, inputs=inputs)


def _linear(
    rows: int,
    width: int,
    function: Callable[..., Tensor],
    alternative: Callable[..., Tensor] | None,
) -> Program:
    inputs = (normal(rows, width), weight(4 * width, width), normal(4 * width))
    return Program(function=function, inputs=inputs, alternative=alternative)


def last_token(batch: int, length: int, width: int, words: int) -> Program:
    """Make all logits, of which the last token's are wanted."""

    def function(x: Tensor, head: Tensor) -> Tensor:
        return F.linear(x, head)[:, -1]

    def sliced(x: Tensor, head: Tensor) -> Tensor:
        return F.linear(x[:, -1], head)

    needed = 2 * (words * width + batch * (width + words))
    return Program(
        function=function,
        inputs=(normal(batch, length, width), weight(words, width)),
        alternative=sliced,
        flops=2 * batch * width * words,
        bytes_moved=needed,
    )


def class_token(batch: int, length: int, width: int) -> Program:
    """Make the end of a vision transformer: norm, then the class token's logits."""

    def function(x: Tensor, scale: Tensor, shift: Tensor, head: Tensor) -> Tensor:
        return F.linear(F.layer_norm(x, (width,), scale, shift)[:, 0], head)

    def sliced(x: Tensor, scale: Tensor, shift: Tensor, head: Tensor) -> Tensor:
        return F.linear(F.layer_norm(x[:, 0], (width,), scale, shift), head)

    return Program(
        function=function,
        inputs=(normal(batch, length, width), normal(width), normal(width), weight(1000, width)),
        alternative=sliced,
        flops=2 * batch * width * 1000,
        bytes_moved=2 * (batch * (width + 1000) + 1000 * width),
    )


def silu_product(rows: int, width: int) -> Program:
    """Make SwiGLU's product alone, which Inductor fuses already."""
    return Program(
        function=lambda x, y: F.silu(x) * y, inputs=(normal(rows, width), normal(rows, width))
    )


def rotary(tokens: int, heads: int, width: int) -> Program:
    """Make the rotary embedding of queries."""

    def function(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    inputs = (normal(1, heads, tokens, width), normal(tokens, width), normal(tokens, width))
    return Program(function=function, inputs=inputs)


def transposed_sum(rows: int, columns: int) -> Program:
    """Make a sum with a transposed matrix."""
    inputs = (normal(rows, columns), normal(columns, rows))
    return Program(function=lambda x, y: x + y.t(), inputs=inputs)


_ROWS = {"M1": (1,), "M16": (16,), "M512": (512,), "M8192": (8192,)}
_LINEAR = {"4096x768": (4096, 768), "16384x1024": (16384, 1024)}

PRODUCTS = (
    Pattern(
        name="qkv",
        alternative=True,
        make=qkv,
        shapes={name: (*rows, 2048, 512) for name, rows in _ROWS.items()},
        tiny=(2, 16, 8),
    ),
    Pattern(
        name="swiglu",
        alternative=True,
        make=swiglu,
        shapes={name: (*rows, 2048, 8192) for name, rows in _ROWS.items()},
        tiny=(2, 8, 16),
    ),
    Pattern(
        name="swiglu_train",
        make=swiglu_train,
        shapes={"4096x1024x3072": (4096, 1024, 3072), "8192x2048x8192": (8192, 2048, 8192)},
        tiny=(2, 8, 16),
        train=True,
    ),
    Pattern(
        name="linear_gelu_tanh", alternative=True, make=linear_gelu, shapes=_LINEAR, tiny=(2, 8)
    ),
    Pattern(
        name="linear_gelu_spelled",
        alternative=True,
        make=linear_gelu_spelled,
        shapes=_LINEAR,
        tiny=(2, 8),
    ),
    Pattern(name="linear_gelu_erf", make=linear_gelu_erf, shapes=_LINEAR, tiny=(2, 8)),
    Pattern(name="linear_relu", alternative=True, make=linear_relu, shapes=_LINEAR, tiny=(2, 8)),
    Pattern(
        name="feed_forward_relu", alternative=True, make=feed_forward, shapes=_LINEAR, tiny=(8, 8)
    ),
    Pattern(name="linear_residual", make=linear_residual, shapes=_LINEAR, tiny=(2, 8)),
    Pattern(
        name="lmhead_last_token",
        alternative=True,
        make=last_token,
        shapes={"4x2048": (4, 2048, 2048, 128256), "1x8192": (1, 8192, 1024, 151936)},
        tiny=(2, 4, 8, 16),
    ),
    Pattern(
        name="class_token",
        alternative=True,
        make=class_token,
        shapes={"128x197x768": (128, 197, 768), "64x577x1024": (64, 577, 1024)},
        tiny=(2, 4, 8),
    ),
    Pattern(
        name="silu_product",
        make=silu_product,
        shapes={"8192x8192": (8192, 8192), "512x8192": (512, 8192)},
        tiny=(2, 8),
    ),
    Pattern(
        name="rotary",
        make=rotary,
        shapes={"8192x32x64": (8192, 32, 64), "2048x16x128": (2048, 16, 128)},
        tiny=(4, 2, 8),
    ),
    Pattern(
        name="transpose_add",
        make=transposed_sum,
        shapes={"8192x8192": (8192, 8192), "2048x16384": (2048, 16384)},
        tiny=(4, 8),
    ),
)
