"""Random programs of what each pass of ``backend="backbay"`` looks for, a table of them by pass."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pass_drafts import Draft, RefusedError

from backbay_conformance.fuzz.program import Program

C = 16
"""Channels of images."""
D = 16
"""Features of tokens."""
HEADS, WIDTH = 2, 8
F = "torch.nn.functional"
ATTEMPTS = 200

Layer = Callable[[Draft, str], str]


@dataclass(frozen=True, kw_only=True)
class Family:
    """What programs of a pass are made of."""

    begin: Callable[[Draft], str]
    layers: tuple[Layer, ...]
    trained: float
    """How often gradients are wanted."""
    end: Layer | None = None


def program_of(name: str, seed: int) -> Program:
    """Draw the program of a seed for a pass."""
    for attempt in range(ATTEMPTS):
        rng = random.Random(f"{name}/{seed}/{attempt}")
        family = FAMILIES[name]
        noise = rng.choice((0.0, 0.04, 0.08, 0.16))
        draft = Draft(rng, seed=seed, train=rng.random() < family.trained, noise=noise)
        try:
            x = family.begin(draft)
            for _ in range(rng.choice((1, 1, 2, 3))):
                x = rng.choice(family.layers)(draft, x)
                if draft.chance(0.3):
                    draft.write_aliases()
            if family.end is not None:
                x = family.end(draft, x)
        except RefusedError:
            continue
        return draft.program(x)
    raise RefusedError(f"no attempt at seed {seed} of {name} gave a program that eager takes")


# 1. Images


def _image(d: Draft) -> str:
    return d.image(C, d.one((4, 4, 5, 1)), d.one((6, 6, 3, 1)))


def _small_image(d: Draft) -> str:
    return d.image(C, d.one((1, 2, 3)), d.one((2, 3)), last=0.1)


def _large_image(d: Draft) -> str:
    return d.image(C, d.one((7, 8, 9)), d.one((7, 8, 12)))


def _conv(d: Draft, x: str, to: int = C, kernel: int | None = None, how: str = "") -> str:
    channels = d.value(x).shape[1]
    kernel = kernel or d.one((1, 3))
    w = d.learnt(to, channels, kernel, kernel, scale=(channels * kernel**2) ** -0.5)
    how = how or f", padding={kernel // 2}"
    called = d.one(("torch.conv2d",) * 3 + (f"{F}.conv2d",))
    return d.step(f"{called}({{0}}, {{1}}, {{2}}{how})", x, w, d.maybe(to))


def _plain(d: Draft, x: str) -> str:
    """What stands round layers of images."""
    return d.step(
        d.one(
            (
                f"{F}.relu({{0}})",
                f"{F}.silu({{0}})",
                f"{F}.gelu({{0}})",
                "{0} * torch.sigmoid({0})",
                "{0} * {0}.mean((2, 3), keepdim=True)",
                f"{F}.interpolate({{0}}, scale_factor=2.0, mode='nearest')",
                "torch.cat([{0}, {0}.cos()], 1)[:, ::2]",
                "torch.cat({0}.chunk(2, 1)[::-1], 1)",
                "{0}.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)",
                "{0}.flatten(2).mT.reshape({0}.shape[0], *{0}.shape[2:], -1).permute(0, 3, 1, 2)",
                "{0}.flatten(2).softmax(-1).view_as({0})",
                "{0}.contiguous()",
                "{0} / 1.5",
            )
        ),
        x,
    )


def _group_norm(d: Draft, x: str) -> str:
    skip = x
    if d.chance(0.7):
        x = _conv(d, x)
    c = d.value(x).shape[1]
    if d.chance(0.3):
        x = d.step("{0} + {1}[:, :, None, None]", x, d.given(f"torch.randn(n, {c})"))
    groups = d.one((2, 4, c, 1))
    # Eager on a CPU refuses the gradient of a bias without a weight.
    w = d.maybe(c)
    b = None if w is None and d.train else d.maybe(c)
    x = d.step(f"{F}.group_norm({{0}}, {groups}, {{1}}, {{2}}, {d.one(('1e-5', '1e-2'))})", x, w, b)
    act = d.one(
        (f"{F}.silu({{0}})",) * 4 + (f"{F}.silu({{0}}, inplace=True)", f"{F}.relu({{0}})", "")
    )
    if act:
        x = d.step(act, x)
    if d.chance(0.6):
        x = _conv(d, x, c)
    if d.chance(0.3) and d.value(skip).shape == d.value(x).shape:
        x = d.step(d.one(("{0} + {1}", "{1} + {0}", "{0}.add_({1})")), x, skip)
    return x


def _statistics(d: Draft, c: int) -> tuple[str | None, str | None]:
    if d.chance(0.1):
        return None, None
    role = d.one(("buffer", "buffer", "buffer", "input"))
    mean = d.given(f"torch.randn({c}) * 0.1", role)
    return mean, d.given(f"torch.rand({c}) + 0.5", role)


def _batch_norm(d: Draft, x: str, training: str) -> str:
    c = d.value(x).shape[1]
    mean, var = _statistics(d, c) if training == "True" or d.chance(0.97) else (None, None)
    # Eager on a CPU has wrong gradients of batch norms whose weight has gaps.
    w, b = d.learnt(c, dense=True), d.learnt(c, dense=True)
    if d.chance(0.1):
        w, b = d.one(((None, b), (w, None), (None, None)))
    rest = d.one((", 0.1, 1e-5", ", 0.3, 1e-3", ", momentum=0.1, eps=1e-5", ""))
    return d.step(
        f"{F}.batch_norm({{0}}, {{1}}, {{2}}, {{3}}, {{4}}, {training}{rest})", x, mean, var, w, b
    )


_ACTIVATIONS = (
    f"{F}.relu({{0}})",
    f"{F}.relu({{0}})",
    "torch.relu({0})",
    "{0}.relu()",
    "{0}.relu_()",
    f"{F}.relu({{0}}, inplace=True)",
    f"{F}.silu({{0}})",
    f"{F}.silu({{0}}, inplace=True)",
    f"{F}.hardswish({{0}})",
    f"{F}.hardswish({{0}}, inplace=True)",
    f"{F}.gelu({{0}})",
    f"{F}.gelu({{0}}, approximate='tanh')",
)


def _trained_norm(d: Draft, x: str) -> str:
    if d.chance(0.6):
        x = _conv(d, x, C)
    elif d.chance(0.5):
        x = d.take("{0}.contiguous(memory_format=torch.channels_last)", x)
    x = _batch_norm(d, x, "True")
    if d.chance(0.8):
        x = d.step(d.one(_ACTIVATIONS), x)
    return x


def _pool(d: Draft, x: str) -> str:
    if d.chance(0.5):
        x = d.take("{0}.contiguous(memory_format=torch.channels_last)", x)
    how = d.one(
        ("3, 2, 1",) * 6
        + ("3, stride=2, padding=1", "(3, 3), (2, 2), (1, 1)", "3, 2, 1, 1, True", "2")
    )
    called = d.one((f"{F}.max_pool2d",) * 3 + ("torch.max_pool2d",))
    return d.step(f"{called}({{0}}, {how})", x)


def _depthwise(d: Draft, x: str) -> str:
    c, kernel = d.value(x).shape[1], d.one((7, 7, 5, 3))
    w = d.learnt(c, 1, kernel, kernel, scale=1 / kernel)
    padding = d.one((kernel // 2,) * 4 + (0, kernel))
    stride = d.one((1, 1, 1, 2))
    x = d.step(f"torch.conv2d({{0}}, {{1}}, {{2}}, {stride}, {padding}, 1, {c})", x, w, d.maybe(c))
    if d.chance(0.3):
        x = _plain(d, x)
    return x


def _convnext(d: Draft, x: str) -> str:
    """ConvNeXt's block, with or without its depthwise convolution."""
    skip, c = x, d.value(x).shape[1]
    if d.chance(0.4):
        x = _depthwise(d, x)
    x = d.step("{0}.permute(0, 2, 3, 1)", x)
    x = _mlp(d, x, c)
    x = d.step(
        d.one(
            (
                "{0}.permute(0, 3, 1, 2)",
                "torch.permute({0}, (0, 3, 1, 2))",
                "{0}.permute(0, -1, 1, 2)",
            )
        ),
        x,
    )
    if d.chance(0.8):
        gamma = d.learnt(c)
        gamma = d.take("{0}.reshape(1, -1, 1, 1)", gamma)
        x = d.step(d.one(("{0} * {1}", "{1} * {0}", "{0}.mul({1})", "{0}.mul_({1})")), x, gamma)
    return _plus(d, x, skip)


def _plus(d: Draft, x: str, skip: str) -> str:
    if d.value(skip).shape != d.value(x).shape:
        return x
    spelt = d.one(
        ("{0} + {1}", "{1} + {0}", "torch.add({0}, {1})", "{0}.add_({1})", "{1}.add({0})")
    )
    return d.step(spelt, x, skip)


def _mlp(d: Draft, x: str, c: int) -> str:
    wide = d.one((c, 2 * c, 24))
    x = _linear(d, x, wide)
    if d.chance(0.2):
        x = d.step(f"{F}.dropout({{0}}, 0.0)", x)
    x = d.step(d.one((f"{F}.gelu({{0}})", *_ACTIVATIONS)), x)
    if d.chance(0.9):
        x = _linear(d, x, c)
    return x


def _linear(d: Draft, x: str, to: int) -> str:
    c = d.value(x).shape[-1]
    if d.chance(0.1) and d.value(x).dim() == 2:
        return d.step("torch.addmm({2}, {0}, {1})", x, d.learnt(c, to), d.learnt(to))
    w = d.learnt(to, c)
    return d.step(f"{F}.linear({{0}}, {{1}}, {{2}})", x, w, d.maybe(to))


def _gated_convolution(d: Draft, x: str) -> str:
    """EfficientNet's: a gate, a convolution of one pixel, a batch norm, and what follows."""
    skip = x
    if d.chance(0.5):
        x = _batch_norm(d, x, "False")
        if d.chance(0.8):
            x = d.step(d.one(_ACTIVATIONS), x)
    if d.chance(0.6):
        c = d.value(x).shape[1]
        mean = d.one(("{0}.mean((2, 3), keepdim=True)", f"{F}.adaptive_avg_pool2d({{0}}, 1)"))
        gate = d.step(mean, x)
        if d.chance(0.7):
            gate = _conv(d, gate, c, 1)
        gate = d.step("{0}.sigmoid()", gate)
        x = d.step(d.one(("{0} * {1}", "{1} * {0}", "{0}.mul_({1})")), x, gate)
    x = _conv(d, x, C, 1)
    x = _batch_norm(d, x, "False")
    drawn = d.rng.random()
    if drawn < 0.5:
        return d.step(d.one(_ACTIVATIONS), x)
    return _plus(d, x, skip) if drawn < 0.9 else x


def _residual(d: Draft, x: str) -> str:
    """ResNet's."""
    skip = x
    x = _conv(d, x, C)
    if d.chance(0.75):
        x = _batch_norm(d, x, d.one(("False",) * 9 + ("True",)))
    if d.chance(0.5):
        if d.chance(0.2):
            skip = x
        x = _plus(d, x, skip)
    return d.step(d.one((*_ACTIVATIONS[:6], *_ACTIVATIONS[:3])), x)


def _stem_image(d: Draft) -> str:
    return d.image(d.one((3, 3, 1, 4)), d.one((8, 9, 12)), d.one((8, 10, 12)), last=0.4)


def _stem(d: Draft, x: str) -> str:
    if d.value(x).dim() != 4 or d.value(x).shape[1] >= 8:
        return _plain(d, x)
    kernel, stride = d.one(((4, 4), (2, 2), (7, 2), (3, 2), (5, 3), (4, 2), (2, 1), (3, 3)))
    padding = d.one((0, kernel // 2))
    stride_text = d.one((str(stride), f"({stride}, {stride})", f"({stride}, 1)"))
    c = d.value(x).shape[1]
    w = d.learnt(d.one((8, 16)), c, kernel, kernel)
    return d.step(
        f"torch.conv2d({{0}}, {{1}}, {{2}}, {stride_text}, {padding})",
        x,
        w,
        d.maybe(d.value(w).shape[0]),
    )


def _volume(d: Draft, x: str) -> str:
    x = d.given(
        "torch.randn(n, 4, 4, 4, 6)"
        + d.one(
            (
                "",
                ".contiguous(memory_format=torch.channels_last_3d)",
                ".transpose(3, 4).contiguous().transpose(3, 4)",
            )
        )
    )
    w = d.learnt(8, 4, 2, 2, 2)
    stride = d.one(("2", "(2, 2, 2)", "(2, 2, 1)"))
    return d.step(f"torch.conv3d({{0}}, {{1}}, {{2}}, {stride})", x, w, d.maybe(8))


def _big_weights(d: Draft, x: str) -> str:
    c = d.value(x).shape[1]
    w = d.learnt(d.one((C, 32)), c // (groups := d.one((1, 1, 1, 2))), 3, 3)
    x = d.step(
        f"torch.conv2d({{0}}, {{1}}, {{2}}, 1, {d.one((1, 1, '(1, 2)'))}, 1, {groups})",
        x,
        w,
        d.maybe(d.value(w).shape[0]),
    )
    return _plain(d, x) if d.chance(0.5) else x


# 2. Tokens


def _tokens(d: Draft) -> str:
    t = d.one((5, 8, 8, 1))
    return d.tokens("n", t, D)


def _matrix(d: Draft) -> str:
    return d.tokens("n", D) if d.chance(0.4) else d.tokens("n", d.one((1, 3, 4)), D)


def _feed_forward(d: Draft, x: str) -> str:
    c = d.value(x).shape[-1]
    skip = x
    x = _linear(d, x, d.one((D, 32)))
    if d.chance(0.25):
        x = d.step(
            d.one(
                ("{0}.view(-1, {0}.shape[-1])", "{0}.reshape(1, *{0}.shape)", "{0}.view({0}.shape)")
            ),
            x,
        )
    spelled = (
        "0.5 * {0} * (1 + torch.tanh(0.7978845608028654 * ({0} + 0.044715 * {0} ** 3)))",
        "0.5 * {0} * (1 + torch.tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))",
        f"{F}.gelu({{0}}, approximate='tanh')",
    )
    x = d.step(d.one((*_ACTIVATIONS, *spelled)), x)
    if d.chance(0.7):
        x = _linear(d, x, c)
    return _plus(d, x, skip) if d.chance(0.4) else x


def _rows(d: Draft, x: str) -> str:
    """What works row by row."""
    c, drawn = d.value(x).shape[-1], d.rng.randrange(7)
    if drawn == 0:
        return _linear(d, x, D)
    if drawn == 1:
        return d.step(
            f"{F}.layer_norm({{0}}, ({c},), {{1}}, {{2}}, 1e-3)", x, d.maybe(c), d.maybe(c)
        )
    if drawn == 2:
        return d.step(f"{F}.rms_norm({{0}}, ({c},), {{1}}, 1e-3)", x, d.maybe(c))
    if drawn == 3:
        return _feed_forward(d, x)
    if drawn == 4:
        return _attention(d, x)
    return d.step(
        d.one(
            (
                "{0}.softmax(-1)",
                f"{F}.softmax({{0}}, dim=-1)",
                f"{F}.softmax({{0}}, dim=1)",
                "{0} * {0}.mean(-1, keepdim=True)",
                "{0} - {0}.amax(dim=-1, keepdim=True)",
                "{0} + {0}.sum(dim=1, keepdim=True)",
                "torch.where({0} > 0, {0}, {0}.sin())",
                "{0}.clamp(-0.5, 0.5)",
                "torch.maximum({0}, {0}.cos())",
                "{0}.float()",
                "{0} + torch.arange({0}.shape[1])[:, None]",
                "{0} + torch.arange({0}.shape[-1])",
                f"{F}.dropout({{0}}, 0.5, False)",
                "{0}.cumsum(1)",
                "{0}.reshape(*{0}.shape[:2], 2, -1).transpose(1, 2).transpose(1, 2).flatten(2)",
                "{0}.view({0}.shape[0], {0}.shape[1], 2, -1).sin().view({0}.shape)",
            )
        ),
        x,
    )


def _selected(d: Draft, x: str) -> str:
    text = d.one(
        (
            "{0}[:, -1]",
            "{0}[:, -1:]",
            "{0}[:, 0]",
            "{0}[:, :1]",
            "{0}[:, 1:3]",
            "{0}[:, ::2]",
            "{0}[..., -1, :]",
            "{0}[-1]",
            "{0}[0]",
            "{0}[:1, :2]",
            "{0}[:, 0, :4]",
            "{0}[:, -2]",
            "{0}[:, -2:-1]",
            "{0}[0, -1]",
            "{0}[:, 5:]",
            "{0}[:, None, -1]",
            "{0}[..., 0]",
        )
    )
    x = d.step(text, x)
    for _ in range(d.one((0, 0, 1))):
        x = d.step(
            d.one(("{0}.sin()", "{0} * 2", "{0}.contiguous()", "{0}.add_(1)", "{0}.unsqueeze(0)")),
            x,
        )
    return x


def _split(d: Draft, x: str, heads: int) -> str:
    width = d.value(x).shape[-1] // heads
    text = d.one(
        (
            f"{{0}}.view({{0}}.shape[0], -1, {heads}, {width}).transpose(1, 2)",
            f"{{0}}.reshape({{0}}.shape[0], -1, {heads}, {width}).transpose(1, 2)",
            f"{{0}}.unflatten(-1, ({heads}, {width})).transpose(1, 2)",
            f"{{0}}.view({{0}}.shape[0], -1, {heads}, {width}).permute(0, 2, 1, 3)",
        )
    )
    return d.step(text, x)


def _joined(d: Draft, x: str) -> str:
    text = d.one(
        (
            "{0}.transpose(1, 2).flatten(2)",
            "{0}.transpose(1, 2).reshape({0}.shape[0], {0}.shape[2], -1)",
            "{0}.transpose(1, 2).contiguous().view({0}.shape[0], {0}.shape[2], -1)",
        )
    )
    return d.step(text, x)


def _layers_of(d: Draft, x: str, kv_heads: int) -> tuple[str, str, str]:
    q, k, v = (_linear(d, x, n * WIDTH) for n in (HEADS * 2, kv_heads, kv_heads))
    return _split(d, q, HEADS * 2), _split(d, k, kv_heads), _split(d, v, kv_heads)


def _repeated(d: Draft, x: str, times: int) -> str:
    """Repeat keys or values for groups of heads."""
    heads = d.value(x).shape[1] * times
    if d.chance(0.4):
        text = d.one(
            (
                f"{{0}}.repeat_interleave({times}, dim=1)",
                f"torch.repeat_interleave({{0}}, {times}, dim=1)",
                f"torch.repeat_interleave({{0}}, {times}, 1)",
                f"{{0}}.repeat(1, {times}, 1, 1)",
            )
        )
        return d.step(text, x)
    thin = d.one(("{0}[:, :, None]", "{0}[:, :, None, :, :]", "{0}.unsqueeze(2)"))
    wide = f"{thin}.expand(-1, -1, {times}, -1, -1)"
    if d.chance(0.4):
        return d.step(f"{wide}.reshape({{0}}.shape[0], {heads}, *{{0}}.shape[2:])", x)
    return d.step(f"{{0}}.reshape({{0}}.shape[0], {heads}, *{{0}}.shape[3:])", d.step(wide, x))


def _mask(d: Draft, queries: int, keys: int, *, windows: bool) -> tuple[str | None, str]:
    """Return a mask, and further arguments."""
    grid = f"torch.arange({queries})[:, None] + {keys - queries}", f"torch.arange({keys})"
    drawn = d.rng.randrange(12)
    if windows and drawn > 1:
        near, back = f"(({grid[0]}) - {grid[1]})", f"({grid[1]} - ({grid[0]}))"
        window = d.one(
            (
                f"({near} >= 0) & ({near} < {d.one((1, 2, 3, 20))})",
                f"{near}.abs() < {d.one((1, 2, 3))}",
                f"({near} <= 1) & ({back} <= {d.one((0, 1, 2))})",
                f"torch.ones({queries}, {keys}, dtype=torch.bool).tril({keys - queries}).triu(-1)",
            )
        )
        spelt = (
            window,
            f"({window})[None, None]",
            f"({window}).expand(2, 1, {queries}, {keys})",
            f"torch.zeros({queries}, {keys}).masked_fill(~({window}), float('-inf'))",
            f"torch.where({window}, 0.0, float('-inf'))",
        )
        return d.step(d.one(spelt)), ""
    if drawn == 0:
        return None, ", is_causal=True" if queries == keys else ""
    if drawn == 1:
        return None, ""
    if drawn == 2:
        return d.given(f"torch.randn({queries}, {keys})"), ""
    if drawn == 3:
        return d.given(f"torch.randn(n, 1, {queries}, {keys}) > -1"), ""
    texts = (
        f"({grid[0]}) >= {grid[1]}",
        f"(({grid[0]}) >= {grid[1]})[None, None]",
        f"torch.ones({queries}, {keys}, dtype=torch.bool).tril({keys - queries})",
        f"torch.zeros({queries}, {keys}).masked_fill(({grid[0]}) < {grid[1]}, float('-inf'))",
        f"torch.full(({queries}, {keys}), -3e38).triu({keys - queries + 1})",
        f"torch.ones({queries}, {keys}, dtype=torch.bool)",
        f"torch.zeros({queries}, {keys})",
        f"torch.ones(1, 1, 1, {keys}, dtype=torch.bool)",
        f"((({grid[0]}) - {grid[1]} >= 0) & (({grid[0]}) - {grid[1]} < 3))",
        f"((({grid[0]}) - {grid[1]}).abs() < 3)",
        f"((({grid[0]}) - {grid[1]}).abs() < 3)[None].expand(2, 1, {queries}, {keys})",
        f"(({grid[0]}) > {grid[1]})",
    )
    return d.step(d.one(texts)), ""


def _windowed(d: Draft, x: str) -> str:
    return _attention(d, x, windows=True)


def _attention(d: Draft, x: str, *, windows: bool = False) -> str:
    if d.value(x).dim() != 3:
        return d.step("{0} * 2", x)
    kv = d.one((HEADS * 2, HEADS, 1))
    q, k, v = _layers_of(d, x, kv)
    if d.chance(0.3):
        q, k = (d.step("torch.cat([-{0}[..., 4:], {0}[..., :4]], -1) + {0}", y) for y in (q, k))
    grouped = kv != HEADS * 2
    how = ""
    if grouped and d.chance(0.75):
        k, v = (_repeated(d, y, HEADS * 2 // kv) for y in (k, v))
    elif grouped:
        how = ", enable_gqa=True"
    t = d.value(q).shape[2]
    mask, more = _mask(d, t, d.value(k).shape[2], windows=windows)
    how += more + d.one(("", "", ", scale=0.3", ", dropout_p=0.0"))
    y = d.step(
        f"{F}.scaled_dot_product_attention({{0}}, {{1}}, {{2}}, attn_mask={{3}}{how})",
        q,
        k,
        v,
        mask,
    )
    if d.chance(0.9):
        y = _joined(d, y)
        return _linear(d, y, D) if d.chance(0.6) else y
    return d.step("{0}.flatten(2)[:, :2]", y)


def _layers(d: Draft, x: str) -> str:
    """Layers of one input, read by this and that."""
    if d.chance(0.6):
        return _attention(d, x)
    y, z = (_linear(d, x, d.one((D, D, 8))) for _ in range(2))
    if d.chance(0.4):
        w = _linear(d, x, D)
        y = _plus(d, y, w)
    if d.value(y).shape != d.value(z).shape:
        z = d.step("{0}.mean(-1, keepdim=True)", z)
    return d.step(
        d.one(
            (
                f"{F}.silu({{0}}) * {{1}}",
                "{0} + {1}",
                "torch.cat([{0}, {1}], -1)",
                "{0} * {1}.sigmoid()",
            )
        ),
        y,
        z,
    )


def _state(d: Draft) -> str:
    return d.given(
        d.one(
            (
                f"torch.randn(1, {D})",
                f"torch.randn(1, 1, {D})",
                f"torch.randn({D})",
                f"torch.randn(n, {D})",
                f"torch.randn(1, 2 * {D})[:, ::2]",
            )
        )
    )


def _one_row(d: Draft, x: str) -> str:
    drawn = d.rng.random()
    if drawn < 0.6:
        return _feed_forward(d, x)
    x = _linear(d, x, d.one((D, 8)))
    return d.step(d.one(("{0}.sin()", "{0}.softmax(-1)", f"{F}.silu({{0}})", "{0} * 0.5")), x)


def _cache(d: Draft) -> str:
    return d.tokens("n", HEADS, d.one((5, 8)), WIDTH)


def _one_token(d: Draft, x: str) -> str:
    if d.value(x).dim() != 4:
        return d.step("{0} * 2", x)
    times = d.one((2, 4, 2, 1))
    keys, heads = d.value(x).shape[2], d.value(x).shape[1]
    q = d.given(f"torch.randn(n, {heads * times}, {d.one((1, 1, 1, 1, 2))}, {WIDTH})")
    if d.chance(0.2):
        q = d.given(f"torch.randn(n, 1, {heads * times}, {WIDTH}).transpose(1, 2)")
    k = x
    v = d.tokens("n", heads, keys, d.one((WIDTH, WIDTH, 16)))
    how = ""
    if d.chance(0.75):
        k, v = (_repeated(d, y, times) for y in (k, v))
    else:
        how = ", enable_gqa=True"
    mask = d.given(
        d.one(
            (
                f"torch.randn(n, 1, 1, {keys}) > -1.5",
                f"torch.randn(1, {keys}) > -1.5",
                f"torch.randn({keys}) > -1.5",
                f"torch.randn(1, 1, 1, {keys})",
                f"torch.randn(n, {heads * times}, 1, {keys})",
                f"torch.randn({d.value(q).shape[2]}, {keys})",
            )
        )
    )
    how += d.one(("", "", ", scale=0.25", ", dropout_p=0.0", ", is_causal=False"))
    called = f"{F}.scaled_dot_product_attention"
    y = d.step(f"{called}({{0}}, {{1}}, {{2}}, attn_mask={{3}}{how})", q, k, v, mask)
    return d.step(
        d.one(
            ("{0}.transpose(1, 2).flatten(2)", "{0}.sin()", "{0}.squeeze(2)", "{0}[:, :, 0]", "{0}")
        ),
        y,
    )


def _written_out(d: Draft, x: str) -> str:
    """Attention that is written out."""
    if d.value(x).dim() != 3:
        return d.step("{0} * 2", x)
    q, k, v = _layers_of(d, x, HEADS * 2)
    t = d.value(q).shape[2]
    if d.chance(0.2):
        q, k, v = (d.step("{0}.flatten(0, 1)", y) for y in (q, k, v))
    rank = d.value(q).dim()
    b = "bh"[4 - rank :]
    product = d.one(
        (
            "torch.matmul({0}, {1}.transpose(-2, -1))",
            "{0} @ {1}.mT",
            "torch.matmul({0}, {1}.transpose(-1, -2))",
            f"torch.einsum('{b}id,{b}jd->{b}ij', {{0}}, {{1}})",
        )
    )
    s = d.step(product, q, k)
    for _ in range(d.one((0, 1, 1, 2))):
        s = d.step(
            d.one(("{0} * 0.35", "{0} / 2.8", "0.4 * {0}", "{0}.mul_(0.5)", "{0}.float()")), s
        )
    for _ in range(d.one((0, 1, 1, 1, 2))):
        s = _scores(d, s, t)
    s = d.step(
        d.one(
            (
                f"{F}.softmax({{0}}, dim=-1)",
                "{0}.softmax(-1)",
                f"{F}.softmax({{0}}.float(), dim=-1)",
                "torch.softmax({0}, -1)",
                f"{F}.softmax({{0}}, -1, dtype=torch.float32)",
            )
        ),
        s,
    )
    if d.chance(0.3):
        s = d.step(
            d.one(
                (
                    f"{F}.dropout({{0}}, 0.0)",
                    f"{F}.dropout({{0}}, 0.5, False)",
                    f"{F}.dropout({{0}}, 0.3)",
                    "{0}.to(torch.float32)",
                )
            ),
            s,
        )
    y = d.step(
        d.one(
            (
                "torch.matmul({0}, {1})",
                "{0} @ {1}",
                "{0}.matmul({1})",
                f"torch.einsum('{b}ij,{b}jd->{b}id', {{0}}, {{1}})",
                f"torch.einsum('{b}ij,{b}jd->{b[:1]}i{b[1:]}d', {{0}}, {{1}})",
            )
        ),
        s,
        v,
    )
    if d.value(y).dim() == 4 and d.value(y).shape[1] == HEADS * 2:
        return _joined(d, y)
    return d.step("{0}.flatten(2)", y)


def _scores(d: Draft, s: str, t: int) -> str:
    drawn = d.rng.randrange(7)
    if drawn == 0:
        bias = d.learnt(HEADS * 2, t, t)
        return d.step(d.one(("{0} + {1}", "{1} + {0}", "{0}.add_({1})")), s, bias)
    if drawn == 1:
        bias = d.given(f"torch.randn({t}, {t})")
        return d.step(d.one(("{0} + {1}", "torch.add({0}, {1})")), s, bias)
    if drawn == 2:
        bias = d.given(
            f"((torch.randn({d.one((t, 1))}, {t}) > -0.5) | (torch.arange({t}) == 0)).float().log()"
        )
        return d.step("{0} + {1}", s, bias)
    number = d.one(
        ("float('-inf')", "torch.finfo(torch.float32).min", "-1e9", "-1e30", "-1e4", "0.0")
    )
    hidden = f"(torch.randn({d.one((t, 1))}, {t}) {d.one(('> 0.5', '< 10', '> 10'))})"
    if "-1e" not in number and number != "0.0":
        # Of no key that is seen, eager's own gradients are NaN. Of one alone they are exactly zero,
        # where a fused kernel's are what rounding leaves.
        hidden += f" & (torch.arange({t}) > 1)"
    mask = d.given(hidden)
    if drawn == 3 and d.chance(0.5):
        mask = d.step(f"torch.ones({t}, {t}, dtype=torch.bool).triu(1)")
    return d.step(
        d.one(
            (
                f"{{0}}.masked_fill({{1}}, {number})",
                f"{{0}}.masked_fill_({{1}}, {number})",
                f"torch.where(~{{1}}, {{0}}, {number})",
                f"torch.where({{1}}, {number}, {{0}})",
            )
        ),
        s,
        mask,
    )


def _of_parameters(d: Draft, x: str) -> str:
    """What only parameters decide, and what reads it."""
    c = d.value(x).shape[-1]
    w = d.learnt(D, c)
    spelt = (
        "({0} - {0}.mean(1, keepdim=True)) / ({0}.std(1, keepdim=True) + 0.1)",
        "{0} * 2",
        "{0}.t().contiguous().t()",
        "{0}.exp()",
        "torch.cat([{0}, {0}.sin()], 0)[::2]",
        "{0}.view(-1).view({0}.shape)",
        "{0}.clone()",
        "{0}.to(torch.bfloat16).to(torch.float32)",
        "torch.tril({0})",
        "{0} + torch.arange({0}.shape[1]) * 0.1",
        "{0}.softmax(0)",
        "{0}.detach() * 1.5",
    )
    for _ in range(d.one((1, 1, 2))):
        w = d.step(d.one(spelt), w)
    x = d.step(f"{F}.linear({{0}}, {{1}}, {{2}})", x, w, d.maybe(D))
    return d.step("{0} + {1}", x, d.step(d.one(("{0} * 3", "{0}.sin()")), d.learnt(D)))


# 3. All at once


def _network(d: Draft, x: str) -> str:
    if d.value(x).shape[1] < 8:
        x = _stem(d, x)
    layers = (
        _group_norm,
        _trained_norm,
        _pool,
        _depthwise,
        _convnext,
        _gated_convolution,
        _residual,
        _plain,
    )
    for _ in range(d.one((1, 2))):
        x = d.one(layers)(d, x)
    x = d.step(
        d.one(
            (
                "{0}.flatten(2).transpose(1, 2)",
                "{0}.flatten(2).mT.contiguous()",
                "{0}.permute(0, 2, 3, 1).flatten(1, 2)",
            )
        ),
        x,
    )
    for _ in range(d.one((1, 2))):
        x = d.one((_rows, _attention, _written_out, _layers, _of_parameters, _feed_forward))(d, x)
    return _selected(d, x) if d.chance(0.5) else x


FAMILIES: Mapping[str, Family] = {
    "group_norm_silu": Family(
        begin=_image, layers=(_group_norm,) * 4 + (_plain, _conv), trained=0.4
    ),
    "batch_norms": Family(begin=_image, layers=(_trained_norm,) * 5 + (_plain,), trained=0.9),
    "max_pools": Family(begin=_large_image, layers=(_pool,) * 3 + (_plain, _conv), trained=0.9),
    "depthwise_convolutions": Family(
        begin=_large_image, layers=(_depthwise,) * 3 + (_conv,), trained=0.5
    ),
    "product_epilogues": Family(begin=_image, layers=(_convnext, _gated_convolution), trained=0.1),
    "linear_epilogues": Family(begin=_matrix, layers=(_feed_forward,), trained=0.1),
    "fused_convolutions": Family(begin=_image, layers=(_residual,), trained=0.1),
    "space_to_depth": Family(begin=_stem_image, layers=(_stem, _stem, _volume), trained=0.4),
    "eager_convolutions": Family(begin=_small_image, layers=(_big_weights,), trained=0.1),
    "slice_pushdown": Family(begin=_tokens, layers=(_rows,), trained=0.4, end=_selected),
    "horizontal_fusion": Family(begin=_tokens, layers=(_layers,), trained=0.5),
    "one_row_linears": Family(begin=_state, layers=(_one_row,), trained=0.1),
    "one_token_attention": Family(begin=_cache, layers=(_one_token,), trained=0.1),
    "fused_attention": Family(begin=_tokens, layers=(_written_out,), trained=0.3),
    "windowed_attention": Family(begin=_tokens, layers=(_windowed,), trained=0.4),
    "constant_masks": Family(begin=_tokens, layers=(_attention,), trained=0.4),
    "parameter_hoist": Family(begin=_tokens, layers=(_of_parameters,), trained=0.1),
    "all": Family(
        begin=lambda d: d.one((_image, _stem_image))(d),
        layers=(lambda d, x: x,),
        trained=0.5,
        end=_network,
    ),
}
