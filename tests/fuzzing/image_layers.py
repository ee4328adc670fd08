"""Layers of images in random programs, as passes look for them."""

from pass_drafts import Draft

C = 16
"""Channels."""
F = "torch.nn.functional"


def image(d: Draft) -> str:
    return d.image(C, d.one((4, 4, 5, 1)), d.one((6, 6, 3, 1)))


def small_image(d: Draft) -> str:
    return d.image(C, d.one((1, 2, 3)), d.one((2, 3)), last=0.1)


def large_image(d: Draft) -> str:
    return d.image(C, d.one((7, 8, 9)), d.one((7, 8, 12)))


def conv(d: Draft, x: str, to: int = C, kernel: int | None = None, how: str = "") -> str:
    channels = d.value(x).shape[1]
    kernel = kernel or d.one((1, 3))
    w = d.learnt(to, channels, kernel, kernel, scale=(channels * kernel**2) ** -0.5)
    how = how or f", padding={kernel // 2}"
    called = d.one(("torch.conv2d",) * 3 + (f"{F}.conv2d",))
    return d.step(f"{called}({{0}}, {{1}}, {{2}}{how})", x, w, d.maybe(to))


def plain(d: Draft, x: str) -> str:
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


def group_norm(d: Draft, x: str) -> str:
    skip = x
    if d.chance(0.7):
        x = conv(d, x)
    c = d.value(x).shape[1]
    if d.chance(0.3):
        x = d.step("{0} + {1}[:, :, None, None]", x, d.given(f"torch.randn(n, {c})"))
    if d.chance(0.5) and d.value(skip).shape == d.value(x).shape:
        total = d.one(("{0} + {1}", "torch.add({1}, {0})", "({0} + {1}) / 1.0"))
        x = d.step(total, x, skip)
        skip = x if d.chance(0.7) else skip
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
        x = conv(d, x, c)
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


ACTIVATIONS = (
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


def trained_norm(d: Draft, x: str) -> str:
    if d.chance(0.6):
        x = conv(d, x, C)
    elif d.chance(0.5):
        x = d.take("{0}.contiguous(memory_format=torch.channels_last)", x)
    x = _batch_norm(d, x, "True")
    if d.chance(0.8):
        x = d.step(d.one(ACTIVATIONS), x)
    return x


def pool(d: Draft, x: str) -> str:
    if d.chance(0.5):
        x = d.take("{0}.contiguous(memory_format=torch.channels_last)", x)
    how = d.one(
        ("3, 2, 1",) * 6
        + ("3, stride=2, padding=1", "(3, 3), (2, 2), (1, 1)", "3, 2, 1, 1, True", "2")
    )
    called = d.one((f"{F}.max_pool2d",) * 3 + ("torch.max_pool2d",))
    return d.step(f"{called}({{0}}, {how})", x)


def depthwise(d: Draft, x: str) -> str:
    c, kernel = d.value(x).shape[1], d.one((7, 7, 5, 3))
    w = d.learnt(c, 1, kernel, kernel, scale=1 / kernel)
    padding = d.one((kernel // 2,) * 4 + (0, kernel))
    stride = d.one((1, 1, 1, 2))
    x = d.step(f"torch.conv2d({{0}}, {{1}}, {{2}}, {stride}, {padding}, 1, {c})", x, w, d.maybe(c))
    if d.chance(0.3):
        x = plain(d, x)
    return x


def convnext(d: Draft, x: str) -> str:
    """ConvNeXt's block, with or without its depthwise convolution."""
    skip, c = x, d.value(x).shape[1]
    if d.chance(0.4):
        x = depthwise(d, x)
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
    return plus(d, x, skip)


def plus(d: Draft, x: str, skip: str) -> str:
    if d.value(skip).shape != d.value(x).shape:
        return x
    spelt = d.one(
        ("{0} + {1}", "{1} + {0}", "torch.add({0}, {1})", "{0}.add_({1})", "{1}.add({0})")
    )
    return d.step(spelt, x, skip)


def _mlp(d: Draft, x: str, c: int) -> str:
    wide = d.one((c, 2 * c, 24))
    x = linear(d, x, wide)
    if d.chance(0.2):
        x = d.step(f"{F}.dropout({{0}}, 0.0)", x)
    x = d.step(d.one((f"{F}.gelu({{0}})", *ACTIVATIONS)), x)
    if d.chance(0.9):
        x = linear(d, x, c)
    return x


def linear(d: Draft, x: str, to: int) -> str:
    c = d.value(x).shape[-1]
    if d.chance(0.1) and d.value(x).dim() == 2:
        return d.step("torch.addmm({2}, {0}, {1})", x, d.learnt(c, to), d.learnt(to))
    w = d.learnt(to, c)
    return d.step(f"{F}.linear({{0}}, {{1}}, {{2}})", x, w, d.maybe(to))


def gated_convolution(d: Draft, x: str) -> str:
    """EfficientNet's: a gate, a convolution of one pixel, a batch norm, and what follows."""
    skip = x
    if d.chance(0.5):
        x = _batch_norm(d, x, "False")
        if d.chance(0.8):
            x = d.step(d.one(ACTIVATIONS), x)
    if d.chance(0.6):
        c = d.value(x).shape[1]
        mean = d.one(("{0}.mean((2, 3), keepdim=True)", f"{F}.adaptive_avg_pool2d({{0}}, 1)"))
        gate = d.step(mean, x)
        if d.chance(0.7):
            gate = conv(d, gate, c, 1)
        gate = d.step("{0}.sigmoid()", gate)
        x = d.step(d.one(("{0} * {1}", "{1} * {0}", "{0}.mul_({1})")), x, gate)
    x = conv(d, x, C, 1)
    x = _batch_norm(d, x, "False")
    drawn = d.rng.random()
    if drawn < 0.5:
        return d.step(d.one(ACTIVATIONS), x)
    return plus(d, x, skip) if drawn < 0.9 else x


def residual(d: Draft, x: str) -> str:
    """ResNet's."""
    skip = x
    x = conv(d, x, C)
    if d.chance(0.75):
        x = _batch_norm(d, x, d.one(("False",) * 9 + ("True",)))
    if d.chance(0.5):
        if d.chance(0.2):
            skip = x
        x = plus(d, x, skip)
    return d.step(d.one((*ACTIVATIONS[:6], *ACTIVATIONS[:3])), x)


def stem_image(d: Draft) -> str:
    return d.image(d.one((3, 3, 1, 4)), d.one((8, 9, 12)), d.one((8, 10, 12)), last=0.4)


def stem(d: Draft, x: str) -> str:
    if d.value(x).dim() != 4 or d.value(x).shape[1] >= 8:
        return plain(d, x)
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


def volume(d: Draft, x: str) -> str:
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


def big_weights(d: Draft, x: str) -> str:
    c = d.value(x).shape[1]
    w = d.learnt(d.one((C, 32)), c // (groups := d.one((1, 1, 1, 2))), 3, 3)
    x = d.step(
        f"torch.conv2d({{0}}, {{1}}, {{2}}, 1, {d.one((1, 1, '(1, 2)'))}, 1, {groups})",
        x,
        w,
        d.maybe(d.value(w).shape[0]),
    )
    return plain(d, x) if d.chance(0.5) else x
